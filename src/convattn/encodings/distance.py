"""Distance encodings: small networks from the logarithm of a displacement to the heads' scores."""

from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.encodings.encoding import AxisAdditiveEncoding, Encoding, compute_parameters
from convattn.grid import whole_number


@final
class Distance(Encoding):
    """Score V·relu(U·sign(δ)log(1 + abs(δ)) + u): neighbouring displacements get neighbouring scores, at any distance.

    Source: Liu et al. 2022 (Swin Transformer V2), §3.3, continuous relative position bias in log-spaced coordinates.

    Attributes:
        inner: Linear map from the dims log-displacements to the hidden units.
        outer: Linear map from the hidden units to the heads, without bias.

    Example:
        >>> Distance(9, 2)(torch.zeros(5, 2)).shape
        torch.Size([9, 5])
    """

    def __init__(self, num_heads: int, dims: int, *, hidden: int = 64) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            hidden: Number of hidden units, ≥ 1.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__(num_heads, dims)
        self.hidden = whole_number("hidden", hidden)
        self.inner = nn.Linear(dims, self.hidden)
        self.outer = nn.Linear(self.hidden, num_heads, bias=False)

    @property
    def feature_width(self) -> int:
        """Number of hidden units."""
        return self.hidden

    def options(self) -> dict[str, Any]:
        """Returns hidden."""
        return {"hidden": self.hidden}

    def score(self, displacement: Tensor) -> Tensor:
        """Scores displacements."""
        compute_parameters(self.outer)
        scores = functional.linear(self.feature_vectors(displacement), self.outer.weight.to(displacement.dtype))
        return scores.movedim(-1, 0)

    def feature_vectors(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "*points hidden"]:
        """Returns the features of displacements."""
        compute_parameters(self.inner)
        return _units(self.inner, displacement)


@final
class AxialDistance(AxisAdditiveEncoding):
    """Score Σ_a V_a·relu(U_a·sign(δ_a)log(1 + abs(δ_a)) + u_a): a `Distance` for each axis alone, and their sum.

    It is to `Distance` what `LearnedAxial` is to `LearnedTable`: it cannot tell a corner from what its row and its
    column say, and layers take one softmax per axis.

    Source: as `Distance`, with one network per axis.

    Attributes:
        inner: Per axis the linear map from the log-displacement to the hidden units.
        outer: Per axis the linear map from the hidden units to the heads, without bias.

    Example:
        >>> AxialDistance(9, 2)(torch.zeros(5, 2)).shape
        torch.Size([9, 5])
    """

    def __init__(self, num_heads: int, dims: int, *, hidden: int = 64) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            hidden: Number of hidden units of each axis, ≥ 1.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__(num_heads, dims)
        self.hidden = whole_number("hidden", hidden)
        self.inner = nn.ModuleList(nn.Linear(1, self.hidden) for _ in range(dims))
        self.outer = nn.ModuleList(nn.Linear(self.hidden, num_heads, bias=False) for _ in range(dims))

    @property
    def feature_width(self) -> int:
        """Number of hidden units of all axes."""
        return self.dims * self.hidden

    def options(self) -> dict[str, Any]:
        """Returns hidden."""
        return {"hidden": self.hidden}

    def axis_score(self, axis: int, displacement: Tensor) -> Tensor:
        """Scores displacements along one axis."""
        compute_parameters(self.inner[axis])
        compute_parameters(self.outer[axis])
        weight = cast(Tensor, self.outer[axis].weight).to(displacement.dtype)
        return functional.linear(self._axis_units(axis, displacement), weight).movedim(-1, 0)

    def axis_feature_vectors(self, axis: int, displacement: Tensor) -> Tensor:
        """Returns the features of displacements along one axis."""
        compute_parameters(self.inner[axis])
        before, after = axis * self.hidden, (self.dims - 1 - axis) * self.hidden
        return functional.pad(self._axis_units(axis, displacement), (before, after))

    def _axis_units(self, axis: int, displacement: Float[Tensor, "*points"]) -> Float[Tensor, "*points hidden"]:
        return _units(cast(nn.Linear, self.inner[axis]), displacement[..., None])


def _units(inner: nn.Linear, displacement: Float[Tensor, "*points axes"]) -> Float[Tensor, "*points hidden"]:
    """Returns the hidden units of displacements."""
    logs, kind = displacement.sign() * torch.log1p(displacement.abs()), displacement.dtype
    return functional.relu(functional.linear(logs, inner.weight.to(kind), inner.bias.to(kind)))
