"""Where the queries and keys of an attention call lie on the image, and what is known of a call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

OUTSIDE = torch.iinfo(torch.int32).min
"""Index of a query that is neither a position of the grid nor a prefix token: padding, cropped away afterwards."""

WHOLE = ("global", "sequence")
"""Patterns in which every query sees every key: prefix tokens first, then a grid row by row, or one axis."""


def times(sizes: Sequence[int]) -> str:
    """Writes sizes as people do: "5 × 7"."""
    return " × ".join(map(str, sizes))


@dataclass(frozen=True)
class Layout:
    """Positions of the queries and keys of one attention call; the same for every image.

    Keys may lie outside the grid, where a module pads; their positions continue those of the grid.
    """

    pattern: str  # "global", "windows", "shifted windows", "reduced keys", "sequence", …
    grid: tuple[int, ...]  # Sizes of the queries' grid: rows and columns, or one axis
    # Flat index on the grid; −1 − n is the n-th prefix token; or OUTSIDE
    queries: Int[Tensor, "groups queries"]
    # Position in steps of the queries' grid; 0 for keys without one
    keys: Float[Tensor, "groups keys axes"]
    key_prefix: Bool[Tensor, " keys"]  # Keys without a position: class and register tokens
    # Pairs that no mask excludes; None if all
    allowed: Bool[Tensor, "groups queries keys"] | None = None

    @property
    def groups(self) -> int:
        """Number of groups (windows) that attend apart from each other."""
        return self.queries.shape[0]

    @property
    def prefix(self) -> int:
        """Number of queries that are prefix tokens."""
        return len(self.prefix_queries())

    def prefix_queries(self) -> Int[Tensor, " prefix_queries"]:
        """Returns which queries of the first group are prefix tokens, in the order of the tokens."""
        queries = self.queries[0]
        tokens = ((queries < 0) & (queries != OUTSIDE)).nonzero()[:, 0]
        return tokens[queries[tokens].argsort(descending=True)]

    @property
    def positions(self) -> int:
        """Number of positions of the grid."""
        return prod(self.grid)

    def query_positions(self) -> Float[Tensor, "groups queries axes"]:
        """Returns where the queries lie, NaN for those that have no position."""
        places = cells(self.grid)[self.queries.clamp(min=0)]
        return torch.where((self.queries >= 0)[..., None], places, torch.nan)

    def lies_like(self, other: "Layout") -> bool:
        """Tells whether queries and keys lie where those of another layout do."""
        if self.grid != other.grid:
            return False
        names = ("queries", "keys", "key_prefix")
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in names)

    def equals(self, other: "Layout") -> bool:
        """Tells whether all of another layout is the same."""
        if self.allowed is None or other.allowed is None:
            alike = self.allowed is other.allowed
        else:
            alike = torch.equal(self.allowed, other.allowed)
        return alike and self.pattern == other.pattern and self.lies_like(other)

    def with_allowed(self, allowed: Bool[Tensor, "groups queries keys"]) -> "Layout":
        """Returns the layout with a mask; None stands for a mask that excludes nothing."""
        return replace(self, allowed=None if allowed.all() else allowed)


@dataclass(frozen=True)
class AttentionCall:
    """One attention layer on one batch of images. Its tensors are valid during the callback only: copy what you keep.

    `error` and `budget` are of the first image: weights × values against what the module itself computed, and how far
    rounding may move that (docs/explanation/theory.md §8).
    """

    name: str  # Dotted name of the module
    kind: str  # Full name of its class
    layout: Layout
    # What multiplies the values, in at least float32
    weights: Float[Tensor, "images groups heads queries keys"]
    # The module's input on the grid, without prefix tokens
    inputs: Float[Tensor, "images positions channels"] | None
    outputs: Float[Tensor, "images positions outputs"] | None  # The module's output on the grid
    normalised: bool  # Whether the rows sum to one
    error: float
    budget: float
    # If masks differ between images; else None
    allowed: Bool[Tensor, "images groups queries keys"] | None = None
    grid_source: str = (
        ""  # Dotted name of the convolution whose output has the grid; empty if none has
    )

    def maps(self) -> Float[Tensor, "images heads *queries_then_keys"]:
        """Returns the weights by position on the grid, as `attention_maps` does."""
        layout = self.layout
        places = layout.keys.floor().long()
        keys = grouped_layout(layout.grid, places, pattern="").queries[:, None]
        queries = layout.queries[..., None]
        pairs = (queries >= 0) & (keys >= 0) & ~layout.key_prefix
        cells_of_pairs = (queries * layout.positions + keys)[pairs].to(self.weights.device)
        weights = self.weights.transpose(1, 2)
        maps = weights.new_zeros(*weights.shape[:2], layout.positions**2)
        maps.index_add_(2, cells_of_pairs, weights[:, :, pairs])
        return maps.unflatten(2, layout.grid * 2)


def cells(sizes: tuple[int, ...]) -> Float[Tensor, "cells axes"]:
    """Lists the positions of a grid, row by row."""
    return lattice([torch.arange(size, dtype=torch.float64) for size in sizes])


def lattice(axes: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "points axes"]:
    """Lists the points whose coordinates are those along each axis, row by row."""
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def global_layout(
    grid: tuple[int, ...],
    prefix: int = 0,
    *,
    keys: Float[Tensor, "keys axes"] | None = None,
    pattern: str | None = None,
) -> Layout:
    """Makes the layout in which every query sees every key, prefix tokens first, then the grid row by row.

    Args:
        grid: Sizes of the grid.
        prefix: Number of tokens before the positions, ≥ 0; as many are before the keys.
        keys: Positions of the keys, without prefix tokens; None means those of the queries.
        pattern: Its name; None means "global", or "sequence" for one axis.

    Returns:
        The layout, with one group.

    Example:
        >>> global_layout((2, 2), prefix=1).queries.tolist()
        [[-1, 0, 1, 2, 3]]
    """
    if pattern is None:
        pattern = "sequence" if len(grid) == 1 else "global"
    places = cells(grid) if keys is None else keys.double()
    prefix_queries = -1 - torch.arange(prefix)
    queries = torch.cat([prefix_queries, torch.arange(prod(grid))])
    return Layout(
        pattern=pattern,
        grid=grid,
        queries=queries[None],
        keys=torch.cat([places.new_zeros(prefix, len(grid)), places])[None],
        key_prefix=torch.arange(prefix + len(places)) < prefix,
    )


def grouped_layout(
    grid: Sequence[int],
    places: Int[Tensor, "groups queries axes"],
    *,
    allowed: Bool[Tensor, "groups queries keys"] | None = None,
    pattern: str,
) -> Layout:
    """Makes the layout of queries in groups, given by row and column; those outside the grid become OUTSIDE.

    Args:
        grid: Sizes of the grid.
        places: Position of each query, and of each key.
        allowed: Pairs that no mask excludes; None if all.
        pattern: Its name.

    Returns:
        The layout.

    Example:
        >>> places = torch.tensor([[[0, 0], [0, 1]], [[1, 0], [1, 1]]])
        >>> grouped_layout((2, 2), places, pattern="windows").queries.tolist()
        [[0, 1], [2, 3]]
    """
    on_both_axes = (places >= 0) & (places < torch.tensor(grid))
    inside = on_both_axes.all(-1)
    steps = torch.tensor([prod(grid[axis + 1 :]) for axis in range(len(grid))])
    layout = Layout(
        pattern=pattern,
        grid=tuple(grid),
        queries=torch.where(inside, (places * steps).sum(-1), OUTSIDE),
        keys=places.double(),
        key_prefix=torch.zeros(places.shape[1], dtype=torch.bool),
    )
    return layout if allowed is None else layout.with_allowed(allowed)


def on_grid(
    x: Any, layout: Layout, images: int
) -> Float[Tensor, "images positions channels"] | None:
    """Returns a module's input or output position by position; None if its order is not known.

    Accepts images of the grid's size with their channels first or last, the grid as a list, and tokens in the order of
    the queries, in groups or with prefix tokens.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3:
        return None
    groups, queries = layout.queries.shape
    if len(layout.grid) > 1:
        channels_first = (len(x), x.shape[2:]) == (images, layout.grid)
        channels_last = x.shape[:-1] == (images, *layout.grid)
        if channels_first and channels_last:  # channels = rows = columns
            return None
        if channels_first or channels_last:
            return x.flatten(2).mT if channels_first else x.flatten(1, -2)
    lead = tuple(x.shape[:-1])
    if lead == (images, layout.positions) and lead != (images * groups, queries):
        return x
    in_groups = len(x) == images * groups and x[0, ..., 0].numel() == queries
    if in_groups or lead == (images, groups, queries):
        return _by_position(x.reshape(images, groups * queries, -1), layout)
    return None


def _by_position(
    tokens: Float[Tensor, "images tokens channels"], layout: Layout
) -> Float[Tensor, "images positions channels"] | None:
    """Moves tokens from the order of the queries to that of the positions; None unless every position has one query."""
    queries = layout.queries.flatten()
    if int((queries >= 0).sum()) != layout.positions:
        return None
    order = queries.argsort()[-layout.positions :]
    return tokens[:, as_slice(order.to(tokens.device))]


def as_slice(places: Int64[Tensor, " places"]) -> slice | Int64[Tensor, " places"]:
    """Returns places as a slice, which takes them without a copy, if they stand in order with nothing between."""
    steps = places.diff()
    if (steps != 1).any():
        return places
    return slice(int(places[0]), int(places[-1]) + 1)
