"""The windows that a convolution of torch can have in place of an attention layer."""

from collections.abc import Sequence

from convattn.grid import Axis, Geometry, Window


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
