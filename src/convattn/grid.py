"""Grids of queries and keys in n dimensions: positions, sizes, padding and displacement tables.

Everything here is integers and index tensors. The keys are the pixels of the padded image. A query stands at the middle
of the window of a convolution with the same arguments. A displacement is δ = key − query, in pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Integral
from typing import Any, Literal, TypeAlias, TypeGuard

import torch
from jaxtyping import Shaped
from torch import Tensor

from convattn.errors import ArgumentError, ShapeError, must_be, require, require_name

PADDING_MODES = ("circular", "reflect", "replicate", "zeros")
"""What is outside the image, by the names of `torch.nn.Conv2d`."""


PerAxis: TypeAlias = int | Sequence[int]
"""One integer for all axes, or one per axis."""

Displacements: TypeAlias = tuple[tuple[int, ...], ...]
"""Several displacements, each one integer per axis, in pixels."""

Padding: TypeAlias = int | str | Sequence[int] | Sequence[tuple[int, int]]
"""As in `torch.nn.Conv2d`, and pairs (before, after) per axis."""


@dataclass(frozen=True)
class Axis:
    """Queries and keys along one axis.

    Example:
        >>> axis = Axis(range(1, 6, 2), 7)
        >>> axis.lowest, axis.highest
        (-5, 5)
    """

    queries: range  # Positions of the queries, in pixels of the key grid
    keys: int  # Number of keys; they stand at 0, 1, …, keys − 1

    @property
    def lowest(self) -> int:
        """Smallest displacement, from the last query to the first key."""
        return -self.queries[-1]

    @property
    def highest(self) -> int:
        """Largest displacement, from the first query to the last key."""
        return self.keys - 1 - self.queries[0]

    @property
    def span(self) -> int:
        """Number of displacements."""
        return self.highest - self.lowest + 1

    @property
    def mirrored(self) -> "Axis":
        """The same axis counted from its other end, so that displacements change sign."""
        first = self.keys - 1 + self.lowest
        return Axis(range(first, self.highest + 1, self.queries.step), self.keys)

    def displacements(
        self, device: torch.device | None = None, dtype: torch.dtype = torch.int64
    ) -> Shaped[Tensor, " displacements"]:
        """Returns every displacement from the lowest to the highest."""
        return torch.arange(self.lowest, self.highest + 1, device=device, dtype=dtype)


def least_pixels(mode: str, padding: int) -> int:
    """Returns how many pixels an image must have to be padded by so many; 0 where its size does not matter."""
    return {"reflect": padding + 1, "circular": padding}.get(mode, 0)


def is_whole(value: object) -> TypeGuard[int]:
    """Returns whether a value is an integer, of Python or of numpy; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def axis_lists(name: str, value: object, dims: int, *, least: int) -> tuple[int, ...]:
    """Returns one integer per axis, from that or from one for all axes; raises ArgumentError if one is below `least`.

    Example:
        >>> axis_lists("stride", 2, 3, least=1)
        (2, 2, 2)
    """
    values: Any = value
    if isinstance(value, Integral):
        values = (value,) * dims
    is_right = isinstance(values, Sequence) and len(values) == dims
    is_right = is_right and all(is_whole(number) and number >= least for number in values)
    require(is_right, name, f"an integer of at least {least}, or {dims} of them", value)
    return tuple(map(int, values))


def axis_pairs(name: str, value: Any, expected: str) -> tuple[tuple[int, int], ...]:
    """Returns a pair of integers for each axis; raises ArgumentError, which says what is expected, for others."""
    pairs = [value] if not isinstance(value, Sequence) else value
    are_pairs = all(
        isinstance(p, Sequence) and len(p) == 2 and all(map(is_whole, p)) for p in pairs
    )
    require(are_pairs, name, expected, value)
    return tuple((int(first), int(second)) for first, second in pairs)


def whole_number(name: str, value: object, *, least: int = 1) -> int:
    """Returns an argument if it is an integer of at least `least`; otherwise raises ArgumentError, which names it."""
    if not is_whole(value) or value < least:
        raise ArgumentError(must_be(name, f"an integer of at least {least}", value))
    return int(value)


