"""Lattices on the image: where the queries and the keys of a layer lie."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from convattn.errors import UnsupportedModelError
from convattn.heads.layout import Layout


@dataclass(frozen=True)
class Place:
    """A lattice on the image: its cell (i, j) has its centre at first + step · (i, j), in pixels."""

    first: tuple[float, float]  # Centre of cell (0, 0)
    step: tuple[float, float]  # From one cell to the next

    @classmethod
    def covering(cls, image: Sequence[int], grid: Sequence[int]) -> "Place":
        """Returns the lattice whose cells divide the image evenly, as patches do."""
        step = _pair(size / cells for size, cells in zip(image, grid, strict=True))
        return cls(_pair((one - 1) / 2 for one in step), step)

    def among(self, first: Sequence[float], step: Sequence[float]) -> "Place":
        """Returns the lattice whose cell (i, j) is at first + step · (i, j) of this one's cells."""
        at = (a + b * c for a, b, c in zip(self.first, self.step, first, strict=True))
        return Place(_pair(at), _pair(b * c for b, c in zip(self.step, step, strict=True)))

    def scaled(self, factor: Sequence[float]) -> "Place":
        """Returns the lattice on the same image with `factor` times as many rows and columns of pixels."""
        first = ((a + 0.5) * c - 0.5 for a, c in zip(self.first, factor, strict=True))
        return Place(_pair(first), _pair(b * c for b, c in zip(self.step, factor, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types."""
        return {"first": list(self.first), "step": list(self.step)}


def _pair(numbers: Iterable[float]) -> tuple[float, float]:
    first, second = map(float, numbers)
    return first, second


class Lattice(NamedTuple):
    """Where the keys of a layout lie."""

    grid: tuple[int, int]  # Rows and columns
    first: tuple[float, float]  # Position of cell (0, 0), in steps of the queries' grid
    step: tuple[float, float]  # From one cell to the next
    keys: Int[Tensor, "groups keys"]  # Flat index of each key; −1 − n for prefix token n


def key_lattice(layout: Layout) -> Lattice:
    """Finds the lattice of a layout's keys; raises UnsupportedModelError if there is none."""
    placed = layout.keys[:, ~layout.key_prefix]
    axes = [_axis(placed[..., axis].flatten(), layout.grid[axis]) for axis in range(2)]
    (rows, first_row, row_step, row), (cols, first_col, col_step, col) = axes
    keys = torch.empty(layout.keys.shape[:2], dtype=torch.int32)
    keys[:, ~layout.key_prefix] = (row * cols + col).view(placed.shape[:2]).int()
    prefix = int(layout.key_prefix.sum())
    keys[:, layout.key_prefix] = -1 - torch.arange(prefix, dtype=torch.int32)
    return Lattice((rows, cols), (first_row, first_col), (row_step, col_step), keys)


def _axis(positions: Float[Tensor, " keys"], size: int) -> tuple[int, float, float, Tensor]:
    """Returns the number of cells along an axis of `size` queries, the first, the step, and each position's cell."""
    if not len(positions):
        return 0, 0.0, 1.0, positions.long()
    places = positions.unique()  # sorted
    gaps = places.diff()
    gaps = gaps[gaps > 1e-6]  # nearer positions are the same
    step = gaps.min().item() if len(gaps) else float(size)  # one key alone stands for all
    first = places[0].item()
    exact = (positions - first) / step
    cells = exact.round()
    if not bool(((exact - cells).abs() < 1e-3).all()):
        raise UnsupportedModelError("its keys are not on a regular lattice, which the viewer needs")
    return int(cells.max()) + 1, first, step, cells.long()
