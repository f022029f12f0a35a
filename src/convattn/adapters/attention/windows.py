"""Layouts of windows: a grid cut into rectangles, which may be shifted round the edges first, unfolded to the image."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from convattn.adapters.attention.layout import Layout, grouped_layout


def window_layout(
    grid: Sequence[int], window: Sequence[int], shift: Sequence[int] = (0, 0), *, roll_first: bool = False
) -> Layout:
    """Makes the layout of windows, row by row, whose queries are row by row as well.

    The grid is padded at its far ends to a whole number of windows. Shifting rolls it by `shift` towards the first row
    and column; `roll_first` tells that it is rolled before it is padded, and not after. Windows that hold pixels from
    two ends of the grid have a mask between them.

    Args:
        grid: Rows and columns.
        window: Rows and columns of a window.
        shift: By how much the windows are shifted; 0 for none.
        roll_first: Whether the shift comes before the padding.

    Returns:
        The layout.
    """
    rolled = [_rolled(*sizes, roll_first=roll_first) for sizes in zip(grid, window, shift, strict=True)]
    regions = [_regions(len(axis), *sizes) for axis, sizes in zip(rolled, zip(window, shift, strict=True), strict=True)]
    places, region = _cut(rolled, window), _cut(regions, window)
    same = (region[:, :, None] == region[:, None]).all(-1)
    name = "shifted windows" if any(shift) else "windows"
    words = f"windows of {window[0]} × {window[1]}" + (f", shifted by {shift[0]} and {shift[1]}" if any(shift) else "")
    return grouped_layout(
        (int(grid[0]), int(grid[1])),
        places,
        allowed=same if any(shift) else None,
        pattern=name,
        source=f"{words}, of the block that it runs in",
    )


def dilated_layout(grid: Sequence[int], cells: Sequence[int], source: str) -> Layout:
    """Makes the layout of sparse grids: a group holds `cells` positions spread evenly over the whole grid."""
    steps = [size // count for size, count in zip(grid, cells, strict=True)]
    groups = torch.cartesian_prod(*(torch.arange(step) for step in steps))
    inside = torch.cartesian_prod(*(torch.arange(count) * step for count, step in zip(cells, steps, strict=True)))
    places = groups[:, None] + inside[None]
    return grouped_layout((int(grid[0]), int(grid[1])), places, pattern="grid", source=source)


def _rolled(size: int, window: int, shift: int, *, roll_first: bool) -> Int[Tensor, " padded"]:
    """Lists the positions along one axis after padding and shifting."""
    padded = torch.arange(-(-size // window) * window)
    if roll_first:
        return torch.where(padded < size, (padded + shift) % size, padded)
    return (padded + shift) % len(padded)


def _regions(padded: int, window: int, shift: int) -> Int[Tensor, " padded"]:
    """Numbers the parts of one axis between which a mask lies."""
    place = torch.arange(padded)
    if not shift:
        return torch.zeros_like(place)
    return (place >= padded - window).long() + (place >= padded - shift).long()


def _cut(axes: Sequence[Int[Tensor, " _"]], window: Sequence[int]) -> Int[Tensor, "groups queries 2"]:
    """Cuts what two axes hold into windows."""
    rows, cols = (axis.view(-1, size) for axis, size in zip(axes, window, strict=True))
    shape = (len(rows), len(cols), *window)
    parts = rows[:, None, :, None].expand(shape), cols[None, :, None, :].expand(shape)
    return torch.stack(parts, -1).reshape(len(rows) * len(cols), -1, 2)
