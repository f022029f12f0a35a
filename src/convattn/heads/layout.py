"""Where the queries and keys of an attention call lie on the image, and what a call hands out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from convattn.convert.surgery import full_name
from convattn.errors import UnsupportedModelError

OUTSIDE = torch.iinfo(torch.int64).min
"""Index of a query that is neither a position of the grid nor a prefix token: padding, cropped away afterwards."""


@dataclass(frozen=True)
class Layout:
    """Positions of the queries and keys of one attention call; the same for every image.

    Keys may lie outside the grid, where a module pads; they stand where the grid goes on.
    """

    pattern: str  # "global", "windows", "shifted windows", "reduced keys", "sequence", …
    grid: tuple[int, ...]  # Sizes of the queries' grid: rows and columns, or one axis
    queries: Int[Tensor, "groups queries"]  # Flat index on the grid; −1 − n is the n-th prefix token; or OUTSIDE
    keys: Float[Tensor, "groups keys axes"]  # Position in steps of the queries' grid; 0 for keys without one
    key_prefix: Bool[Tensor, " keys"]  # Keys without a position: class and register tokens
    allowed: Bool[Tensor, "groups queries keys"] | None  # Pairs that no mask excludes; None if all
    source: str = ""  # How the layout was found, in words

    @property
    def groups(self) -> int:
        """Number of groups (windows) that attend apart from each other."""
        return self.queries.shape[0]

    @property
    def prefix(self) -> int:
        """Number of queries that are prefix tokens."""
        return int(((self.queries[0] < 0) & (self.queries[0] != OUTSIDE)).sum())

    @property
    def positions(self) -> int:
        """Number of positions of the grid."""
        return prod(self.grid)

    def query_positions(self) -> Float[Tensor, "groups queries axes"]:
        """Returns where the queries lie, NaN for those that have no position."""
        flat = self.queries.clamp(min=0)
        steps = [prod(self.grid[axis + 1 :]) for axis in range(len(self.grid))]
        found = torch.stack([flat // step % size for step, size in zip(steps, self.grid, strict=True)], -1).double()
        return torch.where((self.queries >= 0)[..., None], found, torch.nan)

    def with_allowed(self, allowed: Bool[Tensor, "groups queries keys"]) -> "Layout":
        """Returns the layout with a mask; None stands for a mask that excludes nothing."""
        return replace(self, allowed=None if bool(allowed.all()) else allowed)


@dataclass(frozen=True)
class AttentionCall:
    """One attention layer on one batch of images. Its tensors are valid during the call: copy what you keep.

    `error` and `budget` are of the first image: weights × values against what the module itself computed, and how far
    rounding may move that (docs/theory.md §8).
    """

    name: str  # Dotted name of the module
    kind: str  # Full name of its class
    layout: Layout
    weights: Float[Tensor, "images groups heads queries keys"]  # What multiplies the values, in at least float32
    inputs: Float[Tensor, "images positions channels"] | None  # The module's input on the grid, without prefix tokens
    outputs: Float[Tensor, "images positions outputs"] | None  # The module's output on the grid
    normalised: bool  # Whether the rows sum to one
    error: float
    budget: float
    allowed: Bool[Tensor, "images groups queries keys"] | None = None  # If masks differ between images; else None


@dataclass(frozen=True)
class AttentionModule:
    """An attention layer of a model, as far as its class tells."""

    name: str  # Dotted name
    kind: str  # Full name of the class
    pattern: str  # Family of layouts; the layout of a call says more
    refused: str | None = None  # Why its weights are not read; None if they are


def cells(sizes: tuple[int, ...]) -> Float[Tensor, "cells axes"]:
    """Lists the positions of a grid, row by row."""
    axes = [torch.arange(size, dtype=torch.float64) for size in sizes]
    return torch.cartesian_prod(*axes).view(prod(sizes), len(sizes))


def global_layout(
    grid: tuple[int, ...],
    prefix: int = 0,
    *,
    keys: Float[Tensor, "keys axes"] | None = None,
    key_prefix: int | None = None,
    pattern: str | None = None,
    source: str = "",
) -> Layout:
    """Makes the layout in which every query sees every key, prefix tokens first, then the grid row by row.

    Args:
        grid: Sizes of the grid.
        prefix: Number of tokens before the positions, ≥ 0.
        keys: Positions of the keys, without prefix tokens; None means those of the queries.
        key_prefix: Number of keys before these; None means `prefix`.
        pattern: Its name; None means "global", or "sequence" for one axis.
        source: How it was found.

    Returns:
        The layout, with one group.

    Example:
        >>> global_layout((2, 2), prefix=1).queries.tolist()
        [[-1, 0, 1, 2, 3]]
    """
    before = prefix if key_prefix is None else key_prefix
    places = cells(grid) if keys is None else keys.double()
    queries = torch.cat([-1 - torch.arange(prefix), torch.arange(prod(grid))])
    return Layout(
        pattern=pattern or ("sequence" if len(grid) == 1 else "global"),
        grid=grid,
        queries=queries[None],
        keys=torch.cat([torch.zeros(before, len(grid), dtype=torch.float64), places])[None],
        key_prefix=torch.arange(before + len(places)) < before,
        allowed=None,
        source=source,
    )


def grouped_layout(
    grid: tuple[int, ...],
    places: Int[Tensor, "groups queries axes"],
    *,
    keys: Float[Tensor, "groups keys axes"] | None = None,
    allowed: Bool[Tensor, "groups queries keys"] | None = None,
    pattern: str,
    source: str = "",
) -> Layout:
    """Makes the layout of queries in groups, given by row and column; those outside the grid are marked as such.

    Args:
        grid: Sizes of the grid.
        places: Position of each query.
        keys: Position of each key; None means those of the queries.
        allowed: Pairs that no mask excludes; None if all.
        pattern: Its name.
        source: How it was found.

    Returns:
        The layout.

    Example:
        >>> places = torch.tensor([[[0, 0], [0, 1]], [[1, 0], [1, 1]]])
        >>> grouped_layout((2, 2), places, pattern="windows").queries.tolist()
        [[0, 1], [2, 3]]
    """
    sizes = torch.tensor(grid)
    inside = ((places >= 0) & (places < sizes)).all(-1)
    steps = torch.tensor([prod(grid[axis + 1 :]) for axis in range(len(grid))])
    positions = places.double() if keys is None else keys.double()
    layout = Layout(
        pattern=pattern,
        grid=grid,
        queries=torch.where(inside, (places * steps).sum(-1), OUTSIDE),
        keys=positions,
        key_prefix=torch.zeros(positions.shape[1], dtype=torch.bool),
        allowed=None,
        source=source,
    )
    return layout if allowed is None else layout.with_allowed(allowed)


@dataclass(frozen=True)
class Frame:
    """A module while it runs."""

    name: str  # Dotted name
    module: nn.Module
    args: tuple[Any, ...]  # Positional arguments
    kwargs: Mapping[str, Any]  # Named ones


@dataclass(frozen=True)
class Seen:
    """One attention call: the module, the modules that it runs in, and the sizes of its weights."""

    name: str  # Dotted name of the module
    module: nn.Module
    args: tuple[Any, ...]  # What it was called with
    kwargs: Mapping[str, Any]
    parents: tuple[Frame, ...]  # The modules around it, innermost first
    images: int  # Number of images in the batch
    shape: tuple[int, ...]  # Sizes of the weights: leading axes, heads, queries, keys
    mask: Tensor | None  # Mask or bias that the kernel was given
    features: Mapping[nn.Module, tuple[int, ...]]  # Latest output size of each convolution, or of what it became

    @property
    def queries(self) -> int:
        """Number of queries in a group."""
        return self.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys in a group."""
        return self.shape[-1]

    def argument(self, number: int, name: str) -> Any:
        """Returns an argument of the call by its place or name; None if it was not given."""
        return self.args[number] if len(self.args) > number else self.kwargs.get(name)

    def parent(self, *attributes: str) -> Frame:
        """Returns the innermost module around this one that has all these attributes."""
        for frame in self.parents:
            if all(getattr(frame.module, name, None) is not None for name in attributes):
                return frame
        raise UnsupportedModelError(f"no module around it has {' and '.join(attributes)}")

    def parent_of_kind(self, *kinds: str) -> Frame:
        """Returns the innermost module around this one of these classes, given by full name."""
        for frame in self.parents:
            if full_name(type(frame.module)) in kinds:
                return frame
        raise UnsupportedModelError(f"it runs in no {' or '.join(kind.rpartition('.')[2] for kind in kinds)}")

    def grid_of(self, embedding: nn.Module) -> tuple[int, int]:
        """Returns rows and columns of what the last convolution in a module gave out."""
        found = [shape for part, shape in self.features.items() if part in set(embedding.modules())]
        if not found:
            raise UnsupportedModelError(f"no convolution ran in {type(embedding).__name__}, so its grid is not known")
        return found[-1][-2], found[-1][-1]

    def global_layout(self, grid: tuple[int, ...], prefix: int = 0, source: str = "") -> Layout:
        """Returns the layout of queries and keys that are prefix tokens and then a grid row by row, if they fit."""
        tokens = prefix + torch.Size(grid).numel()
        if (self.queries, self.keys) != (tokens, tokens):
            sizes = " × ".join(map(str, grid))
            raise UnsupportedModelError(
                f"{self.queries} queries and {self.keys} keys are not {sizes} positions and {prefix} prefix tokens"
            )
        return global_layout(grid, prefix, source=source)