@dataclass(frozen=True)
class Geometry:
    """Where queries stand on the padded key grid: the size arithmetic of `torch.nn.ConvNd` and `ConvTransposeNd`.

    The window (`kernel_size` and `dilation`) gives the number of queries and their positions. It does not limit which
    keys a query attends to. With the default window of one pixel and no padding, queries and keys are the same pixels.
    """

    kernel_size: tuple[int, ...]  # Size of the window, in taps per axis
    stride: tuple[int, ...]  # Step from one query to the next, in pixels per axis
    # Pixels added (before, after) per axis; negative ones are cut off
    padding: tuple[tuple[int, int], ...]
    padding_mode: str  # One of `PADDING_MODES`
    dilation: tuple[int, ...]  # Step from one tap of the window to the next, in pixels per axis
    # Step between input pixels on the key grid; the gaps hold zeros
    input_dilation: tuple[int, ...]

    @classmethod
    def parse(
        cls,
        dims: int,
        *,
        kernel_size: PerAxis = 1,
        stride: PerAxis = 1,
        padding: Padding = 0,
        padding_mode: str = "zeros",
        dilation: PerAxis = 1,
        input_dilation: PerAxis = 1,
    ) -> "Geometry":
        """Makes the geometry of `dims` axes from the arguments of a convolution as users write them.

        `padding` is an integer, one per axis, a pair (before, after) per axis, "valid" or "same"; the other numbers are
        integers ≥ 1, one for all axes or one per axis. Raises ArgumentError if a value is out of range or "same" is
        combined with a stride, and UnknownNameError if the padding mode is unknown.
        """
        kernel = axis_lists("kernel_size", kernel_size, dims, least=1)
        steps = axis_lists("stride", stride, dims, least=1)
        spread = axis_lists("dilation", dilation, dims, least=1)
        require_name("padding_mode", padding_mode, PADDING_MODES)
        if isinstance(padding, str) and padding == "same":
            require(set(steps) == {1}, "stride", 'all 1 with padding="same"', stride)
        pairs = tuple(_padding_pairs(padding, dims, kernel, spread))
        gaps = axis_lists("input_dilation", input_dilation, dims, least=1)
        return cls(kernel, steps, pairs, padding_mode, spread, gaps)

    @property
    def window(self) -> tuple[range, ...]:
        """Displacements of the window's taps from the query, the middle tap; left of the centre for even windows."""
        along = []
        for size, step in zip(self.kernel_size, self.dilation, strict=True):
            first = -step * ((size - 1) // 2)
            along.append(range(first, first + step * size, step))
        return tuple(along)

    @property
    def spreads(self) -> bool:
        """Whether zeros lie between the input pixels on the key grid, as in a transposed convolution."""
        return set(self.input_dilation) != {1}

    @property
    def keeps_grid(self) -> bool:
        """Whether the keys are the image's own pixels: no padding and no input dilation."""
        return all(pair == (0, 0) for pair in self.padding) and not self.spreads

    def first_pixel(self, number: int) -> int:
        """Returns the displacement along an axis from the first query to the image's first pixel."""
        return self.padding[number][0] + self.window[number][0]

    def sum_of_ends(self, number: int) -> int:
        """Returns the sum of first and last displacement with which a plain convolution keeps the output's size."""
        before, after = self.padding[number]
        taps = self.window[number]
        return before - after + taps[0] + taps[-1]

    def axes(self, spatial: Sequence[int]) -> tuple[Axis, ...]:
        """Returns where queries and keys stand along each axis of an image of given sizes, in pixels.

        The output has `len(axis.queries)` pixels along an axis. Raises ShapeError if the padded image is smaller than
        the dilated window, or the image too small for its padding.
        """
        return tuple(self._axis(number, size) for number, size in enumerate(spatial))

    def require_padding(self, number: int, pixels: int) -> None:
        """Raises ShapeError if `pixels`, the size of the dilated image along an axis, is less than padding repeats."""
        most = max(self.padding[number])
        needed = least_pixels(self.padding_mode, most)
        if pixels < needed:
            dilated = " after its dilation" if self.input_dilation[number] > 1 else ""
            raise ShapeError(
                f"x must have at least {needed} pixels along axis {number} for {self.padding_mode} padding of {most},"
                f" but has {pixels}{dilated}"
            )

    def _axis(self, number: int, size: int) -> Axis:
        dilated = (size - 1) * self.input_dilation[number] + 1
        keys = dilated + sum(self.padding[number])
        taps = self.window[number]
        window = taps[-1] - taps[0] + 1
        if size < 1 or keys < window:
            padded = ""
            if keys != size:
                padded = f" ({keys} after padding)"
            raise ShapeError(
                f"x must have at least {window} padded pixels along axis {number}, but has {size}{padded}"
            )
        self.require_padding(number, dilated)
        count = (keys - window) // self.stride[number] + 1
        step = self.stride[number]
        last = step * (count - 1) - taps[0]
        return Axis(range(-taps[0], last + 1, step), keys)

    def taps(self) -> Displacements:
        """Returns the displacement of each tap of the window from the query, in pixels and in row-major order."""
        return tuple(product(*self.window))


@dataclass(frozen=True)
class Window:
    """Taps as the queries see them, and the arguments with which a convolution of torch has its taps there.

    The layer's geometry says where queries and pixels stand. Along an axis, let the first tap be at displacement `low`
    from the query and the last one at `high`, and the image's first pixel at `start` from the first query. A plain
    convolution with padding p begins p pixels before the image, so p = start − low. A transposed one ends there, turned
    round, so p = high − start. The number of outputs is right where low + high is what `Geometry.sum_of_ends` says; a
    transposed convolution makes up a difference by its output padding.

    Example:
        >>> geometry = Geometry.parse(1, kernel_size=3, padding=1)
        >>> Window.fit(geometry, (range(-2, 3),)).padding
        (2,)
    """

    taps: tuple[range, ...]  # Displacements of the taps from the query along each axis, in pixels
    padding: tuple[int, ...] | Literal["same"]  # Argument of torch's convolution
    # Argument of torch's transposed convolution; None for a plain one
    output_padding: tuple[int, ...] | None = None

    @classmethod
    def fit(
        cls,
        geometry: Geometry,
        taps: tuple[range, ...],
        *,
        transposed: bool = False,
    ) -> "Window | None":
        """Finds the arguments that put the taps there and keep the layer's number of outputs.

        Args:
            geometry: The layer's window, stride, padding and input dilation.
            taps: Displacements of the taps from the query along each axis, in pixels.
            transposed: Whether the convolution is a transposed one.

        Returns:
            The window; None if torch has no such convolution. Whether it pads with what the layer pads with is for the
            caller to see, except that a transposed one pads with zeros.
        """
        if transposed:
            padded = any(pixels > 0 for pair in geometry.padding for pixels in pair)
            if set(geometry.stride) != {1} or (padded and geometry.padding_mode != "zeros"):
                return None
        elif geometry.spreads:
            return None
        padding = []
        extra = []
        for number, along in enumerate(taps):
            start = geometry.first_pixel(number)
            more = along[0] + along[-1] - geometry.sum_of_ends(number)
            if transposed:
                pad = along[-1] - start
                fits = 0 <= more < max(geometry.input_dilation[number], along.step)
            else:
                pad = start - along[0]
                fits = more == 0
            if pad < 0 or not fits:
                return None
            padding.append(pad)
            extra.append(more)
        output_padding = None
        if transposed:
            output_padding = tuple(extra)
        return cls(taps, tuple(padding), output_padding)

    def within(self, geometry: Geometry) -> bool:
        """Tells whether no tap leads out of the keys, from any query of any image."""
        along = zip(self.taps, geometry.window, strict=True)
        return all(own[0] <= taps[0] and taps[-1] <= own[-1] for taps, own in along)


def _padding_pairs(
    padding: Padding, dims: int, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Yields (before, after) per axis; pairs may be negative, integers may not, as in torch."""
    if isinstance(padding, str):
        require_name("padding", padding, ("same", "valid"))
        for size, step in zip(kernel, dilation, strict=True):
            total = 0
            if padding == "same":
                total = step * (size - 1)
            yield total // 2, total - total // 2
    elif isinstance(padding, Sequence) and any(isinstance(p, Sequence) for p in padding):
        expected = f"{dims} pairs (before, after) of integers"
        require(len(padding) == dims, "padding", expected, padding)
        yield from axis_pairs("padding", padding, expected)
    else:
        yield from ((p, p) for p in axis_lists("padding", padding, dims, least=0))
