"""The base class of encodings: a module from real displacements to one score per head."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from convattn.errors import ArgumentError, EncodingRangeError, ShapeError, must_be, require
from convattn.grid import Axis, Displacements, whole_number
from convattn.structure import is_own_hook


def compute_parameters(module: nn.Module) -> None:
    """Runs the hooks that compute a module's parameters, as calling the module would; refuses all other hooks."""
    # Call this before reading the parameters of a module that is not called. Parametrisations need nothing.
    hooks_by_kind = {
        "forward pre-hook": module._forward_pre_hooks,
        "forward hook": module._forward_hooks,
        "backward pre-hook": module._backward_pre_hooks,
        "backward hook": module._backward_hooks,
    }
    for kind, hooks in hooks_by_kind.items():
        for hook in hooks.values():
            if is_own_hook(hook):
                hook(module, None)
                continue
            name = getattr(hook, "__qualname__", type(hook).__name__)
            raise ArgumentError(
                f"the {kind} {name} on {type(module).__name__} would be ignored, because a layer reads this module and"
                " does not call it: put the hook on the layer"
            )


def place_along_axis(
    features: Float[Tensor, "*points width"], axis: int, dims: int
) -> Float[Tensor, "*points _"]:
    """Puts the features of one axis at its place among those of all axes, with zeros for the other axes."""
    width = features.shape[-1]
    before = axis * width
    after = (dims - 1 - axis) * width
    return functional.pad(features, (before, after))


def per_head(
    values: Float[Tensor, "heads *dims"], displacement: Float[Tensor, "*points"]
) -> Float[Tensor, "heads *_"]:
    """Returns values of heads, or of each axis of displacements, in their dtype, with ones for their other axes."""
    ones = [1] * (displacement.ndim + 1 - values.ndim)
    return values.to(displacement.dtype).view(*values.shape, *ones)