Read: TypeAlias = Callable[[Seen], Layout]
"""Reads the layout of a call, or raises UnsupportedModelError with the reason alone."""


def on_grid(x: Any, layout: Layout, images: int) -> Float[Tensor, "images positions channels"] | None:
    """Returns what a module was given or gave out, position by position; None where it has no such order.

    Understood are images of the grid's size with their channels first or last, the grid as a list, and tokens in the
    order of the queries, in groups or with prefix tokens.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 3:
        return None
    groups, queries = layout.queries.shape
    shape, sizes = tuple(x.shape), tuple(layout.grid)
    tokens = (images * groups, queries)
    first, last = (shape[0], shape[2:]) == (images, sizes), shape[:-1] == (images, *sizes)
    if len(sizes) > 1 and first != last:  # both, where there are as many channels as rows and columns: not known
        return x.flatten(2).mT if first else x.flatten(1, -2)
    if shape[:-1] == (images, layout.positions) and shape[:-1] != tokens:
        return x
    if shape[:-1] in (tokens, (images, groups, queries)) or (shape[0] == tokens[0] and x[0, ..., 0].numel() == queries):
        return _by_position(x.reshape(images, groups * queries, -1), layout)
    return None


def _by_position(
    tokens: Float[Tensor, "images tokens channels"], layout: Layout
) -> Float[Tensor, "images positions channels"] | None:
    """Puts tokens in the order of the queries at their positions; None unless every position has one."""
    place = layout.queries.flatten().to(tokens.device)
    inside = place >= 0
    count = layout.positions
    if int(inside.sum()) != count:
        return None
    first = int(inside.int().argmax())
    if torch.equal(place[first : first + count], torch.arange(count, device=place.device)):
        return tokens.narrow(1, first, count)  # in order already
    found = tokens.new_zeros(tokens.shape[0], layout.positions, tokens.shape[-1])
    found[:, place[inside]] = tokens[:, inside]
    return found


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
