"""The side of the query on which a head looks, and the row or column along which it does."""

from math import nan

import torch
from jaxtyping import Float64
from torch import Tensor

from convattn.heads.head_sums import HeadSums, Pairs

_SAME = 0.5
"""Cells across a line within which a key lies in it."""


class Directions:
    """The side and the line of each head that get most of its attention on all images.

    Attributes:
        lines: The axis across the line of each head: 0 for its row, 1 for its column.
    """

    def __init__(self, total: HeadSums, pairs: Pairs) -> None:
        """Finds side and line of each head from the sums over all images."""
        steps = pairs.displacements
        self._axes = steps.shape[1]
        self._to_sides = torch.cat([steps < 0, steps > 0], dim=1).double()
        self._on_lines = (steps.abs() < _SAME).double()
        self._sides = (total.absolute @ self._to_sides).argmax(dim=1)
        self.lines = (total.absolute @ self._on_lines).argmax(dim=1)

    def shares(self, sums: HeadSums) -> dict[str, Float64[Tensor, " heads"]]:
        """Returns the shares of attention on each head's side and line, from sums over some images."""
        mass = sums.absolute.sum(dim=1)
        on_side = (sums.absolute @ self._to_sides).gather(1, self._sides[:, None])[:, 0]
        on_line = (sums.absolute @ self._on_lines).gather(1, self.lines[:, None])[:, 0]
        if self._axes == 1:
            on_line = torch.full_like(on_line, nan)
        return {"side_share": on_side / mass, "line_share": on_line / mass}

    def side(self, head: int) -> tuple[int, ...]:
        """Returns the side of a head: −1 or 1 along one axis, 0 along the others."""
        number = int(self._sides[head])
        side = [0] * self._axes
        side[number % self._axes] = -1 if number < self._axes else 1
        return tuple(side)
