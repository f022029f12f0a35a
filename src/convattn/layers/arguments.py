"""What an attention layer checks of its arguments and of the images that it is given."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from convattn.encodings import Encoding, ScoreFunction, Shift, create_encoding
from convattn.errors import ArgumentError, ShapeError, UnknownNameError, must_be, must_be_a
from convattn.grid import Geometry, whole_number

PATHS = ("auto", "content", "dense", "flex", "fourier", "reference", "separable", "shift")
"""Ways to compute the layer, for its argument `impl`."""

_FREE = ("auto", "dense", "fourier", "reference", "separable", "shift")
"""Paths of layers whose scores do not depend on the input."""


def require_sizes(*, in_channels: int, out_channels: int, num_heads: int, groups: int, dropout: float) -> None:
    """Checks a layer's sizes and its dropout.

    Args:
        in_channels: D_in.
        out_channels: D_out.
        num_heads: N_h.
        groups: Number of blocks of each W_h.
        dropout: Probability with which an attention weight is dropped.

    Raises:
        ArgumentError: A size is not a positive integer, the groups do not divide the channels, or the dropout is no
            probability below 1.
    """
    channels = {"in_channels": in_channels, "out_channels": out_channels}
    for name, value in {**channels, "num_heads": num_heads, "groups": groups}.items():
        whole_number(name, value)
    for name, value in channels.items():
        if value % groups:
            raise ArgumentError(must_be(name, f"divisible by groups={groups}", value))
    if not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        raise ArgumentError(must_be("dropout", "a probability in [0, 1)", dropout))


def fitting_encoding(encoding: str | Encoding | Callable[[Tensor], Tensor], num_heads: int, dims: int) -> Encoding:
    """Makes an encoding of its name, or of a function; one that is already made must fit.

    Args:
        encoding: Name, encoding, or function of displacements.
        num_heads: Heads of the layer.
        dims: Axes of the layer.

    Returns:
        The encoding.

    Raises:
        ArgumentError: It is none of these, or for other heads or axes; UnknownNameError where none has the name.
    """
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
    """Checks that a path can compute a layer.

    Args:
        impl: Path demanded, or "auto".
        encoding: The layer's encoding.
        content: Whether scores depend on the input.
        dropout: The layer's dropout.

    Returns:
        The path.

    Raises:
        UnknownNameError: There is no such path.
        ArgumentError: The path cannot compute such a layer.
    """
    if impl not in PATHS:
        raise UnknownNameError("impl", impl, PATHS)
    if content and impl not in ("auto", "content", "flex", "reference"):
        raise ArgumentError(must_be("impl", '"auto", "content", "flex" or "reference" with content', impl))
    if content and dropout and impl == "flex":
        raise ArgumentError(must_be("impl", '"auto", "content" or "reference" with content and dropout', impl))
    if not content and impl in ("content", "flex"):
        raise ArgumentError(must_be("impl", f"one of {', '.join(_FREE)} without content", impl))
    if dropout and impl in ("fourier", "separable", "shift"):
        raise ArgumentError(must_be("impl", '"auto", "dense" or "reference" with dropout', impl))
    if impl in ("separable", "shift") and not encoding.axis_additive:
        raise ArgumentError(
            must_be("impl", '"auto", "dense", "fourier" or "reference" unless the encoding is axis-additive', impl)
        )
    return impl


def is_window(encoding: Encoding, geometry: Geometry) -> bool:
    """Tells whether heads are the taps of a window, one for each, row by row.

    Args:
        encoding: The heads.
        geometry: The window.

    Returns:
        Whether they are; never for heads that can learn where they look.
    """
    taps = tuple(displacement for _, displacement in geometry.taps())
    return isinstance(encoding, Shift) and encoding.displacements == taps


_AXES = {1: "positions", 2: "rows, cols", 3: "depth, rows, cols"}


def image_shape(shape: Sequence[int], channels: int, dims: int) -> tuple[int, ...]:
    """Reads the shape of images.

    Args:
        shape: What the user gave.
        channels: Channels of the images.
        dims: Their spatial axes.

    Returns:
        The shape.

    Raises:
        ArgumentError: It is not as many whole numbers.
    """
    valid = isinstance(shape, Sequence) and not isinstance(shape, str) and len(shape) == dims + 2
    if not valid or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise ArgumentError(must_be("shape", f"{dims + 2} whole numbers (batch, {channels}, {_AXES[dims]})", shape))
    return tuple(shape)


def require_images(x: Tensor, channels: int, dims: int, dtype: torch.dtype) -> None:
    """Checks the shape and the dtype of images.

    Args:
        x: Images.
        channels: Their channels.
        dims: Their spatial axes.
        dtype: Dtype of the layer's weights; under autocast images may be of another floating-point dtype, float64
            apart.

    Raises:
        ShapeError: Wrong rank or number of channels.
        ArgumentError: Not a tensor, or of the wrong dtype.
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(must_be_a("x", "a tensor", x))
    if x.ndim != dims + 2 or x.shape[1] != channels:
        raise ShapeError(must_be("x", f"of shape (batch, {channels}, {dims} spatial sizes)", tuple(x.shape)))
    if x.dtype is not dtype and not _castable(x):
        raise ArgumentError(must_be("x", f"of the weights' dtype {dtype}", x.dtype))


def _castable(x: Tensor) -> bool:
    """Tells whether autocast takes images of this dtype."""
    autocast = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    return autocast and x.is_floating_point() and x.dtype != torch.float64
