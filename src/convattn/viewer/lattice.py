"""Lattices on the image: where the queries and the keys of a layer lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from convattn.errors import UnsupportedModelError
from convattn.heads.layout import Layout

Numbers = float | Sequence[float] | np.ndarray
"""One number for each axis, or one for both."""


@dataclass(frozen=True, eq=False)
class Place:
    """A lattice on the image: its cell (i, j) has its centre at first + step · (i, j), in pixels."""

    first: Float64[np.ndarray, "2"]  # Centre of cell (0, 0)
    step: Float64[np.ndarray, "2"]  # From one cell to the next

    @classmethod
    def covering(cls, image: Sequence[int], grid: Sequence[int]) -> "Place":
        """Returns the lattice whose cells divide the image evenly, as patches do."""
        step = np.divide(image, grid)
        return cls((step - 1) / 2, step)

    def among(self, first: Numbers, step: Numbers) -> "Place":
        """Returns the lattice whose cell (i, j) is at first + step · (i, j) of this one's cells."""
        return Place(self.first + np.multiply(self.step, first), np.multiply(self.step, step))

    def scaled(self, factor: Float64[np.ndarray, "2"]) -> "Place":
        """Returns the lattice on the same image with `factor` times as many rows and columns of pixels."""
        return Place((self.first + 0.5) * factor - 0.5, self.step * factor)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types."""
        return {"first": self.first.tolist(), "step": self.step.tolist()}


class Lattice(NamedTuple):
    """Where the keys of a layout lie."""

    grid: list[int]  # Rows and columns
    first: list[float]  # Position of cell (0, 0), in steps of the queries' grid
    step: list[float]  # From one cell to the next
    keys: Int[Tensor, "groups keys"]  # Flat index of each key; −1 − n for prefix token n


def key_lattice(layout: Layout) -> Lattice:
    """Finds the lattice of a layout's keys; raises UnsupportedModelError if there is none."""
    placed = layout.keys[:, ~layout.key_prefix].double()
    keys = torch.empty(layout.keys.shape[:2], dtype=torch.int32)
    prefix = torch.arange(int(layout.key_prefix.sum()), dtype=torch.int32)
    keys[:, layout.key_prefix] = -1 - prefix
    if not placed.numel():
        return Lattice([0, 0], [0.0, 0.0], [1.0, 1.0], keys)
    first = placed.amin((0, 1))
    steps = [_step(placed[..., axis], size) for axis, size in enumerate(layout.grid)]
    exact = (placed - first) / placed.new_tensor(steps)
    cells = exact.round()
    if ((exact - cells).abs() >= 1e-3).any():
        raise UnsupportedModelError("its keys are not on a regular lattice, which the viewer needs")
    cells = cells.int()
    rows, cols = (cells.amax((0, 1)) + 1).tolist()
    keys[:, ~layout.key_prefix] = cells[..., 0] * cols + cells[..., 1]
    return Lattice([rows, cols], first.tolist(), steps, keys)


def _step(positions: Float64[Tensor, "groups keys"], size: int) -> float:
    """Returns the smallest distance of keys along an axis of `size` queries."""
    gaps = positions.unique().diff()
    gaps = gaps[gaps > 1e-6]  # nearer positions are the same
    if not len(gaps):
        return float(size)  # one key alone stands for all
    return gaps.min().item()
