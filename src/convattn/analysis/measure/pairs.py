"""Pairs of queries and keys of one layer that have a position, sorted by their displacement."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float64, Int, Int64
from torch import Tensor

from convattn.adapters.attention import Layout
from convattn.errors import UnsupportedModelError

_STEPS = 720
"""Positions of keys are told apart to 1/720 of a cell: halves, thirds, … of one are exact."""

NO_POSITION = "none of its queries, or none of its keys, has a position"
"""Why a layer has no pairs."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs (q, k) of a layout with a position each that its mask allows."""

    layout: Layout  # Where queries and keys lie
    rows: Int64[Tensor, " rows"]  # Which queries have a position, in any of the groups
    cols: Int64[Tensor, " cols"]  # Which keys have a position
    valid: Bool[Tensor, "groups rows cols"] | None  # Which of their pairs count; None if all
    bins: Int64[Tensor, "groups rows cols"]  # Number of each pair's displacement; those that do not count have the last
    displacements: Float64[Tensor, "displacements axes"]  # Every displacement δ = k − q, in cells
    counts: Float64[Tensor, " displacements"]  # Number of pairs with it
    queries: int  # Queries that have a pair, in all groups

    @cached_property
    def lengths(self) -> Float64[Tensor, " displacements"]:
        """‖δ‖ of every displacement."""
        return self.displacements.norm(dim=1)

    @cached_property
    def common(self) -> Bool[Tensor, " displacements"]:
        """Displacements at least a quarter as frequent as the most frequent one: means over fewer pairs are chance."""
        return self.counts * 4 >= self.counts.max()

    def within(self, radius: int) -> Int64[Tensor, " kernel"]:
        """Returns the numbers of the displacements of at most `radius` along each axis."""
        return (self.displacements.abs().amax(dim=1) <= radius).nonzero()[:, 0]

    def fits(self, layout: Layout) -> bool:
        """Says whether another call of the layer has the same layout."""
        mine = self.layout
        if mine.grid != layout.grid or (mine.allowed is None) != (layout.allowed is None):
            return False
        same = [(mine.queries, layout.queries), (mine.keys, layout.keys), (mine.key_prefix, layout.key_prefix)]
        if mine.allowed is not None and layout.allowed is not None:
            same.append((mine.allowed, layout.allowed))
        return all(old is new or torch.equal(old, new) for old, new in same)


def has_positions(layout: Layout) -> bool:
    """Says whether any query and any key has a position."""
    return bool((layout.queries >= 0).any()) and not bool(layout.key_prefix.all())


def make_pairs(layout: Layout, name: str) -> Pairs:
    """Sorts the pairs of a layout; if none has a position, UnsupportedModelError is raised."""
    if not has_positions(layout):
        raise UnsupportedModelError(f"{name}: {NO_POSITION}")
    rows, cols = (layout.queries >= 0).any(dim=0).nonzero()[:, 0], (~layout.key_prefix).nonzero()[:, 0]
    queries = layout.queries[:, rows]
    valid = (queries >= 0)[:, :, None].expand(-1, -1, len(cols))
    if layout.allowed is not None:
        valid = valid & layout.allowed[:, rows][:, :, cols]
    steps = _steps(layout.keys[:, None, cols] - _positions(queries.clamp_min(0), layout.grid)[:, :, None])
    low = steps.amin(dim=(0, 1, 2))
    sizes = steps.amax(dim=(0, 1, 2)) - low + 1
    code = torch.zeros(steps.shape[:-1], dtype=torch.int64, device=steps.device)
    for axis in range(len(layout.grid)):
        code = code * sizes[axis] + steps[..., axis] - low[axis]
    found, bins = code[valid].unique(return_inverse=True)
    numbered = torch.full_like(code, len(found))
    numbered[valid] = bins
    axes = []
    for axis in reversed(range(len(layout.grid))):
        axes.append(found % sizes[axis] + low[axis])
        found = found // sizes[axis]
    return Pairs(
        layout=layout,
        rows=rows,
        cols=cols,
        valid=None if bool(valid.all()) else valid.clone(),
        bins=numbered,
        displacements=torch.stack(axes[::-1], dim=1).double() / _STEPS,
        counts=torch.bincount(bins).double(),
        queries=int(valid.any(dim=2).sum()),
    )


def _steps(displacements: Tensor) -> Int64[Tensor, "..."]:
    return (displacements.double() * _STEPS).round().long()


def _positions(flat: Int[Tensor, "groups queries"], grid: tuple[int, ...]) -> Float64[Tensor, "groups queries axes"]:
    """Returns the position along each axis of flat indices."""
    axes = []
    for size in reversed(grid):
        axes.append(flat % size)
        flat = flat // size
    return torch.stack(axes[::-1], dim=-1).double()
