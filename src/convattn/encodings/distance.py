"""Distance encodings: small networks from the logarithm of a displacement to the heads' scores."""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.encodings.encoding import (
    AxisAdditiveEncoding,
    Encoding,
    compute_parameters,
    place_along_axis,
)
from convattn.grid import whole_number


@final
class Distance(Encoding):
    """Score V·relu(U·sign(δ)log(1 + abs(δ)) + u): neighbouring displacements get neighbouring scores, at any distance.

    Source: Liu et al. 2022 (Swin Transformer V2), §3.3, continuous relative position bias in log-spaced coordinates.

    Attributes:
        inner: Linear map from the dims log-displacements to the hidden units.
        outer: Linear map from the hidden units to the heads, without bias.

    Example:
        >>> import torch
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

    def options(self) -> dict[str, Any]:
        """Returns hidden."""
        return {"hidden": self.hidden}

    def score(self, displacement: Tensor) -> Tensor:
        """Scores displacements."""
        features = self.feature_vectors(displacement)
        return functional.linear(features, *_numbers(self.outer, features)).movedim(-1, 0)

    def feature_vectors(
        self, displacement: Float[Tensor, "*points dims"]
    ) -> Float[Tensor, "*points hidden"]:
        """Returns the features of displacements."""
        logs = displacement.sign() * displacement.abs().log1p()
        return functional.linear(logs, *_numbers(self.inner, logs)).relu()


def _numbers(linear: Any, like: Tensor) -> list[Tensor]:
    """Returns weight and bias of a linear map that is not called, in the dtype of another tensor."""
    compute_parameters(linear)
    weight, bias = linear.weight, linear.bias
    if not isinstance(
        weight, Tensor
    ):  # as `torch.ao.quantization` leaves a map, which computes with these
        weight, bias = weight().dequantize(), bias()
    return [numbers.to(like.dtype) for numbers in (weight, bias) if numbers is not None]


@final
class AxialDistance(AxisAdditiveEncoding):
    """Score Σ_a V_a·relu(U_a·sign(δ_a)log(1 + abs(δ_a)) + u_a): a `Distance` for each axis, and their sum.

    Source: as `Distance`; the sum over axes as in `LearnedAxial`.

    Attributes:
        axes: The network of each axis.

    Example:
        >>> import torch
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
        self.axes = nn.ModuleList(Distance(num_heads, 1, hidden=hidden) for _ in range(dims))

    def options(self) -> dict[str, Any]:
        """Returns hidden."""
        return {"hidden": self.hidden}

    def axis_scores(self, displacement: Tensor) -> Tensor:
        """Scores displacements along each axis."""
        points = displacement[..., None]
        scores = [self._along(axis).score(along) for axis, along in enumerate(points)]
        return torch.stack(scores, dim=1)

    def axis_feature_vectors(self, axis: int, displacement: Tensor) -> Tensor:
        """Returns the features of displacements along one axis."""
        features = self._along(axis).feature_vectors(displacement[..., None])
        return place_along_axis(features, axis, self.dims)

    def _along(self, axis: int) -> Any:
        """Returns the network of an axis, with its parameters computed."""
        compute_parameters(self.axes[axis])
        return self.axes[axis]
