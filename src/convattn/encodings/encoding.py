"""What an encoding is: an abstract module from real displacements to one score per head."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, ShapeError, must_be
from convattn.grid import Axis, whole_number

__all__ = ["AxisAdditiveEncoding", "Encoding"]


class Encoding(nn.Module, ABC):
    """A learnable function of a displacement: one score per head.

    Displacements are real numbers in pixels of the key grid, key minus query, in tensor order (for images: row,
    column). Scores are computed in the dtype of the displacements, whatever the dtype of the parameters.

    Attributes:
        num_heads: Number of heads.
        dims: Number of axes.
    """

    axis_additive: ClassVar[bool] = False
    """Whether the score is a sum of one term per axis."""

    def __init__(self, num_heads: int, dims: int) -> None:
        """Checks and keeps the sizes.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.

        Raises:
            ArgumentError: A size is not a positive integer.
        """
        super().__init__()
        self.num_heads, self.dims = whole_number("num_heads", num_heads), whole_number("dims", dims)

    def forward(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "heads *points"]:
        """Scores displacements.

        Args:
            displacement: Displacements in pixels; the last axis has one entry per grid axis.

        Returns:
            One score per head and displacement, in the dtype of `displacement`.

        Raises:
            ShapeError: The last axis does not have `dims` entries.
            ArgumentError: A displacement is not finite; EncodingRangeError where the encoding does not hold it.
        """
        self._require_points(displacement)
        return self._score(displacement)

    def table(
        self, axes: Sequence[Axis], dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Float[Tensor, "heads *displacements"]:
        """Scores all displacements of a grid, from the lowest to the highest along each axis.

        Args:
            axes: Queries and keys along each axis.
            dtype: Dtype in which to compute.
            device: Where to compute.

        Returns:
            Scores; one axis per grid axis.

        Raises:
            ShapeError: The grid has another number of axes than the encoding.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
        """
        grids = torch.meshgrid(*self._displacements(axes, dtype, device), indexing="ij")
        return self._score(torch.stack(grids, dim=-1))

    def features(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "*points width"]:
        """Returns r_δ, the vector of which the score is a linear function v_h·r_δ, for content–position scores.

        Args:
            displacement: Displacements in pixels; the last axis has one entry per grid axis.

        Returns:
            Features of width `feature_width`, in the dtype of `displacement`.

        Raises:
            ArgumentError: The encoding's score is not a linear function of features shared by the heads, or a
                displacement is one that `forward` refuses.
        """
        self._require_features()
        self._require_points(displacement)
        return self._features(displacement)

    def require_axes(self, axes: Sequence[Axis]) -> None:
        """Checks that the encoding holds every displacement of a grid.

        Args:
            axes: Queries and keys along each axis.

        Raises:
            ShapeError: The grid has another number of axes than the encoding.
            EncodingRangeError: It does not.
        """
        if len(axes) != self.dims:
            raise ShapeError(must_be("len(axes)", str(self.dims), len(axes)))
        for number, axis in enumerate(axes):
            self._require_span(number, float(axis.lowest), float(axis.highest))

    def options(self) -> dict[str, Any]:
        """Returns the arguments besides sizes that rebuild the module, as JSON types; parameters are not among them."""
        return {}

    def extra_repr(self) -> str:
        """Returns sizes and options, for printing."""
        items = {"num_heads": self.num_heads, "dims": self.dims, **self.options()}
        return ", ".join(f"{name}={value}" for name, value in items.items())

    def __repr__(self) -> str:
        """Returns the module on one line."""
        return f"{type(self).__name__}({self.extra_repr()})"

    @property
    @abstractmethod
    def feature_width(self) -> int:
        """Width D_p of `features`, or 0 where the score is not linear in shared features."""

    @abstractmethod
    def _score(self, displacement: Tensor) -> Tensor:
        """Scores valid displacements."""

    @abstractmethod
    def _features(self, displacement: Tensor) -> Tensor:
        """Returns the features of valid displacements."""

    @abstractmethod
    def _require_span(self, axis: int, lowest: float, highest: float) -> None:
        """Raises EncodingRangeError where displacements from lowest to highest along an axis are not all held."""

    def _require_features(self) -> None:
        if not self.feature_width:
            raise ArgumentError(
                must_be(
                    "encoding",
                    "one with features shared by all heads, for content–position scores",
                    type(self).__name__,
                )
            )

    def _displacements(
        self, axes: Sequence[Axis], dtype: torch.dtype, device: torch.device | None
    ) -> list[Float[Tensor, " _"]]:
        """Lists the displacements of a grid along each axis, all of which the encoding holds."""
        self.require_axes(axes)
        return [axis.displacements(device).to(dtype) for axis in axes]

    def _require_points(self, displacement: Tensor) -> None:
        if displacement.ndim == 0 or displacement.shape[-1] != self.dims:
            raise ShapeError(must_be("displacement", f"of shape (…, {self.dims})", tuple(displacement.shape)))
        if displacement.numel() and not torch.compiler.is_compiling():  # a graph cannot look at values
            flat = displacement.detach().reshape(-1, self.dims)
            if not torch.isfinite(flat).all():
                raise ArgumentError(must_be("displacement", "finite", "a tensor with inf or nan"))
            for axis, (low, high) in enumerate(zip(flat.amin(0).tolist(), flat.amax(0).tolist(), strict=True)):
                self._require_span(axis, low, high)


class AxisAdditiveEncoding(Encoding):
    """An encoding whose score is a sum of one term per axis: s_h(δ) = Σ_a s_h,a(δ_a)."""

    axis_additive = True

    def axis_tables(
        self, axes: Sequence[Axis], dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> list[Float[Tensor, "heads _"]]:
        """Scores, for each axis alone, all displacements of a grid along it.

        Args:
            axes: Queries and keys along each axis.
            dtype: Dtype in which to compute.
            device: Where to compute.

        Returns:
            One table per axis, from the lowest to the highest displacement.

        Raises:
            ShapeError: The grid has another number of axes than the encoding.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
        """
        return [self._axis_score(n, along) for n, along in enumerate(self._displacements(axes, dtype, device))]

    def axis_features(
        self, axes: Sequence[Axis], dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> list[Float[Tensor, "_ width"]]:
        """Returns, for each axis alone, the features of all displacements of a grid along it; r_δ = Σ_a r_a[δ_a].

        Args:
            axes: Queries and keys along each axis.
            dtype: Dtype in which to compute.
            device: Where to compute.

        Returns:
            One table per axis, from the lowest to the highest displacement, each of width `feature_width`.

        Raises:
            ArgumentError: The encoding has no features.
            ShapeError: The grid has another number of axes than the encoding.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
        """
        self._require_features()
        return [self._axis_features(n, along) for n, along in enumerate(self._displacements(axes, dtype, device))]

    @abstractmethod
    def _axis_features(self, axis: int, displacement: Float[Tensor, " points"]) -> Float[Tensor, "points width"]:
        """Returns the features of valid displacements along one axis, which add up over the axes to `_features`."""

    @abstractmethod
    def _axis_score(self, axis: int, displacement: Float[Tensor, "*points"]) -> Float[Tensor, "heads *points"]:
        """Scores valid displacements along one axis."""

    def _score(self, displacement: Tensor) -> Tensor:
        return sum(
            (self._axis_score(axis, displacement[..., axis]) for axis in range(1, self.dims)),
            self._axis_score(0, displacement[..., 0]),
        )
