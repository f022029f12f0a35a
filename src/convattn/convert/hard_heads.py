"""Heads that attend to one displacement each, the taps of a kernel; and the windows that a convolution can have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.convert.attention_map import AttentionMap, score_tables
from convattn.encodings import AxisAdditiveEncoding
from convattn.functional import find_shifts
from convattn.functional.shift import hard_leak
from convattn.grid import Axis, Displacements, Geometry, Window
from convattn.layers import RelativeAttention


class HardHeads(NamedTuple):
    """Heads that attend to one displacement each; where it leads beyond the keys, to the nearest key."""

    # From the query to the pixel, one integer per axis for each head
    displacements: Displacements
    leak: float  # Largest share of attention at other pixels
    any_size: bool  # Whether this holds for images of any size, or only for the size examined

    def left_out(self, window: Window) -> float:
        """Returns 0 if the displacements of all heads are taps of a window, else 1."""
        along = zip(window.taps, zip(*self.displacements, strict=True), strict=True)
        return float(not all(set(pixels) <= set(taps) for taps, pixels in along))

    def trimmed(self, _mass: float) -> list[range]:
        """Returns the displacements along each axis from the lowest to the highest, which leave nothing outside."""
        along = zip(*self.displacements, strict=True)
        return [range(min(pixels), max(pixels) + 1) for pixels in along]

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns the kernel: each head's matrix at its tap, summed where heads share a tap."""
        kernel = maps.new_zeros(*maps.shape[1:], *map(len, window.taps))
        for displacement, matrix in zip(self.displacements, maps, strict=True):
            places = zip(displacement, window.taps, strict=True)
            kernel[(..., *(taps.index(d) for d, taps in places))] += matrix
        return kernel

    def seen(self, axes: tuple[Axis, ...]) -> bool:
        """Tells whether each displacement leads from some query to a key."""
        along = zip(self.trimmed(0), axes, strict=True)
        return all(axis.lowest <= box[0] and box[-1] <= axis.highest for box, axis in along)

    def are_padded_by(self, geometry: Geometry, mode: str) -> bool:
        """Tells whether padding in `mode` holds the same beyond the keys as the nearest key, where heads lead there."""
        beyond = []  # The padding on the sides where a head of some query leads beyond the keys
        along = zip(self.trimmed(0), geometry.window, geometry.padding, strict=True)
        for box, taps, (before, after) in along:
            if box[0] < taps[0]:
                beyond.append(before)
            if box[-1] > taps[-1]:
                beyond.append(after)
        if not beyond:
            return True
        if any(pixels < 0 for pair in geometry.padding for pixels in pair):
            return False
        if mode == "replicate":
            return not geometry.spreads
        return mode == "zeros" and min(beyond) > 0


def find_hard_heads(
    layer: RelativeAttention, axes: tuple[Axis, ...], mode: str
) -> HardHeads | None:
    """Returns the heads if all are hard and padding in `mode` gives the same as attention beyond the keys, else None.

    Displacements that the encoding itself determines hold for images of every size. Otherwise, or if one of them leads
    to no key at these sizes, the attention is examined, and the result holds for these sizes only.
    """
    heads = fixed_heads(layer)
    if heads is None or not heads.seen(axes):
        if not isinstance(layer.encoding, AxisAdditiveEncoding):
            return None
        with torch.no_grad():
            tables = [table for table, _ in score_tables(layer, axes)]
        shifts = find_shifts(tables, axes, hard_leak(layer.like.dtype))
        if shifts is None:
            return None
        heads = HardHeads(shifts.offsets, shifts.leak, any_size=False)
    return heads if heads.are_padded_by(layer.geometry, mode) else None


def fixed_heads(layer: RelativeAttention) -> HardHeads | None:
    """Returns heads that are hard for images of any size, as the encoding alone shows, or None.

    The leak must stay below the rounding of the weights' dtype.
    """
    hard = layer.encoding.hard_displacements()
    if hard is None or not hard[1] <= hard_leak(layer.like.dtype):
        return None
    return HardHeads(*hard, any_size=True)


