"""Sums over images from which every statistic of a head follows; no map is kept.

Means and variances of attention are sums of a few numbers for each head, displacement and group of images. Sums over a
query's keys and over a few images are taken in the weights' dtype, all others in float64. Squares are of the weights
less a level near 1/keys, because most heads look nearly everywhere alike, and their squares would cancel. The level is
a power of two, so that weights of 0 and 1 stay exact.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import log2

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from convattn.errors import UnsupportedModelError
from convattn.heads.layout import OUTSIDE, AttentionCall, Layout


def jackknife(others: list[float]) -> float:
    """Returns the standard error of a statistic from its values without each of several groups of images.

    Fewer than two groups have none: nan.

    Example:
        >>> jackknife([1.0, 2.0, 3.0])
        1.1547005383792515
    """
    if len(others) < 2:
        return float("nan")
    found = torch.tensor(others, dtype=torch.float64)
    count = len(others)
    return float(((count - 1) / count * (found - found.mean()).square().sum()).sqrt())


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
    bins: Int64[
        Tensor, "groups rows cols"
    ]  # Number of each pair's displacement; those that do not count have the last
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
        """Says whether another call of the layer has the same layout, but for pairs that it alone excludes."""
        mine = self.layout
        if mine.grid != layout.grid or (mine.allowed is not None and layout.allowed is None):
            return False
        same = [
            (mine.queries, layout.queries),
            (mine.keys, layout.keys),
            (mine.key_prefix, layout.key_prefix),
        ]
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
    rows, cols = (
        (layout.queries >= 0).any(dim=0).nonzero()[:, 0],
        (~layout.key_prefix).nonzero()[:, 0],
    )
    queries = layout.queries[:, rows]
    valid = (queries >= 0)[:, :, None].expand(-1, -1, len(cols))
    if layout.allowed is not None:
        valid = valid & layout.allowed[:, rows][:, :, cols]
    places = layout.query_positions()[:, rows].nan_to_num()
    steps = ((layout.keys[:, None, cols] - places[:, :, None]).double() * _STEPS).round().long()
    low = steps.amin(dim=(0, 1, 2))
    sizes = steps.amax(dim=(0, 1, 2)) - low + 1
    code = torch.zeros(steps.shape[:-1], dtype=torch.int64, device=steps.device)
    for axis in range(len(layout.grid)):
        code = code * sizes[axis] + steps[..., axis] - low[axis]
    found, bins = code[valid].unique(return_inverse=True)
    numbered = torch.full_like(code, len(found))
    numbered[valid] = bins
    displacements = torch.stack(torch.unravel_index(found, tuple(sizes.tolist())), dim=1) + low
    return Pairs(
        layout=layout,
        rows=rows,
        cols=cols,
        valid=None if bool(valid.all()) else valid.clone(),
        bins=numbered,
        displacements=displacements.double() / _STEPS,
        counts=torch.bincount(bins).double(),
        queries=int(valid.any(dim=2).sum()),
    )


_TINY = 1e-38

_IN_CACHE = 2**20
"""Bytes of one head's weights that are summed at once: with what is made of them, less than a core's cache."""


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Sums of one layer, for each group of images or over all; they add up over batches."""

    images: Float64[Tensor, "*groups"]  # Number of images
    compared: Float64[Tensor, "*groups"]  # Number of images that came in a batch with others
    by_displacement: Float64[Tensor, "*groups heads displacements"]  # Σ A over images and pairs
    absolute: Float64[Tensor, "*groups heads displacements"]  # Σ |A|
    centred: Float64[Tensor, "*groups heads displacements"]  # Σ (A − level)
    squares: Float64[Tensor, "*groups heads"]  # Σ (A − level)²
    # Σ (A − mean of the batch)² · n/(n − 1) over images compared: unbiased for their number times the variance
    over_images: Float64[Tensor, "*groups heads"]
    entropies: Float64[
        Tensor, "*groups heads"
    ]  # Σ m · entropy of a query, m = Σ_k |A| its attention on positions
    prefix: Float64[Tensor, "*groups heads prefix_keys"]  # Σ A of positions on each prefix key
    prefix_size: Float64[Tensor, "*groups heads"]  # Σ |A| of positions on all prefix keys
    # Σ A of prefix queries; one group of queries only
    prefix_maps: Float64[Tensor, "*groups heads prefix_queries keys"]

    def map(self, change: Callable[[Tensor], Tensor]) -> "HeadSums":
        """Returns the sums with every tensor changed."""
        return HeadSums(**{item.name: change(getattr(self, item.name)) for item in fields(self)})

    def plus(self, other: "HeadSums") -> "HeadSums":
        """Adds sums of other images."""
        return HeadSums(
            **{
                item.name: getattr(self, item.name) + getattr(other, item.name)
                for item in fields(self)
            }
        )


