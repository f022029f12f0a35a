"""Sums over images from which every statistic of a head follows; no map is kept.

Means and variances of attention are sums of a few numbers for each head, displacement and group of images. Sums are
taken head by head, in float64; squares are of the weights less a level near 1/keys, because most heads look nearly
everywhere alike, and their squares would cancel. The level is a power of two, so that weights of 0 and 1 stay exact.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import log2

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from convattn.adapters.attention import AttentionCall, Layout
from convattn.adapters.attention.layout import OUTSIDE
from convattn.analysis.measure.pairs import Pairs

_TINY = 1e-38


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Sums of one layer, for each group of images or over all; they add up over batches."""

    images: Float64[Tensor, "*groups"]  # Number of images
    by_displacement: Float64[Tensor, "*groups heads displacements"]  # Σ A over images and pairs
    absolute: Float64[Tensor, "*groups heads displacements"]  # Σ |A|
    centred: Float64[Tensor, "*groups heads displacements"]  # Σ (A − level)
    squares: Float64[Tensor, "*groups heads"]  # Σ (A − level)²
    over_images: Float64[Tensor, "*groups heads"]  # Σ (A − mean of the batch)² · n/(n − 1): unbiased for the variance
    entropies: Float64[Tensor, "*groups heads"]  # Σ m · entropy of a query, m = Σ_k |A| its attention on positions
    prefix: Float64[Tensor, "*groups heads prefix_keys"]  # Σ A of positions on each prefix key
    prefix_size: Float64[Tensor, "*groups heads"]  # Σ |A| of positions on all prefix keys
    prefix_maps: Float64[
        Tensor, "*groups heads prefix_queries keys"
    ]  # Σ A of prefix queries; one group of queries only

    def map(self, change: Callable[[Tensor], Tensor]) -> "HeadSums":
        """Returns the sums with every tensor changed."""
        return HeadSums(**{item.name: change(getattr(self, item.name)) for item in fields(self)})

    def plus(self, other: "HeadSums") -> "HeadSums":
        """Adds sums of other images."""
        return HeadSums(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})


def sum_heads(call: AttentionCall, pairs: Pairs, members: Int64[Tensor, " images"], groups: int) -> HeadSums:
    """Sums the weights of one batch; `members` says which group of images each image is in."""
    weights = call.weights
    images = len(weights)
    made = empty_sums(call, pairs, groups)
    made.images.index_add_(0, members, torch.ones(images, dtype=torch.float64, device=weights.device))
    level = _level(weights.shape[-1])
    for head, (whole, tile) in enumerate(head_tiles(call, pairs)):
        signed = images > 0 and float(tile.amin()) < 0
        size = tile.abs() if signed else tile
        shifted = tile - level
        if pairs.valid is not None:
            shifted *= pairs.valid
        mass = size.sum(dim=3)
        entropy = _total(mass * mass.clamp_min(_TINY).log()) - _dot(size, size.clamp_min(_TINY).log_())
        made.entropies[:, head].index_add_(0, members, entropy)
        made.squares[:, head].index_add_(0, members, _dot(shifted, shifted))
        if images > 1:
            apart = tile - tile.mean(dim=0)
            made.over_images[:, head].index_add_(0, members, _dot(apart, apart) * (images / (images - 1)))
        for group in members.unique().tolist():
            chosen = members == group
            _add_bins(made.centred[group, head], shifted[chosen], pairs)
            if signed:
                _add_bins(made.absolute[group, head], size[chosen], pairs)
        _sum_prefix(made, head, whole, pairs, members)
    images_of = made.images[:, None, None]
    by_displacement = made.centred + level * images_of * pairs.counts
    absolute = torch.where((made.absolute > 0).any(dim=(0, 2))[None, :, None], made.absolute, by_displacement)
    return HeadSums(**{**_tensors(made), "by_displacement": by_displacement, "absolute": absolute})


def _level(keys: int) -> float:
    """Returns the power of two that is nearest to 1/keys."""
    return 2.0 ** -round(log2(keys))


def head_tiles(call: AttentionCall, pairs: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields of each head all weights, and those of the pairs that count; others in between are 0."""
    for head in range(call.weights.shape[2]):
        whole = call.weights[:, :, head]
        if not whole.dtype.is_floating_point or whole.dtype.itemsize < 4:
            whole = whole.float()
        tile = _picked(_picked(whole, pairs.rows, 2), pairs.cols, 3).contiguous()
        yield whole, tile if pairs.valid is None else tile * pairs.valid


def _total(values: Float[Tensor, "images *rest"]) -> Float64[Tensor, " images"]:
    """Adds up the values of each image; the last axis in their own dtype, which is much quicker."""
    return values.sum(dim=-1).double().flatten(1).sum(dim=1)


def _dot(
    one: Float[Tensor, "images groups rows cols"], other: Float[Tensor, "images groups rows cols"]
) -> Float64[Tensor, " images"]:
    """Multiplies and adds up the values of each image."""
    return torch.linalg.vecdot(one, other).double().sum(dim=(1, 2))


def _picked(
    weights: Float[Tensor, "images groups queries keys"], chosen: Int64[Tensor, " chosen"], axis: int
) -> Float[Tensor, "images groups rows cols"]:
    """Takes some of the queries or keys, without a copy where they are one stretch."""
    first, count = int(chosen[0]), len(chosen)
    if int(chosen[-1]) - first + 1 == count:
        return weights.narrow(axis, first, count)
    return weights.index_select(axis, chosen)


def _add_bins(
    total: Float64[Tensor, " displacements"], weights: Float[Tensor, "images groups rows cols"], pairs: Pairs
) -> None:
    """Adds up the weights of each displacement."""
    flat = weights.sum(dim=0).double().flatten()
    total += torch.bincount(pairs.bins.flatten(), flat, minlength=len(total) + 1)[: len(total)]


def _sum_prefix(
    made: HeadSums,
    head: int,
    whole: Float[Tensor, "images groups queries keys"],
    pairs: Pairs,
    members: Int64[Tensor, " images"],
) -> None:
    """Sums what positions pay to prefix keys, and the maps of prefix queries."""
    layout = pairs.layout
    if made.prefix.shape[2]:
        on_prefix = _picked(whole, pairs.rows, 2)[..., layout.key_prefix]
        if pairs.valid is not None:
            on_prefix = on_prefix * pairs.valid.any(dim=2, keepdim=True)
        made.prefix[:, head].index_add_(0, members, on_prefix.sum(dim=(1, 2), dtype=torch.float64))
        size = on_prefix.abs().sum(dim=(1, 2, 3), dtype=torch.float64)
        made.prefix_size[:, head].index_add_(0, members, size)
    if made.prefix_maps.shape[2]:
        made.prefix_maps[:, head].index_add_(0, members, whole[:, 0][:, _prefix_queries(layout)].double())


def empty_sums(call: AttentionCall, pairs: Pairs, groups: int) -> HeadSums:
    """Returns the sums of a layer over no image."""
    heads, keys = call.weights.shape[2], call.weights.shape[4]
    layout, bins = pairs.layout, len(pairs.counts)
    maps = len(_prefix_queries(layout)) if layout.groups == 1 else 0

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(groups, *sizes, dtype=torch.float64, device=call.weights.device)

    return HeadSums(
        images=zeros(),
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


def _tensors(sums: HeadSums) -> dict[str, Tensor]:
    return {item.name: getattr(sums, item.name) for item in fields(sums)}