# --- Windows ----------------------------------------------------------------------------------------------------------


def unit_steps(geometry: Geometry, spatial: Sequence[int]) -> tuple[Axis, ...]:
    """Returns a layer's axes for images of given sizes, with a query at every pixel, whatever its stride."""
    return replace(geometry, stride=(1,) * len(geometry.stride)).axes(spatial)


def own_window(geometry: Geometry) -> Window | None:
    """Returns the layer's own window, or None if no torch convolution has it with the layer's padding."""
    taps = geometry.window
    if not geometry.spreads:
        plain = Window.fit(geometry, taps)
        if plain is not None:
            return plain
        same = Geometry.parse(
            len(taps),
            kernel_size=geometry.kernel_size,
            dilation=geometry.dilation,
            padding="same",
        )
        if replace(geometry, padding_mode="zeros") == same:
            return Window(taps, "same")
    return Window.fit(geometry, taps, transposed=True)


def find_window(
    heads: HardHeads | AttentionMap,
    geometry: Geometry,
    kernel_size: tuple[int, ...] | None,
    mass: float,
) -> Window | None:
    """Chooses a window for heads; None if no torch convolution has one.

    Where `kernel_size` is None this is the layer's own window if it leaves at most `mass` of each head outside, else
    the smallest one without gaps that does. Else it has as many taps, or is the layer's own window, which is smaller,
    if that leaves nothing outside.
    """
    own = own_window(geometry)
    if kernel_size is None:
        if own is not None and heads.left_out(own) <= mass:
            return own
        return box_window(geometry, heads.trimmed(mass))
    windows = sized_windows(geometry, kernel_size)
    is_smaller = all(map(int.__le__, geometry.kernel_size, kernel_size))
    if own is not None and is_smaller and not heads.left_out(own):
        windows.append(own)
    return min(windows, key=heads.left_out, default=None)


def box_window(geometry: Geometry, box: Sequence[range]) -> Window | None:
    """Returns the smallest window without gaps that holds a box at least, and keeps the layer's output size.

    torch pads both sides equally, so it may be larger than needed on one side. None means that no torch convolution has
    the layer's stride and input dilation.
    """
    taps = []
    for axis, inner in enumerate(box):
        holding: list[int] = []
        span = inner[-1] - inner[0]
        while not holding:
            starts = _starts(geometry, axis, span)
            holding = [first for first in starts if first <= inner[0] and inner[-1] <= first + span]
            span += 1
        taps.append(range(holding[0], holding[0] + span))
    return Window.fit(geometry, tuple(taps), transposed=geometry.spreads)


def sized_windows(geometry: Geometry, kernel_size: tuple[int, ...]) -> list[Window]:
    """Returns the windows of a given size that keep the layer's output size, with its dilation and without it."""
    windows = []
    if geometry.kernel_size == kernel_size:
        windows.append(own_window(geometry))
    for steps in dict.fromkeys([geometry.dilation, (1,) * len(kernel_size)]):
        taps: list[range] = []
        for axis, (step, count) in enumerate(zip(steps, kernel_size, strict=True)):
            starts = _starts(geometry, axis, step * (count - 1))[:1]
            taps += [range(first, first + step * count, step) for first in starts]
        if len(taps) == len(kernel_size):
            windows.append(Window.fit(geometry, tuple(taps), transposed=geometry.spreads))
    return [window for window in windows if window is not None]


def _starts(geometry: Geometry, axis: int, span: int) -> list[int]:
    """Returns the first displacements of windows of a given span that keep the output's size along an axis."""
    pixel = geometry.first_pixel(axis)
    starts = []
    for extra in range(geometry.input_dilation[axis]):
        start, odd = divmod(geometry.sum_of_ends(axis) + extra - span, 2)
        fits = start + span >= pixel if geometry.spreads else start <= pixel
        if not odd and fits:
            starts.append(start)
    return starts