def sum_heads(
    call: AttentionCall, pairs: Pairs, members: Int64[Tensor, " images"], groups: int
) -> HeadSums:
    """Sums the weights of one batch; `members` says which group of images each image is in."""
    weights = call.weights
    images, windows, heads = weights.shape[:3]
    made = empty_sums(call, pairs, groups)
    ones = torch.ones(images, dtype=torch.float64, device=weights.device)
    made.images.index_add_(0, members, ones)
    made.compared.index_add_(0, members, ones * (images > 1))
    level = 2.0 ** -round(log2(weights.shape[-1]))  # the power of two nearest to 1/keys
    runs = members.unique_consecutive(return_counts=True)
    dtype = torch.promote_types(weights.dtype, torch.float32)
    mass, logs, squares, apart = weights.new_empty(
        4, images, windows, heads, len(pairs.rows), dtype=dtype
    )
    for chosen, tile in tiles(call, pairs):
        signed = images > 0 and float(tile.amin()) < 0
        total = tile.new_zeros(
            len(runs[0]), *tile.shape[1:]
        )  # Σ (A − level) over the images of a run
        absolute = torch.zeros_like(total) if signed else total
        for run, part in _stretches(tile, runs[1]):
            size = tile[part].abs() if signed else tile[part]
            mass[part, :, chosen] = size.sum(dim=4)
            logs[part, :, chosen] = size.clamp_min(_TINY).log_().mul_(size).sum(dim=4)
            shifted = _shifted(tile[part], level, pairs)
            total[run] += shifted.sum(dim=0)
            if signed:
                absolute[run] += size.sum(dim=0)
            squares[part, :, chosen] = shifted.square_().sum(dim=4)
        mean = total.sum(dim=0) / max(images, 1)
        for _, part in _stretches(tile, runs[1]):
            apart[part, :, chosen] = (
                _shifted(tile[part], level, pairs).sub_(mean).square_().sum(dim=4)
            )
        for run, group in enumerate(runs[0].tolist()):
            _add_bins(made.centred[group, chosen], total[run], pairs)
            if signed:
                _add_bins(made.absolute[group, chosen], absolute[run], pairs)
    logs = mass * mass.clamp_min(_TINY).log() - logs
    apart *= images / max(images - 1, 1)
    for found, row in zip(
        (made.entropies, made.squares, made.over_images), (logs, squares, apart), strict=True
    ):
        found.index_add_(0, members, row.double().sum(dim=(1, 3)))
    _sum_prefix(made, call, pairs, members)
    images_of = made.images[:, None, None]
    by_displacement = made.centred + level * images_of * pairs.counts
    absolute = torch.where(
        (made.absolute > 0).any(dim=(0, 2))[None, :, None], made.absolute, by_displacement
    )
    return replace(made, by_displacement=by_displacement, absolute=absolute)