def read_numbers(name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """Reads finite numbers, one set per head or one for all heads, as float64 on the CPU."""
    expected = f"finite numbers of shape {shape}, or {shape[1:]} for all heads"
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(must_be(name, expected, value)) from None
    if numbers.shape not in (shape[1:], shape):
        raise ShapeError(must_be(name, expected, tuple(numbers.shape)))
    require(torch.isfinite(numbers).all(), name, "finite", numbers.tolist())
    return numbers.expand(shape)


def require_positive(name: str, numbers: Tensor, value: Any) -> None:
    """Raises ArgumentError unless numbers are positive and finite as they will be read, in the parameter's dtype."""
    positive = numbers.isfinite() & (numbers > 0)
    require(positive.all(), name, f"a positive finite number in {numbers.dtype}", value)


def write_parameter(module: nn.Module, name: str, values: Tensor) -> None:
    """Writes numbers into a parameter in place; raises ArgumentError if it is computed from others, as in pruning."""
    parameter = module._parameters.get(name)
    if parameter is None:
        raise ArgumentError(
            f"{name} cannot be written: it is computed from other parameters, as in pruning"
        )
    with torch.no_grad():
        parameter.copy_(values)


class Encoding(nn.Module, ABC):
    """A learnable function of a displacement: one score per head.

    Displacements are real numbers in pixels of the key grid, key minus query, in tensor order (for images: row,
    column). Scores are computed in the dtype of the displacements, whatever the dtype of the parameters.

    A subclass must write only `score`. It also writes `options` if its constructor has arguments of its own,
    `feature_vectors` if scores are linear in features that the heads share, and sets `extent` if it does not hold every
    displacement. These check no arguments; `forward`, `table` and `features` do.
    Layers do not call it, so hooks on it are refused unless they compute its parameters; hooks on submodules that
    `score` calls run.

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

    centre_argument: ClassVar[str | None] = None
    """Argument of the constructor, and attribute, that says where heads look, (heads, dims) in pixels; or None."""

    width_parameter: ClassVar[str | None] = None
    """Parameter that says how widely heads look; None if there is none. It and the centres have no weight decay."""

    extent: tuple[int, ...] = ()
    """E along each axis: the encoding holds displacements from −(E − 1) to E − 1, as a table does; () holds all."""

    fixed_displacements: Displacements | None = None
    """Displacement at which all attention of each head is, whatever else is learned; None if heads are soft."""

    if TYPE_CHECKING:
        # A layer's encoding may be of any class: its own attributes, as a sharpness, are found when it runs.
        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, num_heads: int, dims: int) -> None:
        """Checks and stores the sizes.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.

        Raises:
            ArgumentError: A size is not a positive integer.
        """
        super().__init__()
        self.num_heads = whole_number("num_heads", num_heads)
        self.dims = whole_number("dims", dims)

    def forward(
        self, displacement: Float[Tensor, "*points dims"]
    ) -> Float[Tensor, "heads *points"]:
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
        scores = self.score(displacement)
        self._require_scores(scores, displacement.shape[:-1])
        return scores.to(displacement.dtype)

    def table(
        self,
        axes: Sequence[Axis],
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
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
        self.require_axes(axes)
        compute_parameters(self)
        scores = self.grid_score(axes, dtype, device)
        sizes = [axis.span for axis in axes]
        self._require_scores(scores, sizes)
        return scores.to(dtype)

    def features(
        self, displacement: Float[Tensor, "*points dims"]
    ) -> Float[Tensor, "*points width"]:
        """Returns r_δ, the vector of which the score is a linear function v_h·r_δ, for content–position scores.

        Args:
            displacement: Displacements in pixels; the last axis has one entry per grid axis.

        Returns:
            Features of width `feature_width`, in the dtype of `displacement`.

        Raises:
            ArgumentError: The encoding's score is not a linear function of features shared by the heads, a displacement
                is one that `forward` refuses, or the encoding has a hook that would be ignored.
        """
        self._require_points(displacement)
        compute_parameters(self)
        return self._require_features(self.feature_vectors(displacement))

    def grid_features(
        self,
        axes: Sequence[Axis],
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, "displacements width"]:
        """Returns the features of all displacements of a grid, flattened; arguments and errors are those of `table`.

        An encoding without features raises ArgumentError.
        """
        self.require_axes(axes)
        compute_parameters(self)
        vectors = self.feature_vectors(_every_displacement(axes, dtype, device))
        return self._require_features(vectors).flatten(0, -2)

    def require_axes(self, axes: Sequence[Axis]) -> None:
        """Checks that the encoding holds every displacement of a grid.

        Args:
            axes: Queries and keys along each axis.

        Raises:
            ShapeError: The grid has another number of axes than the encoding.
            EncodingRangeError: The grid has displacements that the encoding does not hold.
        """
        if len(axes) != self.dims:
            raise ShapeError(must_be("len(axes)", str(self.dims), len(axes)))
        if self.extent:
            lowest = [axis.lowest for axis in axes]
            highest = [axis.highest for axis in axes]
            self._require_span(lowest, highest)

    @abstractmethod
    def score(self, displacement: Float[Tensor, "*points dims"]) -> Float[Tensor, "heads *points"]:
        """Scores valid displacements; the one method that a subclass must write.

        Args:
            displacement: Displacements in pixels, finite and held by the encoding; the last axis has one entry per grid
                axis.

        Returns:
            One score per head and displacement.
        """

    def grid_score(
        self, axes: Sequence[Axis], dtype: torch.dtype, device: torch.device | None
    ) -> Tensor:
        """Scores all displacements of a grid that the encoding holds; a subclass that holds tables may cut them out.

        Args:
            axes: Queries and keys along each axis.
            dtype: Dtype in which to compute.
            device: Where to compute.

        Returns:
            One score per head and displacement, (heads, *displacements), by default what `score` returns.
        """
        return self.score(_every_displacement(axes, dtype, device))

    @property
    def feature_width(self) -> int:
        """Width D_p of `features`; 0 if the score is not linear in shared features."""
        like = [*self.parameters(), *self.buffers(), torch.empty(0)][0]
        return self.feature_vectors(torch.zeros(1, self.dims, device=like.device)).shape[-1]

    def feature_vectors(
        self, displacement: Float[Tensor, "*points dims"]
    ) -> Float[Tensor, "*points width"]:
        """Returns the features of valid displacements; a subclass whose score is linear in some writes it.

        Args:
            displacement: As in `score`.

        Returns:
            r_δ, (*points, feature_width), by default of width 0.
        """
        return displacement[..., :0]

    def hard_displacements(self) -> tuple[Displacements, float] | None:
        """Returns the pixel that each head looks at, and a bound on the attention that it gives to others.

        It holds on images of any size; where a displacement leads beyond the keys, the nearest key counts. None if
        heads have no such pixel.
        """
        fixed = self.fixed_displacements
        return None if fixed is None else (fixed, 0.0)

    @property
    def head_centres(self) -> Float[Tensor, "heads dims"] | None:
        """Where heads look, in pixels; None if they have no centres."""
        if self.centre_argument is None:
            return None
        centres = getattr(self, self.centre_argument)
        return (
            centres if isinstance(centres, Tensor) else torch.tensor(centres, dtype=torch.float32)
        )

    @property
    def head_shapes(self) -> Float[Tensor, "heads dims dims"] | None:
        """S of each head in 1/pixel, where SᵀS is the inverse of its attention's covariance; None if there is none."""
        return None

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

    def _require_features(self, vectors: Tensor) -> Tensor:
        """Returns features; raises ArgumentError if there are none."""
        if not vectors.shape[-1]:
            expected = "one with features shared by all heads, for content–position scores"
            raise ArgumentError(must_be("encoding", expected, type(self).__name__))
        return vectors

    def _require_points(self, displacement: Tensor) -> None:
        if displacement.ndim == 0 or displacement.shape[-1] != self.dims:
            expected = f"of shape (…, {self.dims})"
            raise ShapeError(must_be("displacement", expected, tuple(displacement.shape)))
        kind = displacement.dtype
        require(kind.is_floating_point, "displacement", "of a floating-point dtype", kind)
        without_values = displacement.is_meta or torch.compiler.is_compiling()
        if without_values or not displacement.numel():
            return
        points = displacement.detach().reshape(-1, self.dims)
        if not torch.isfinite(points).all():
            raise ArgumentError("displacement must be finite, but holds inf or nan")
        self._require_span(points.amin(0).tolist(), points.amax(0).tolist())

    def _require_span(self, lowest: Sequence[float], highest: Sequence[float]) -> None:
        """Raises EncodingRangeError if the encoding does not hold all displacements of a box."""
        reaches = [max(-low, high) for low, high in zip(lowest, highest, strict=True)]
        for axis, extent in enumerate(self.extent):
            if reaches[axis] > extent - 1:
                kind = type(self).__name__
                fitting = math.ceil(max(reaches)) + 1
                raise EncodingRangeError(
                    f"{kind} holds displacements from {1 - extent} to {extent - 1} along axis {axis}, but"
                    f" {lowest[axis]:g} to {highest[axis]:g} are asked: build it with extent={fitting} or more, as in"
                    f" encoding={kind}({self.num_heads}, {self.dims}, extent={fitting})"
                )

    def _require_scores(self, scores: object, points: Sequence[int]) -> None:
        """Raises ShapeError unless a subclass returned one score per head and point."""
        shape = type(scores).__name__
        if isinstance(scores, Tensor):
            shape = tuple(scores.shape)
        expected = (self.num_heads, *points)
        if shape != expected:
            words = f"of shape (heads, *points) = {expected}"
            raise ShapeError(must_be(f"the score of {self}", words, shape))


class AxisAdditiveEncoding(Encoding):
    """An encoding whose score is a sum of one term per axis: s_h(δ) = Σ_a s_h,a(δ_a).

    Layers then take one softmax per axis. A subclass writes `axis_scores`, and `axis_feature_vectors` if scores are
    linear in features that the heads share.

    Example:
        >>> class Near(AxisAdditiveEncoding):
        ...     def axis_scores(self, displacement):
        ...         return -displacement.abs().expand(self.num_heads, *displacement.shape)
        >>> Near(num_heads=1, dims=2)(torch.tensor([[3.0, -1.0]]))
        tensor([[-4.]])
    """

    def axis_tables(
        self,
        axes: Sequence[Axis],
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> list[Float[Tensor, "heads _"]]:
        """Scores displacements along each axis alone, lowest first; arguments and errors are those of `table`."""
        self.require_axes(axes)
        compute_parameters(self)
        if len(set(axes)) == 1:
            every = axes[0].displacements(device, dtype).expand(len(axes), -1)
        else:  # with displacements of 0 at the end of the shorter ones, which an encoding holds
            along_axes = [axis.displacements(device, dtype) for axis in axes]
            every = pad_sequence(along_axes, batch_first=True)
        scores = self.axis_scores(every)
        self._require_scores(scores, every.shape)
        by_axis = scores.to(dtype).transpose(0, 1).contiguous()
        return [own[:, : axis.span] for own, axis in zip(by_axis, axes, strict=True)]

    def axis_features(
        self,
        axes: Sequence[Axis],
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> list[Float[Tensor, "_ width"]]:
        """Returns, for each axis alone, the features of all displacements of a grid along it; r_δ = Σ_a r_a[δ_a].

        Arguments and errors are those of `table`; an encoding without features raises ArgumentError.
        """
        self.require_axes(axes)
        compute_parameters(self)
        along_axes = [axis.displacements(device, dtype) for axis in axes]
        vectors = map(self.axis_feature_vectors, count(), along_axes)
        return list(map(self._require_features, vectors))

    @abstractmethod
    def axis_scores(
        self, displacement: Float[Tensor, "dims *points"]
    ) -> Float[Tensor, "heads dims *points"]:
        """Scores valid displacements along each axis; the one method that a subclass must write.

        Args:
            displacement: For each axis displacements along it, in pixels, of any shape.

        Returns:
            Each axis's term of the score, (heads, dims, *points).
        """

    def axis_feature_vectors(
        self,
        axis: int,  # noqa: ARG002 - as subclasses have it
        displacement: Float[Tensor, "*points"],
    ) -> Float[Tensor, "*points width"]:
        """Returns the features of valid displacements along one axis, which add up over the axes to r_δ.

        Args:
            axis: Number of the axis.
            displacement: Displacements along it, in pixels.

        Returns:
            The axis's part, (*points, feature_width), by default of width 0.
        """
        return displacement[..., None][..., :0]

    def score(self, displacement: Tensor) -> Tensor:
        """Adds up the scores of the axes."""
        along_axes = displacement.movedim(-1, 0)
        scores = self.axis_scores(along_axes)
        self._require_scores(scores, along_axes.shape)
        return scores.sum(1)

    def feature_vectors(self, displacement: Tensor) -> Tensor:
        """Adds up the features of the axes."""
        return reduce(torch.add, map(self.axis_feature_vectors, count(), displacement.unbind(-1)))


def _every_displacement(
    axes: Sequence[Axis], dtype: torch.dtype, device: torch.device | None
) -> Float[Tensor, "*displacements dims"]:
    along_axes = [axis.displacements(device, dtype) for axis in axes]
    return torch.stack(torch.meshgrid(*along_axes, indexing="ij"), dim=-1)
