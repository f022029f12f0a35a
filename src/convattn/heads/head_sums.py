"""Sums over images from which every statistic of a head follows; no map is kept.

Means and variances of attention are sums of a few numbers for each head, displacement and group of images. Sums over a
query's keys and over a few images are taken in the weights' dtype, all others in float64. Squares are of the weights
less a level near 1/keys, because most heads look nearly everywhere alike, and their squares would cancel. The level is
a power of two, so that weights of 0 and 1 stay exact.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import exp, log2

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from convattn.errors import UnsupportedModelError
from convattn.heads.jackknife import GROUPS
from convattn.heads.layout import Layout, as_slice

_STEPS = 720
"""Positions of keys are told apart to 1/720 of a cell: halves, thirds, … of one are exact."""

NO_POSITION = "none of its queries, or none of its keys, has a position"
"""Why a layer has no pairs."""

_TINY = 1e-38


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs (q, k) of a layout with a position each that its mask allows."""

    layout: Layout  # Where queries and keys lie
    rows: slice | Int64[Tensor, " rows"]  # Which queries have a position, in any of the groups
    cols: slice | Int64[Tensor, " cols"]  # Which keys have a position
    valid: Bool[Tensor, "groups rows cols"] | None  # Which of their pairs count; None if all
    # Number of each pair's displacement; those that do not count have the last
    bins: Int64[Tensor, "groups rows cols"]
    displacements: Float64[Tensor, "displacements axes"]  # Every displacement δ = k − q, in cells
    counts: Float64[Tensor, " displacements"]  # Number of pairs with it
    queries: int  # Queries that have a pair, in all groups

    @cached_property
    def lengths(self) -> Float64[Tensor, " displacements"]:
        """‖δ‖ of every displacement."""
        return self.displacements.norm(dim=1)

    def shared_out(
        self, logs: Float64[Tensor, " displacements"]
    ) -> Float64[Tensor, "groups rows cols"]:
        """Returns weights of every pair by displacement, given as logarithms, such that those of a query sum to 1."""
        without_pair = logs.new_full((1,), -torch.inf)
        scores = torch.cat([logs, without_pair])[self.bins]
        nothing = (scores == -torch.inf).all(dim=2, keepdim=True)
        return scores.softmax(dim=2).masked_fill(nothing, 0.0)

    @cached_property
    def uniform(self) -> Float64[Tensor, "groups rows cols"]:
        """Weights that are the same for all keys of a query."""
        return self.shared_out(torch.zeros_like(self.counts))

    @cached_property
    def everywhere_alike(self) -> tuple[float, float]:
        """Mean attention distance, in cells, and exp(mean entropy) of a head that looks everywhere alike."""
        lengths = torch.cat([self.lengths, self.lengths.new_zeros(1)])
        distances = self.uniform * lengths[self.bins]
        entropies = -torch.xlogy(self.uniform, self.uniform)
        return float(distances.sum() / self.queries), exp(entropies.sum() / self.queries)

    def within(self, radius: int) -> Int64[Tensor, " kernel"]:
        """Returns the numbers of the displacements of at most `radius` along each axis."""
        largest = self.displacements.abs().amax(dim=1)
        return (largest <= radius).nonzero()[:, 0]

    def fits(self, layout: Layout) -> bool:
        """Says whether another call of the layer has the same layout, but for pairs that it alone excludes."""
        if self.layout.allowed is None:
            return self.layout.lies_like(layout)
        return self.layout.equals(layout)


def has_positions(layout: Layout) -> bool:
    """Says whether any query and any key has a position."""
    has_query = bool((layout.queries >= 0).any())
    return has_query and not layout.key_prefix.all()


def make_pairs(layout: Layout, name: str) -> Pairs:
    """Sorts the pairs of a layout; if none has a position, UnsupportedModelError is raised."""
    if not has_positions(layout):
        raise UnsupportedModelError(f"{name}: {NO_POSITION}")
    rows = (layout.queries >= 0).any(dim=0).nonzero()[:, 0]
    cols = (~layout.key_prefix).nonzero()[:, 0]
    on_grid = layout.queries[:, rows] >= 0
    valid = on_grid[:, :, None].expand(-1, -1, len(cols))
    if layout.allowed is not None:
        valid = valid & layout.allowed[:, rows][:, :, cols]
    queries = layout.query_positions()[:, rows].nan_to_num()
    cells = layout.keys[:, None, cols] - queries[:, :, None]
    steps = (cells.double() * _STEPS).round().long()
    first = steps.amin(dim=(0, 1, 2))
    sizes = steps.amax(dim=(0, 1, 2)) - first + 1
    strides = sizes.flip(0).cumprod(0).flip(0) // sizes
    code = ((steps - first) * strides).sum(dim=-1)
    codes, numbers = code[valid].unique(return_inverse=True)
    bins = torch.full_like(code, len(codes))
    bins[valid] = numbers
    places = torch.unravel_index(codes, tuple(sizes.tolist()))
    displacements = torch.stack(places, dim=1) + first
    return Pairs(
        layout=layout,
        rows=as_slice(rows),
        cols=as_slice(cols),
        valid=None if valid.all() else valid.clone(),
        bins=bins,
        displacements=displacements.double() / _STEPS,
        counts=torch.bincount(numbers).double(),
        queries=int(valid.any(dim=2).sum()),
    )


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
    # Σ m · entropy of a query, m = Σ_k |A| its attention on positions
    entropies: Float64[Tensor, "*groups heads"]
    prefix: Float64[Tensor, "*groups heads prefix_keys"]  # Σ A of positions on each prefix key
    prefix_size: Float64[Tensor, "*groups heads"]  # Σ |A| of positions on all prefix keys
    # Σ A of prefix queries; one group of queries only
    prefix_maps: Float64[Tensor, "*groups heads prefix_queries keys"]

    def map(self, change: Callable[[Tensor], Tensor]) -> "HeadSums":
        """Returns the sums with every tensor changed."""
        return HeadSums(**{name: change(part) for name, part in vars(self).items()})

    def total(self) -> "HeadSums":
        """Returns the sums over all groups."""
        return self.map(lambda part: part.sum(dim=0))

    def plus(self, other: "HeadSums") -> "HeadSums":
        """Adds sums of other images."""
        return HeadSums(*map(torch.add, vars(self).values(), vars(other).values()))