def tiles(
    call: AttentionCall, pairs: Pairs
) -> Iterator[tuple[slice, Float[Tensor, "images groups heads rows cols"]]]:
    """Yields the weights of the pairs that count, others in between as 0, of a few heads: as many as fit a cache."""
    heads = call.weights.shape[2]
    step = max(1, _IN_CACHE // (pairs.bins.numel() * 4))
    for first in range(0, heads, step):
        chosen = slice(first, min(first + step, heads))
        whole = call.weights[:, :, chosen]
        if not whole.dtype.is_floating_point or whole.dtype.itemsize < 4:
            whole = whole.float()
        tile = _picked(_picked(whole, pairs.rows, 3), pairs.cols, 4)
        yield chosen, tile if pairs.valid is None else tile * pairs.valid[:, None]


def images_in_cache(tile: Float[Tensor, "images ..."]) -> int:
    """Returns how many images of a tile are summed at once."""
    return max(1, _IN_CACHE // max(tile[:1].numel() * tile.itemsize, 1))


def _stretches(
    tile: Float[Tensor, "images ..."], counts: Int64[Tensor, " runs"]
) -> Iterator[tuple[int, slice]]:
    """Cuts each run of images, which follow each other and are in one group, into stretches that fit a cache."""
    first, step = 0, images_in_cache(tile)
    for run, count in enumerate(counts.tolist()):
        for start in range(first, first + count, step):
            yield run, slice(start, min(start + step, first + count))
        first += count


def _shifted(
    part: Float[Tensor, "images groups heads rows cols"], level: float, pairs: Pairs
) -> Float[Tensor, "images groups heads rows cols"]:
    """Takes the level away from weights of pairs that count."""
    shifted = part - level
    return shifted if pairs.valid is None else shifted.mul_(pairs.valid[:, None])


def _picked(
    weights: Float[Tensor, "images groups heads queries keys"],
    chosen: Int64[Tensor, " chosen"],
    axis: int,
) -> Float[Tensor, "images groups heads rows cols"]:
    """Takes some of the queries or keys, without a copy where they are one stretch."""
    first, count = int(chosen[0]), len(chosen)
    if int(chosen[-1]) - first + 1 == count:
        return weights.narrow(axis, first, count)
    return weights.index_select(axis, chosen)


def _add_bins(
    total: Float64[Tensor, "heads displacements"],
    weights: Float[Tensor, "groups heads rows cols"],
    pairs: Pairs,
) -> None:
    """Adds up the weights of each displacement."""
    bins, size = pairs.bins.flatten(), total.shape[1]
    for head in range(len(total)):
        total[head] += torch.bincount(
            bins, weights[:, head].double().flatten(), minlength=size + 1
        )[:size]


def _sum_prefix(
    made: HeadSums, call: AttentionCall, pairs: Pairs, members: Int64[Tensor, " images"]
) -> None:
    """Sums what positions pay to prefix keys, and the maps of prefix queries."""
    layout = pairs.layout
    if made.prefix.shape[2]:
        on_prefix = _picked(call.weights[..., layout.key_prefix], pairs.rows, 3).double()
        if pairs.valid is not None:
            on_prefix = on_prefix * pairs.valid.any(dim=2)[:, None, :, None]
        made.prefix.index_add_(0, members, on_prefix.sum(dim=(1, 3)))
        made.prefix_size.index_add_(0, members, on_prefix.abs().sum(dim=(1, 3, 4)))
    if made.prefix_maps.shape[2]:
        made.prefix_maps.index_add_(
            0, members, call.weights[:, 0][:, :, _prefix_queries(layout)].double()
        )


def empty_sums(call: AttentionCall, pairs: Pairs, groups: int) -> HeadSums:
    """Returns the sums of a layer over no image."""
    heads, keys = call.weights.shape[2], call.weights.shape[4]
    layout, bins = pairs.layout, len(pairs.counts)
    maps = len(_prefix_queries(layout)) if layout.groups == 1 else 0

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(groups, *sizes, dtype=torch.float64, device=call.weights.device)

    return HeadSums(
        images=zeros(),
        compared=zeros(),
        by_displacement=zeros(heads, bins),
        absolute=zeros(heads, bins),
        centred=zeros(heads, bins),
        squares=zeros(heads),
        over_images=zeros(heads),
        entropies=zeros(heads),
        prefix=zeros(heads, int(layout.key_prefix.sum())),
        prefix_size=zeros(heads),
        prefix_maps=zeros(heads, maps, keys),
    )


def _prefix_queries(layout: Layout) -> Int64[Tensor, " prefix_queries"]:
    """Returns which queries of the only group are prefix tokens, in the order of the tokens."""
    found = ((layout.queries[0] < 0) & (layout.queries[0] != OUTSIDE)).nonzero()[:, 0]
    return found[layout.queries[0, found].argsort(descending=True)]
