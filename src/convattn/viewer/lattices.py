"""Keys of a layout as cells of a regular lattice, which the page draws as a map."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from convattn.adapters.attention import Layout
from convattn.errors import UnsupportedModelError

NOWHERE = torch.iinfo(torch.int32).min
"""Index of a query that is padding, cropped away afterwards."""

_SAME = 1e-6
"""Positions nearer than this are one; they are small fractions of a cell."""


class Lattice(NamedTuple):
    """Where the keys of a layout lie."""

    grid: tuple[int, int]  # Rows and columns
    first: tuple[float, float]  # Position of cell (0, 0), in steps of the queries' grid
    step: tuple[float, float]  # From one cell to the next
    keys: Int[Tensor, "groups keys"]  # Flat index of each key; −1 − n for prefix token n


def key_lattice(layout: Layout) -> Lattice:
    """Finds the lattice of a layout's keys; positions that are on none raise UnsupportedModelError."""
    placed = layout.keys[:, ~layout.key_prefix]
    axes = [_axis(placed[..., axis].flatten()) for axis in range(2)]
    (rows, first_row, row_step, row), (cols, first_col, col_step, col) = axes
    keys = torch.empty(layout.keys.shape[:2], dtype=torch.int32)
    keys[:, ~layout.key_prefix] = (row * cols + col).view(placed.shape[:2]).int()
    prefix = int(layout.key_prefix.sum())
    keys[:, layout.key_prefix] = -1 - torch.arange(prefix, dtype=torch.int32)
    return Lattice((rows, cols), (first_row, first_col), (row_step, col_step), keys)


def query_indices(layout: Layout) -> Int[Tensor, "groups queries"]:
    """Returns where the queries lie, as the page reads it."""
    return torch.where(layout.queries < NOWHERE, NOWHERE, layout.queries).int()


def _axis(positions: Float[Tensor, " keys"]) -> tuple[int, float, float, Tensor]:
    """Returns the number of cells along an axis, the first, the step, and the cell of each position."""
    if not len(positions):
        return 0, 0.0, 1.0, positions.long()
    places = positions.unique()  # sorted
    gaps = places.diff()
    gaps = gaps[gaps > _SAME]
    step = gaps.min().item() if len(gaps) else 1.0
    first = places[0].item()
    exact = (positions - first) / step
    cells = exact.round()
    if not bool(((exact - cells).abs() < 1e-3).all()):
        raise UnsupportedModelError("its keys are not on a regular lattice, which the viewer needs")
    return int(cells.max()) + 1, first, step, cells.long()
