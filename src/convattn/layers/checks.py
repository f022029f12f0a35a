"""Checks of an attention layer's arguments and of its images."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from convattn.encodings import Encoding, ScoreFunction, Shift, create_encoding
from convattn.errors import ArgumentError, ShapeError, UnknownNameError, must_be, must_be_a
from convattn.functional.autocast import autocasts
from convattn.grid import Geometry, whole_number

PATHS = ("auto", "content", "dense", "flex", "fourier", "reference", "separable", "shift")
"""Values of a layer's argument `impl`: the ways to compute it."""


def require_sizes(*, in_channels: int, out_channels: int, num_heads: int, groups: int, dropout: float) -> None:
    """Raises ArgumentError if a size is not positive, groups do not divide channels, or dropout is out of range."""
    channels = {"in_channels": in_channels, "out_channels": out_channels}
    for name, value in {**channels, "num_heads": num_heads, "groups": groups}.items():
        whole_number(name, value)
    for name, value in channels.items():
        if value % groups:
            raise ArgumentError(must_be(name, f"divisible by groups={groups}", value))
    if not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        raise ArgumentError(must_be("dropout", "a probability in [0, 1)", dropout))


def fitting_encoding(encoding: str | Encoding | Callable[[Tensor], Tensor], num_heads: int, dims: int) -> Encoding:
    """Builds an encoding from a name or a function; checks that a ready one fits the heads and axes."""
    if isinstance(encoding, str):
        return create_encoding(encoding, num_heads, dims)
    if not isinstance(encoding, Encoding):
        if isinstance(encoding, type) or not callable(encoding):
            expected = "the name of an encoding, an Encoding, or a function of displacements"
            raise ArgumentError(must_be("encoding", expected, encoding))
        return ScoreFunction(num_heads, dims, function=encoding)
    if (encoding.num_heads, encoding.dims) != (num_heads, dims):
        raise ArgumentError(must_be("encoding", f"for {num_heads} heads and {dims} axes", encoding))
    return encoding


def fitting_path(impl: str, encoding: Encoding, *, content: bool, dropout: float) -> str:
    """Returns `impl` if that path can compute the layer; raises UnknownNameError or ArgumentError otherwise."""
    if impl not in PATHS:
        raise UnknownNameError("impl", impl, PATHS)
    if content and impl not in ("auto", "content", "flex", "reference"):
        raise ArgumentError(must_be("impl", '"auto", "content", "flex" or "reference" with content', impl))
    if content and dropout and impl == "flex":
        raise ArgumentError(must_be("impl", '"auto", "content" or "reference" with content and dropout', impl))
    if not content and impl in ("content", "flex"):
        others = ", ".join(path for path in PATHS if path not in ("content", "flex"))
        raise ArgumentError(must_be("impl", f"one of {others} without content", impl))
    if dropout and impl in ("fourier", "separable", "shift"):
        raise ArgumentError(must_be("impl", '"auto", "dense" or "reference" with dropout', impl))
    if impl in ("separable", "shift") and not encoding.axis_additive:
        raise ArgumentError(
            must_be("impl", '"auto", "dense", "fourier" or "reference" unless the encoding is axis-additive', impl)
        )
    return impl


def is_window(encoding: Encoding, geometry: Geometry) -> bool:
    """Tells whether the heads are fixed, and are the taps of the window, one for each, row by row."""
    if not isinstance(encoding, Shift) or len(encoding.displacements) != math.prod(geometry.kernel_size):
        return False
    return encoding.displacements == tuple(displacement for _, displacement in geometry.taps())


_AXES = {1: "positions", 2: "rows, cols", 3: "depth, rows, cols"}


def image_shape(shape: Sequence[int], channels: int, dims: int) -> tuple[int, ...]:
    """Returns the shape of images as a tuple; raises ArgumentError if it is not (batch, channels, *spatial)."""
    valid = isinstance(shape, Sequence) and not isinstance(shape, str) and len(shape) == dims + 2
    if not valid or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise ArgumentError(must_be("shape", f"{dims + 2} whole numbers (batch, {channels}, {_AXES[dims]})", shape))
    return tuple(shape)


def require_images(x: Tensor, channels: int, dims: int, dtype: torch.dtype, device: torch.device | None = None) -> None:
    """Checks images: ShapeError for a wrong shape; ArgumentError for no tensor or another dtype than the weights."""
    if not isinstance(x, Tensor):
        raise ArgumentError(must_be_a("x", "a tensor", x))
    if x.ndim != dims + 2 or x.shape[1] != channels:
        raise ShapeError(must_be("x", f"of shape (batch, {channels}, {dims} spatial sizes)", tuple(x.shape)))
    if x.dtype is not dtype:
        # Under autocast, images and weights may differ in dtype, unless one is float64, which it leaves as it is.
        autocast = autocasts(x.device if device is None else device) and torch.float64 not in (x.dtype, dtype)
        if not (autocast and x.is_floating_point()):
            raise ArgumentError(must_be("x", f"of the weights' dtype {dtype}", x.dtype))
