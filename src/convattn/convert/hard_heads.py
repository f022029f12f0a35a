"""Heads that attend to one displacement each, the taps of a kernel; and the windows that a convolution can have."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings import AxisAdditiveEncoding, Encoding
from convattn.functional import find_shifts
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Axis, Geometry, Window
from convattn.layers import RelativeAttention

_HARD = 1 / 8
"""Attention that a hard head may give to other pixels, as a share of the eps of the weights' dtype."""


class HardHeads(NamedTuple):
    """Heads that attend to one displacement each; where it leads beyond the keys, to the nearest key."""

    # From the query to the pixel, one integer per axis for each head
    displacements: tuple[tuple[int, ...], ...]
    leak: float  # Largest share of attention at other pixels
    any_size: bool  # Whether this holds for images of any size, or only for the size examined

    def window(self, geometry: Geometry, taps: tuple[int, ...] | None) -> Window | None:
        """Chooses a window that contains the displacements of all heads; None if no torch convolution has one.

        Where `taps` is None this is the layer's own window if it contains them, else the smallest one without gaps.
        Else it has as many taps, or is the layer's own window, which is smaller.
        """
        windows = [] if taps is None else sized_windows(geometry, taps)
        own = own_window(geometry)
        if own is not None and (taps is None or all(map(int.__le__, own.taps, taps))):
            windows.append(own)
        for window in windows:
            if self._are_taps_of(window):
                return window
        if taps is not None:
            return None
        along = list(zip(*self.displacements, strict=True))
        low = [min(one) for one in along]
        high = [max(one) for one in along]
        return box_window(geometry, low, high)

    def kernel(
        self, window: Window, maps: Float[Tensor, "heads outputs channels"]
    ) -> Float[Tensor, "outputs channels *taps"]:
        """Returns the kernel: each head's matrix at its tap, summed where heads share a tap."""
        kernel = maps.new_zeros(*maps.shape[1:], *window.taps)
        for displacement, matrix in zip(self.displacements, maps, strict=True):
            along = zip(displacement, window.first, window.steps, strict=True)
            tap = [(d - low) // step for d, low, step in along]
            kernel[(..., *tap)] += matrix
        return kernel

    def seen(self, axes: tuple[Axis, ...]) -> bool:
        """Tells whether each displacement leads from some query to a key."""
        for along, axis in zip(zip(*self.displacements, strict=True), axes, strict=True):
            if min(along) < axis.lowest or max(along) > axis.highest:
                return False
        return True

    def _are_taps_of(self, window: Window) -> bool:
        for displacement in self.displacements:
            along = zip(displacement, window.first, window.last, window.steps, strict=True)
            for d, first, last, step in along:
                if not first <= d <= last or (d - first) % step:
                    return False
        return True

    def are_padded_by(self, geometry: Geometry, mode: str) -> bool:
        """Tells whether padding in `mode` holds the same beyond the keys as the nearest key, where heads lead there."""
        sides = self._sides_beyond_the_keys(geometry)
        if not sides:
            return True
        if any(pixels < 0 for pair in geometry.padding for pixels in pair):
            return False
        if mode == "replicate":
            return not geometry.spreads
        return mode == "zeros" and all(geometry.padding[axis][end] > 0 for axis, end in sides)

    def _sides_beyond_the_keys(self, geometry: Geometry) -> list[tuple[int, int]]:
        """Lists (axis, 0 before or 1 after) where a head of some query leads beyond the keys."""
        sides = []
        for axis, along in enumerate(zip(*self.displacements, strict=True)):
            anchor = geometry.anchor[axis]
            last = geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - anchor
            if min(along) < -anchor:
                sides.append((axis, 0))
            if max(along) > last:
                sides.append((axis, 1))
        return sides


def find_hard_heads(
    layer: RelativeAttention, axes: tuple[Axis, ...], mode: str
) -> HardHeads | None:
    """Returns the heads if all are hard and padding in `mode` gives the same as attention beyond the keys, else None.

    Displacements that the encoding itself determines hold for images of every size. Otherwise, or if one of them leads
    to no key at these sizes, the attention is examined, and the result holds for these sizes only.
    """
    weight = layer.like
    heads = fixed_heads(layer.encoding, weight.dtype)
    if heads is None or not heads.seen(axes):
        heads = _heads_at_one_size(layer.encoding, axes, weight)
    if heads is None or not heads.are_padded_by(layer.geometry, mode):
        return None
    return heads


def _heads_at_one_size(
    encoding: Encoding, axes: tuple[Axis, ...], weight: Tensor
) -> HardHeads | None:
    if not isinstance(encoding, AxisAdditiveEncoding):
        return None
    with torch.no_grad(), without_autocast(weight.device):
        tables = encoding.axis_tables(axes, torch.float64, weight.device)
    shifts = find_shifts(tables, axes, torch.finfo(weight.dtype).eps * _HARD)
    return None if shifts is None else HardHeads(shifts.offsets, shifts.leak, any_size=False)


def fixed_heads(encoding: Encoding, dtype: torch.dtype) -> HardHeads | None:
    """Returns heads that are hard for images of any size, as the encoding alone shows, or None.

    The leak must stay below the rounding of `dtype`, that of the weights.
    """
    hard = encoding.hard_displacements()
    if hard is None or not hard[1] <= torch.finfo(dtype).eps * _HARD:
        return None
    return HardHeads(*hard, any_size=True)


# --- Windows ----------------------------------------------------------------------------------------------------------


def unit_steps(geometry: Geometry, spatial: Sequence[int]) -> tuple[Axis, ...]:
    """Returns a layer's axes for images of given sizes, with a query at every pixel, whatever its stride."""
    axes = []
    for number, axis in enumerate(geometry.axes(spatial)):
        span = geometry.dilation[number] * (geometry.kernel_size[number] - 1)
        first = axis.queries[0]
        axes.append(Axis(range(first, first + axis.keys - span), axis.keys))
    return tuple(axes)


def own_window(geometry: Geometry) -> Window | None:
    """Returns the layer's own window, or None if no torch convolution has it with the layer's padding."""
    first = tuple(-anchor for anchor in geometry.anchor)
    taps = geometry.kernel_size
    steps = geometry.dilation
    if not geometry.spreads:
        plain = Window.fit(geometry, first, taps, steps)
        if plain is not None:
            return plain
        spans = [step * (size - 1) for step, size in zip(steps, taps, strict=True)]
        same = [(span // 2, span - span // 2) for span in spans]
        if set(geometry.stride) == {1} and list(geometry.padding) == same:
            return Window(first, taps, steps, "same")
    return Window.fit(geometry, first, taps, steps, transposed=True)


def box_window(geometry: Geometry, low: Sequence[int], high: Sequence[int]) -> Window | None:
    """Returns the smallest window without gaps, from `low` to `high` at least, that keeps the layer's output size.

    torch pads both sides equally, so it may be larger than needed on one side. None means that no torch convolution has
    the layer's stride and input dilation.
    """
    first = []
    taps = []
    for axis, (start, stop) in enumerate(zip(low, high, strict=True)):
        ends = geometry.sum_of_ends(axis)
        pixel = geometry.first_pixel(axis)
        if geometry.spreads:
            end = max(stop, pixel, ends - start)
            begin = min(start, ends + geometry.input_dilation[axis] - 1 - end)
        else:
            begin = min(start, ends - stop, pixel)
            end = ends - begin
        first.append(begin)
        taps.append(end - begin + 1)
    steps = (1,) * len(taps)
    return Window.fit(geometry, tuple(first), tuple(taps), steps, transposed=geometry.spreads)


def sized_windows(geometry: Geometry, kernel_size: tuple[int, ...]) -> list[Window]:
    """Returns the windows of a given size that keep the layer's output size, with its dilation and without it."""
    windows = []
    own = own_window(geometry)
    if own is not None and own.taps == kernel_size:
        windows.append(own)
    for steps in dict.fromkeys([geometry.dilation, (1,) * len(kernel_size)]):
        starts = []
        for axis, (step, taps) in enumerate(zip(steps, kernel_size, strict=True)):
            start = _start(geometry, axis, step * (taps - 1))
            if start is not None:
                starts.append(start)
        if len(starts) < len(kernel_size):
            continue
        window = Window.fit(
            geometry, tuple(starts), kernel_size, steps, transposed=geometry.spreads
        )
        if window is not None:
            windows.append(window)
    return windows


def _start(geometry: Geometry, axis: int, span: int) -> int | None:
    """Returns the first displacement of a window of a given span, or None if there is no such window."""
    pixel = geometry.first_pixel(axis)
    for extra in range(geometry.input_dilation[axis]):
        start, odd = divmod(geometry.sum_of_ends(axis) + extra - span, 2)
        fits = start + span >= pixel if geometry.spreads else start <= pixel
        if not odd and fits:
            return start
    return None