def sum_heads(
    weights: Float[Tensor, "images groups heads queries keys"],
    pairs: Pairs,
    members: Int64[Tensor, " images"],
) -> HeadSums:
    """Sums the weights of one batch; `members` says which of `GROUPS` groups of images each image is in."""
    images, _, heads, _, keys = weights.shape
    unbiased = images / max(images - 1, 1)
    level = 2.0 ** -round(log2(keys))  # the power of two nearest to 1/keys

    def by_group(of_images: Float[Tensor, "images *numbers"]) -> Float64[Tensor, "groups *numbers"]:
        sizes = (GROUPS, *of_images.shape[1:])
        total = of_images.new_zeros(sizes, dtype=torch.float64)
        return total.index_add_(0, members, of_images.double())

    of_heads = defaultdict(list)
    for head in range(heads):
        attention = attention_on_grid(weights, pairs, head)
        size = attention.abs()
        shifted = attention - level
        if pairs.valid is not None:
            shifted *= pairs.valid
        apart = shifted - shifted.mean(dim=0)
        of_heads["absolute"].append(_by_displacement(size, pairs, members))
        of_heads["centred"].append(_by_displacement(shifted, pairs, members))
        of_heads["entropies"].append(by_group(_total(_entropies(size))))
        of_heads["squares"].append(by_group(sum_squares(shifted)))
        of_heads["over_images"].append(by_group(sum_squares(apart) * unbiased))
    sums = {name: torch.stack(parts, dim=1) for name, parts in of_heads.items()}
    counted = by_group(weights.new_ones(images))
    on_prefix = weights[..., pairs.layout.key_prefix][:, :, :, pairs.rows].double()
    if pairs.valid is not None:
        on_prefix = on_prefix * pairs.valid.any(dim=2)[:, None, :, None]
    prefix_queries = pairs.layout.prefix_queries()
    if pairs.layout.groups > 1:
        prefix_queries = prefix_queries[:0]
    return HeadSums(
        images=counted,
        compared=counted * (images > 1),
        by_displacement=sums["centred"] + level * counted[:, None, None] * pairs.counts,
        prefix=by_group(on_prefix.sum(dim=(1, 3))),
        prefix_size=by_group(on_prefix.abs().sum(dim=(1, 3, 4))),
        prefix_maps=by_group(weights[:, 0][:, :, prefix_queries]),
        **sums,
    )


def attention_on_grid(
    weights: Float[Tensor, "images groups heads queries keys"], pairs: Pairs, head: int
) -> Float[Tensor, "images groups rows cols"]:
    """Returns the weights of a head for the pairs that count, and 0 for the others."""
    of_head = weights[:, :, head]
    of_head = of_head.to(torch.promote_types(weights.dtype, torch.float32))
    of_head = of_head[:, :, pairs.rows][..., pairs.cols]
    return of_head if pairs.valid is None else of_head * pairs.valid


def sum_squares(weights: Float[Tensor, "images groups rows cols"]) -> Float64[Tensor, " images"]:
    """Returns the sum of the squares of each image; the weights are overwritten."""
    return _total(weights.square_().sum(dim=3))


def _entropies(
    size: Float[Tensor, "images groups rows cols"],
) -> Float[Tensor, "images groups rows"]:
    """Returns m · entropy of each query, m = Σ |A|."""
    mass = size.sum(dim=3)
    logs = size.clamp_min(_TINY).log_().mul_(size).sum(dim=3)
    return mass * mass.clamp_min(_TINY).log() - logs


def _total(rows: Float[Tensor, "images groups rows"]) -> Float64[Tensor, " images"]:
    """Sums what was computed for each query."""
    return rows.double().sum(dim=(1, 2))


def _by_displacement(
    weights: Float[Tensor, "images groups rows cols"],
    pairs: Pairs,
    members: Int64[Tensor, " images"],
) -> Float64[Tensor, "all_groups displacements"]:
    """Adds up the weights of each displacement over the images of each group."""
    total = pairs.counts.new_zeros(GROUPS, len(pairs.counts) + 1)
    for group in members.unique():
        of_group = weights[members == group].sum(dim=0).flatten().double()
        total[group].scatter_add_(0, pairs.bins.flatten(), of_group)
    return total[:, :-1]
