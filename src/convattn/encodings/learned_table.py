"""Learned table: one free score per head and displacement, and how tables of displacements are read."""

from collections.abc import Sequence
from itertools import product
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.encodings.encoding import Encoding
from convattn.grid import Axis, PerAxis, axis_lists

_COMMON = {1: 520, 2: 40, 3: 20}
_SMALL = 8
"""Extents by the number of axes: common sizes 512, 32 and 16 with some padding; fewer than 10^5 displacements."""


def read_table(
    table: Float[Tensor, "*axes width"], displacement: Float[Tensor, "*points dims"]
) -> Float[Tensor, "*points width"]:
    """Interpolates a table of displacements multilinearly; integer displacements give the entries themselves."""
    # The table holds −(E − 1), …, E − 1 along each axis.
    below = displacement.floor()
    part = displacement - below
    sides = []
    for axis, size in enumerate(table.shape[:-1]):
        lower = below[..., axis].long() + (size - 1) // 2
        upper = (lower + 1).clamp(max=size - 1)
        share = part[..., axis]
        sides.append([(lower, 1 - share), (upper, share)])
    result = torch.zeros((), dtype=displacement.dtype, device=displacement.device)
    for corner in product(*sides):
        places, shares = zip(*corner, strict=True)
        weight = torch.stack(shares).prod(0)[..., None]
        entries = table[places].to(displacement.dtype)
        result = result + weight * entries
    return result


def places_in_table(size: int, axis: Axis) -> slice:
    """Returns where the displacements along an axis of a grid are in a table of −(E − 1), …, E − 1."""
    middle = (size - 1) // 2
    return slice(middle + axis.lowest, middle + axis.highest + 1)


def table_extent(extent: PerAxis | None, dims: int) -> tuple[int, ...]:
    """Returns a table's extent per axis; for None one that holds common image sizes."""
    if extent is None:
        extent = _COMMON.get(dims, _SMALL)
    return axis_lists("extent", extent, dims, least=1)


@final
class LearnedTable(Encoding):
    """Score T_h[δ]: a table with one entry per head and displacement, the relative position bias of Swin and others.

    Between integer displacements the table is interpolated multilinearly; beyond it the encoding raises.

    Attributes:
        scores: T, (heads, 2·extent_1 − 1, …, 2·extent_n − 1); drawn from N(0, 0.02²).

    Example:
        >>> LearnedTable(4, 2, extent=7).scores.shape
        torch.Size([4, 13, 13])
    """

    def __init__(self, num_heads: int, dims: int, *, extent: PerAxis | None = None) -> None:
        """Builds the encoding.

        Args:
            num_heads: Number of heads, ≥ 1.
            dims: Number of axes, ≥ 1.
            extent: E ≥ 1, for all axes or one each: the table holds displacements from −(E − 1) to E − 1, those of a
                grid of E pixels, padding included. None holds common sizes: 520 along a sequence (512 pixels, with up
                to 8 of padding on each side), 40 along each axis of an image (32 and 8), 20 of a volume (16 and 4).
                Training never reaches the entries beyond the size of its images; `attention_to_conv` then needs that
                size, as `spatial=`.

        Raises:
            ArgumentError: A size is out of range.
        """
        super().__init__(num_heads, dims)
        self.extent = table_extent(extent, dims)
        sizes = [2 * size - 1 for size in self.extent]
        scores = torch.randn(num_heads, *sizes)
        self.scores = nn.Parameter(0.02 * scores)

    def options(self) -> dict[str, Any]:
        """Returns extent."""
        return {"extent": list(self.extent)}

    def score(self, displacement: Tensor) -> Tensor:
        """Scores displacements."""
        table = self.scores.movedim(0, -1)
        return read_table(table, displacement).movedim(-1, 0)

    def grid_score(
        self,
        axes: Sequence[Axis],
        dtype: torch.dtype,
        device: torch.device | None,  # noqa: ARG002 - as the base class has it
    ) -> Tensor:
        """Cuts the scores of a grid out of the table."""
        cut = map(places_in_table, self.scores.shape[1:], axes)
        return self.scores[(slice(None), *cut)].to(dtype)
