"""Heads that share their weights along an axis: every matrix of one axis is combined with every matrix of the other.

The nine heads of a 3 × 3 kernel have three different rows of scores and three different columns of scores. Where scores
are a sum over axes, there are three attention matrices along each axis, not nine (`docs/theory.md` §4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from convattn.functional.reference import position_weights
from convattn.grid import Axis, Geometry


@dataclass(frozen=True, eq=False, slots=True)
class HeadGrid:
    """Attention of heads that are all combinations of a few matrices per axis.

    Zeros that pad the image or lie between its pixels are keys and enter the softmax. They contribute nothing to the
    output, so their columns are left out of the matrices.
    """

    rows: Float[Tensor, "_ _ _"]  # (matrices, queries, pixels), attention along the first axis
    cols: Float[Tensor, "_ _ _"]  # along the second; in sequences the first axis has one pixel
    heads: tuple[int, ...] | None  # the head of each combination, row by row; None if that is their order
    geometry: Geometry | None  # how images are padded before; None if their own pixels are enough

    def by_head(self, axes: int) -> list[Float[Tensor, "heads _ _"]]:
        """Returns the matrices of every head, along each of one or two axes."""
        every = range(len(self.rows) * len(self.cols))
        place = torch.tensor(every if self.heads is None else _inverse(self.heads), device=self.cols.device)
        both = [self.rows[place // len(self.cols)], self.cols[place % len(self.cols)]]
        return both[2 - axes :]


def find_head_grid(
    tables: Sequence[Float[Tensor, "heads _"]], axes: Sequence[Axis], geometry: Geometry, dtype: torch.dtype
) -> HeadGrid | None:
    """Finds a few matrices per axis whose combinations are the heads.

    Args:
        tables: For each axis, the scores of all its displacements from the lowest to the highest, in the dtype in which
            the softmax is taken.
        axes: Queries and keys along each axis of the padded images; one or two.
        geometry: How images are padded.
        dtype: Dtype of the matrices.

    Returns:
        The matrices; None if the heads are not all combinations.

    Example:
        >>> tables, axes = [torch.tensor([[0.0, 1.0, 2.0]] * 2), torch.tensor([[0.0], [1.0]])], [Axis(range(2), 2)]
        >>> grid = find_head_grid(tables, [*axes, Axis(range(1), 1)], Geometry.parse(2), torch.float32)
        >>> None if grid is None else (len(grid.rows), len(grid.cols), grid.heads)
        (1, 2, None)
    """
    different, numbers = zip(*(_distinct(table) for table in tables), strict=True)
    heads = _combinations(numbers, [len(table) for table in different])
    if heads is None:
        return None
    zeros = geometry.padding_mode == "zeros"
    made = []
    for number, (table, axis) in enumerate(zip(different, axes, strict=True)):
        weights = position_weights(table, (axis,)).to(dtype)
        made.append(_at_pixels(weights, geometry, number) if zeros else weights)
    if len(made) == 1:
        made.insert(0, torch.ones_like(made[0][:1, :1, :1]))
    order = None if heads == list(range(len(heads))) else tuple(heads)
    return HeadGrid(made[0], made[1], order, None if zeros else geometry)


def _distinct(
    table: Float[Tensor, "heads displacements"],
) -> tuple[Float[Tensor, "different displacements"], list[int]]:
    """Returns the different rows in order of first appearance, and the number of each head's row."""
    found, number = torch.unique(table, dim=0, return_inverse=True)
    first: dict[int, int] = {}
    numbers = [first.setdefault(value, len(first)) for value in number.tolist()]
    return found[list(first)], numbers


def _combinations(numbers: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int] | None:
    """Returns the head of each combination; None if one is missing or occurs twice."""
    places = [0] * len(numbers[0])
    for along, count in zip(numbers, counts, strict=True):
        places = [place * count + number for place, number in zip(places, along, strict=True)]
    return _inverse(places) if sorted(places) == list(range(prod(counts))) else None


def _at_pixels(
    weights: Float[Tensor, "heads queries keys"], geometry: Geometry, axis: int
) -> Float[Tensor, "heads queries pixels"]:
    """Takes the weights of the image's own pixels; those of cropped pixels are zero."""
    (before, after), step = geometry.padding[axis], geometry.input_dilation[axis]
    keys = weights.shape[2]
    pixels = (keys - before - after - 1) // step + 1
    stands: Int[Tensor, " pixels"] = torch.arange(pixels, device=weights.device) * step + before
    inside = (stands >= 0) & (stands < keys)
    return torch.where(inside, weights[:, :, stands.clamp(0, keys - 1)], 0)


def _inverse(places: Sequence[int]) -> list[int]:
    heads = [0] * len(places)
    for head, place in enumerate(places):
        heads[place] = head
    return heads
