"""Layouts whose keys are fewer than the queries: each stands for a cell of the grid, and lies in its middle."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def cell_centres(size: int, cells: int, step: int | None = None) -> Float[Tensor, " cells"]:
    """Lists the middles of the cells along one axis, in positions of the grid.

    With a `step` cell i covers the positions i · step to (i + 1) · step − 1, as a convolution whose kernel is as long
    as its step; without, ⌊i size / cells⌋ to ⌈(i + 1) size / cells⌉ − 1, as adaptive pooling.
    """
    number = torch.arange(cells, dtype=torch.float64)
    if step is not None:
        return number * step + (step - 1) / 2
    first, last = (number * size / cells).floor(), ((number + 1) * size / cells).ceil() - 1
    return (first + last) / 2


def key_cells(axes: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "keys axes"]:
    """Lists the positions of keys that stand on a grid of their own, row by row."""
    return torch.cartesian_prod(*axes).view(-1, len(axes))
