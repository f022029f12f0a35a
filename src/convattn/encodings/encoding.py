"""The base class of encodings: a module from real displacements to one score per head."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.hooks import compute_parameters
from convattn.errors import ArgumentError, ShapeError, must_be
from convattn.grid import Axis, whole_number


class Encoding(nn.Module, ABC):
    """A learnable function of a displacement: one score per head.

    Displacements are real numbers in pixels of the key grid, key minus query, in tensor order (for images: row,
    column). Scores are computed in the dtype of the displacements, whatever the dtype of the parameters.

    A subclass must write only `score`. It also writes `options` if its constructor has arguments of its own,
    `feature_width` and `feature_vectors` if scores are linear in features that the heads share, and `require_span` if
    it does not hold every displacement. None of these check their arguments; to use an encoding call it, or `table` and
    `features`, which do. Layers read an encoding without calling it, so hooks on it are refused unless they compute its
    parameters. A submodule's own hooks run when `score` calls it.

    Attributes:
        num_heads: Number of heads.
        dims: Number of axes.

    Example:
        >>> class Near(Encoding):
        ...     def score(self, displacement):
        ...         return -displacement.abs().sum(-1).expand(self.num_heads, *displacement.shape[:-1])
        >>> Near(num_heads=1, dims=2)(torch.tensor([[3.0, -1.0]]))
        tensor([[-4.]])
    """

    axis_additive: ClassVar[bool] = False
    """Whether the score is a sum of one term per axis."""

    def __init__(self, num_heads: int, dims: int) -> None:
        """Checks and stores the sizes.

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
            ShapeError: The last axis does not have `dims` entries, or `score` returned another shape.
            ArgumentError: A displacement is not finite; EncodingRangeError if the encoding does not hold it.
        """
        self._require_points(displacement)
        return self._fitting(self.score(displacement), displacement.shape[:-1], displacement)

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
            ShapeError: The grid has another number of axes than the encoding, or `score` returned another shape.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
            ArgumentError: The encoding has a hook that would be ignored.
        """
        grids = torch.meshgrid(*self._displacements(axes, dtype, device), indexing="ij")
        displacement = torch.stack(grids, dim=-1)
        return self._fitting(self.score(displacement), displacement.shape[:-1], displacement)

    def features(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "*points width"]:
        """Returns r_δ, the vector of which the score is a linear function v_h·r_δ, for content–position scores.

        Args:
            displacement: Displacements in pixels; the last axis has one entry per grid axis.

        Returns:
            Features of width `feature_width`, in the dtype of `displacement`.

        Raises:
            ArgumentError: The encoding's score is not a linear function of features shared by the heads, a displacement
                is one that `forward` refuses, or the encoding has a hook that would be ignored.
        """
        self._require_features()
        self._require_points(displacement)
        compute_parameters(self)
        return self.feature_vectors(displacement)

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
        self.require_span([float(axis.lowest) for axis in axes], [float(axis.highest) for axis in axes])

    @abstractmethod
    def score(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "heads *points"]:
        """Scores valid displacements; the one method that a subclass must write.

        Args:
            displacement: Displacements in pixels, finite and held by the encoding; the last axis has one entry per grid
                axis.

        Returns:
            One score per head and displacement.
        """

    @property
    def feature_width(self) -> int:
        """Width D_p of `features`; 0, the default, if the score is not linear in shared features."""
        return 0

    def feature_vectors(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "*points width"]:
        """Returns the features of valid displacements; a subclass with a `feature_width` writes it.

        Args:
            displacement: As in `score`.

        Returns:
            r_δ, of width `feature_width`.

        Raises:
            NotImplementedError: The subclass has not written it.
        """
        raise NotImplementedError(f"{type(self).__name__} has a feature_width, so it must have feature_vectors")

    def require_span(self, lowest: Sequence[float], highest: Sequence[float]) -> None:
        """Raises EncodingRangeError if the encoding does not hold all displacements of a box; by default it holds all.

        Args:
            lowest: Smallest displacement along each axis, in pixels.
            highest: Largest along each axis.
        """

    def options(self) -> dict[str, Any]:
        """Returns the arguments, besides sizes, that rebuild the module, as JSON types; parameters are not included."""
        return {}

    def extra_repr(self) -> str:
        """Returns sizes and options, for printing."""
        items = {"num_heads": self.num_heads, "dims": self.dims, **self.options()}
        return ", ".join(f"{name}={value}" for name, value in items.items())

    def __repr__(self) -> str:
        """Returns the module on one line."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def _require_features(self) -> None:
        if not self.feature_width:
            expected = "one with features shared by all heads, for content–position scores"
            raise ArgumentError(must_be("encoding", expected, type(self).__name__))

    def _displacements(
        self, axes: Sequence[Axis], dtype: torch.dtype, device: torch.device | None
    ) -> list[Float[Tensor, " _"]]:
        """Lists the displacements of a grid along each axis, after checking that the encoding holds them."""
        self.require_axes(axes)
        compute_parameters(self)
        return [axis.displacements(device).to(dtype) for axis in axes]

    def _require_points(self, displacement: Tensor) -> None:
        if displacement.ndim == 0 or displacement.shape[-1] != self.dims:
            raise ShapeError(must_be("displacement", f"of shape (…, {self.dims})", tuple(displacement.shape)))
        if displacement.numel() and not (displacement.is_meta or torch.compiler.is_compiling()):  # values to look at
            flat = displacement.detach().reshape(-1, self.dims)
            if not torch.isfinite(flat).all():
                raise ArgumentError("displacement must be finite, but holds inf or nan")
            self.require_span(flat.amin(0).tolist(), flat.amax(0).tolist())

    def _fitting(self, scores: Tensor, points: Sequence[int], displacement: Tensor) -> Tensor:
        """Checks the shape of the scores that a subclass returned, and casts them."""
        expected, found = (self.num_heads, *points), getattr(scores, "shape", None)
        if found != expected:
            came = type(scores).__name__ if found is None else tuple(found)
            raise ShapeError(must_be(f"the score of {self}", f"of shape (heads, *points) = {expected}", came))
        return scores.to(displacement.dtype)
