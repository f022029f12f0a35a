"""The window of a convolution that replaces an attention layer, and the torch arguments that give it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from convattn.grid import Geometry


@dataclass(frozen=True)
class Window:
    """A convolution's taps, seen from the attention layer's queries, and its arguments."""

    first: tuple[int, ...]  # Displacement of the first tap from the query, in pixels per axis
    taps: tuple[int, ...]  # Number of taps per axis
    steps: tuple[int, ...]  # Step from one tap to the next, in pixels per axis
    padding: tuple[int, ...] | Literal["same"]  # Argument of torch's convolution
    output_padding: tuple[int, ...] | None  # Argument of torch's transposed convolution; None for a plain one

    @property
    def last(self) -> tuple[int, ...]:
        """Displacement of the last tap."""
        return tuple(low + (n - 1) * step for low, n, step in zip(self.first, self.taps, self.steps, strict=True))

    @property
    def transposed(self) -> bool:
        """Whether it takes a transposed convolution."""
        return self.output_padding is not None

    def within(self, geometry: Geometry) -> bool:
        """Tells whether no tap leads out of the keys, from any query of any image."""
        return all(
            low >= -anchor and high <= d * (k - 1) - anchor
            for low, high, anchor, d, k in zip(
                self.first, self.last, geometry.anchor, geometry.dilation, geometry.kernel_size, strict=True
            )
        )


def own_window(geometry: Geometry) -> Window | None:
    """Returns the layer's own window, or None if no torch convolution has it with the layer's padding."""
    first = tuple(-anchor for anchor in geometry.anchor)
    taps, steps, pads = geometry.kernel_size, geometry.dilation, geometry.padding
    totals = [d * (k - 1) for d, k in zip(steps, taps, strict=True)]
    if set(geometry.input_dilation) == {1}:
        if all(before == after >= 0 for before, after in pads):
            return Window(first, taps, steps, tuple(before for before, _ in pads), None)
        same = [(total // 2, total - total // 2) for total in totals]
        if set(geometry.stride) == {1} and list(pads) == same:
            return Window(first, taps, steps, "same", None)
    if not _scatters(geometry):
        return None
    padding = tuple(total - before for total, (before, _) in zip(totals, pads, strict=True))
    extra = tuple(after - before for before, after in pads)
    fits = all(
        p >= 0 and 0 <= e < max(r, d) for p, e, r, d in zip(padding, extra, geometry.input_dilation, steps, strict=True)
    )
    return Window(first, taps, steps, padding, extra) if fits else None


def box_window(geometry: Geometry, low: Sequence[int], high: Sequence[int]) -> Window | None:
    """Returns the smallest window without gaps that contains the displacements and keeps the layer's output size.

    `low` and `high` are the smallest and largest displacements per axis. torch pads both sides equally, so the window
    may be larger than needed on one side. None means that no torch convolution has the layer's stride and input
    dilation.
    """
    transposed = set(geometry.input_dilation) != {1}
    if transposed and not _scatters(geometry):
        return None
    pairs = []
    for axis, (start, stop) in enumerate(zip(low, high, strict=True)):
        middle, reach = _middle(geometry, axis), _reach(geometry, axis)
        if transposed:
            end = max(stop, reach, middle - start)
            begin = min(start, middle + geometry.input_dilation[axis] - 1 - end)
        else:
            begin = min(start, middle - stop, reach)
            end = middle - begin
        pairs.append((begin, end - begin + 1))
    return _window(geometry, pairs, (1,) * len(pairs), transposed=transposed)


def sized_windows(geometry: Geometry, kernel_size: tuple[int, ...]) -> list[Window]:
    """Returns the windows of a given size that keep the layer's output size, with its dilation and without it."""
    transposed = set(geometry.input_dilation) != {1}
    if transposed and not _scatters(geometry):
        return []
    found = [window for window in [own_window(geometry)] if window is not None and window.taps == kernel_size]
    for steps in dict.fromkeys([geometry.dilation, (1,) * len(kernel_size)]):
        starts = [
            _start(geometry, axis, steps[axis] * (taps - 1), transposed=transposed)
            for axis, taps in enumerate(kernel_size)
        ]
        if None not in starts:
            pairs = [(start, taps) for start, taps in zip(starts, kernel_size, strict=True) if start is not None]
            found.append(_window(geometry, pairs, steps, transposed=transposed))
    return found


def _scatters(geometry: Geometry) -> bool:
    """Tells whether a transposed convolution can have the layer's stride and padding mode."""
    padded = any(pixels > 0 for pair in geometry.padding for pixels in pair)
    return set(geometry.stride) == {1} and (geometry.padding_mode == "zeros" or not padded)


def _middle(geometry: Geometry, axis: int) -> int:
    """Returns the sum of first and last displacement with which a plain convolution keeps the output size."""
    (before, after), anchor = geometry.padding[axis], geometry.anchor[axis]
    return before - after + geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - 2 * anchor


def _reach(geometry: Geometry, axis: int) -> int:
    """Returns the displacement from the first query to the first input pixel, where an unpadded window begins."""
    return geometry.padding[axis][0] - geometry.anchor[axis]


def _start(geometry: Geometry, axis: int, span: int, *, transposed: bool) -> int | None:
    """Returns the first displacement of a window of a given span, or None if there is no such window."""
    for extra in range(geometry.input_dilation[axis] if transposed else 1):
        start, odd = divmod(_middle(geometry, axis) + extra - span, 2)
        fits = start + span >= _reach(geometry, axis) if transposed else start <= _reach(geometry, axis)
        if not odd and fits:
            return start
    return None


def _window(
    geometry: Geometry, pairs: Sequence[tuple[int, int]], steps: tuple[int, ...], *, transposed: bool
) -> Window:
    """Makes the window with given (first displacement, taps) per axis, and the padding that puts it there."""
    first, taps = tuple(low for low, _ in pairs), tuple(n for _, n in pairs)
    window = Window(first, taps, steps, (), None)
    reach = [_reach(geometry, axis) for axis in range(len(pairs))]
    if not transposed:
        return replace(window, padding=tuple(r - low for r, low in zip(reach, first, strict=True)))
    ends = list(zip(first, window.last, strict=True))
    padding = tuple(high - r for r, (_, high) in zip(reach, ends, strict=True))
    extra = tuple(low + high - _middle(geometry, axis) for axis, (low, high) in enumerate(ends))
    return replace(window, padding=padding, output_padding=extra)
