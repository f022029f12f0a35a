"""Attention head by head, in tiles of the pixels, so that intermediate results stay in the cache.

    a tile of the pixels      along the rows        along the columns      times W_h, added
    (rows, cols, channels) →  (rows_out, cols, …) → (rows_out, cols_out, …) →  (pixels_out, outputs)

Intermediate results are computed for images and tiles that fit the cache, over the keys that matter to the tile's
queries, and computed again for gradients.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.functional.reference import attend_by_axis
from convattn.functional.torch_modes import backward_to_differentiate, needs_own_operations
from convattn.functional.workspace import Workspace, chunks

_CACHE = 1 << 21
"""Bytes of mixed pixels worked on at a time on a CPU, about the second-level caches of a few cores."""

_SHORT = 32
"""Queries of a tile along an axis on which heads are narrow: enough for matrix products to run at speed, few enough for
their keys to be few."""

_NUMBERS = 1 << 16
"""Numbers of a tile of all images, channels and pixels, below which calls take longer than products: with nine heads on
64 x 64 pixels, a step in tiles of twice that length takes 0.75 of the time with 16 channels, 0.9 with 32, and 1.07 with
64 (one core)."""

WORTHWHILE = 0.6
"""Share of all keys below which short tiles pay for their calls."""


def attention_in_tiles(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention`, with weights in the dtype of the keys."""
    pixels = rearrange(keys, "batch channels ... -> batch ... channels").contiguous()
    y = _Product.apply(pixels, maps, groups, *weights)
    return rearrange(y, "batch ... outputs -> batch outputs ...")


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the head's matrix, summing over heads in place."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, groups: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        ctx.groups = groups
        means = _Means(weights, pixels)
        queries = [weight.shape[1] for weight in weights]
        y = pixels.new_zeros(len(pixels), *queries, maps.shape[1])
        for images, tile in _image_tiles(pixels, weights):
            part = y[_queries(images, tile)]
            total = part
            if not part.is_contiguous():
                total = means.workspace.get("total", *part.shape).zero_()
            for head, weight in enumerate(maps):
                mixed = means.stages(tile, head, pixels[images])[-1]
                add_head(total.view(-1, total.shape[-1]), mixed, weight, groups)
            if total is not part:
                part.copy_(total)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs_pixels, needs_maps, _, *needs_weights = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            by_pixels, by_maps, *by_weights = backward_to_differentiate(
                partial(_with_channels_last, ctx.groups),
                (pixels, maps, *weights),
                (needs_pixels, needs_maps, *needs_weights),
                gradient,
            )
            return by_pixels, by_maps, None, *by_weights
        means = _Means(weights, pixels)
        by_pixels = torch.zeros_like(pixels) if needs_pixels else None
        by_maps = torch.zeros_like(maps) if needs_maps else None
        by_weights = []
        for weight, needed in zip(weights, needs_weights, strict=True):
            by_weights.append(torch.zeros_like(weight) if needed else None)
        for images, tile in _image_tiles(pixels, weights):
            upstream = gradient[_queries(images, tile)].flatten(0, -2).contiguous()
            for head, weight in enumerate(maps):
                stages = means.stages(tile, head, pixels[images])
                if by_maps is not None:
                    head_weight_backward(upstream, stages[-1], ctx.groups, into=by_maps[head])
                if by_pixels is None and not any(needs_weights):
                    continue
                by_mixed = means.workspace.get("gradient", *stages[-1].shape)
                head_backward(upstream, weight, ctx.groups, out=by_mixed)
                into = None if by_pixels is None else by_pixels[images]
                means.backward(tile, head, stages, by_mixed, into, by_weights)
        return by_pixels, by_maps, None, *by_weights


def _with_channels_last(groups: int, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_Product` does, in operations that torch can differentiate."""
    keys = rearrange(pixels, "batch ... channels -> batch channels ...")
    y = attend_by_axis(weights, keys, maps, groups)
    return rearrange(y, "batch outputs ... -> batch ... outputs")


class QueryTile(NamedTuple):
    """Queries along one axis that are computed together."""

    queries: slice  # positions in the output
    keys: list[slice]  # for each head, the keys that get all attention but rounding

    @property
    def longest(self) -> int:
        """The larger of the numbers of queries and keys."""
        return max(length_of(self.queries), *map(length_of, self.keys))


def length_of(part: slice) -> int:
    """Returns the number of positions in a slice."""
    return part.stop - part.start


def _queries(images: slice, tile: Sequence[QueryTile]) -> tuple[slice, ...]:
    return images, *(part.queries for part in tile)


def _image_tiles(
    pixels: Tensor, weights: Sequence[Tensor]
) -> list[tuple[slice, tuple[QueryTile, ...]]]:
    """Cuts one call into images and tiles of queries; on a GPU it is one piece."""
    if pixels.device.type != "cpu":
        whole = []
        for weight in weights:
            heads, queries, keys = weight.shape
            whole.append(QueryTile(slice(0, queries), [slice(0, keys)] * heads))
        return [(slice(0, len(pixels)), tuple(whole))]
    fitting = _CACHE // max(1, pixels.shape[-1] * pixels.element_size())
    negligible = torch.finfo(pixels.dtype).eps / 64
    side = (_NUMBERS / max(1, len(pixels) * pixels.shape[-1])) ** (1 / len(weights))
    detached = [weight.detach() for weight in weights]
    tiles, images = tiles_of_all_axes(detached, negligible, fitting, max(_SHORT, int(side)))
    return list(product(chunks(len(pixels), images), tiles))


def tiles_of_all_axes(
    weights: Sequence[Float[Tensor, "heads _ _"]], negligible: float, pixels: int, short: int
) -> tuple[list[tuple[QueryTile, ...]], int]:
    """Cuts the grid of queries into tiles of about so many pixels, and returns how many images go together (≥ 1).

    On axes on which heads are narrow, tiles have `short` queries.
    """
    others = []
    for number, weight in enumerate(weights[1:], start=1):
        # The third of three axes keeps its keys, so that the axes after the second are one block of memory.
        tiles = axis_tiles(weight, negligible, weight.shape[1], short, cut_keys=number < 2)
        others.append(tiles)
    per_row = prod(max(tile.longest for tile in tiles) for tiles in others)
    first = axis_tiles(weights[0], negligible, max(pixels // max(1, per_row), short), short)
    largest = per_row * max(tile.longest for tile in first)
    return list(product(first, *others)), max(1, pixels // max(1, largest))


def axis_tiles(
    weights: Float[Tensor, "heads queries keys"],
    negligible: float,
    longest: int,
    short: int,
    *,
    cut_keys: bool = True,
) -> list[QueryTile]:
    """Cuts the queries along one axis into tiles: of at most `longest` queries, or `short` if heads are narrow."""
    # `negligible` is the attention that may be left out on either side, per query; 0 leaves out exact zeros only.
    heads, queries, keys = weights.shape
    if cut_keys:
        tiles = _narrow_tiles(weights, negligible, min(short, longest))
        used = sum(length_of(part) for tile in tiles for part in tile.keys)
        if used < WORTHWHILE * keys * heads * len(tiles):
            return tiles
    return [QueryTile(part, [slice(0, keys)] * heads) for part in chunks(queries, longest)]


def _narrow_tiles(weights: Tensor, negligible: float, length: int) -> list[QueryTile]:
    """Cuts the queries into tiles of a length, each with the keys that matter to its queries."""
    parts, keys = chunks(weights.shape[1], length), weights.shape[2]
    most = torch.stack([weights[:, part].amax(1) for part in parts])
    before = (most.cumsum(-1) <= negligible).sum(-1)
    lows = before.clamp(max=keys - 1)  # where no key matters, one stays
    after = (most.flip(-1).cumsum(-1) <= negligible).sum(-1)
    highs = (keys - after).maximum(lows + 1)
    tiles = []
    for part, starts, stops in zip(parts, lows.tolist(), highs.tolist(), strict=True):
        tiles.append(QueryTile(part, list(map(slice, starts, stops))))
    return tiles


class _Means:
    """One head's weighted means of a tile, in memory that every head and tile uses again."""

    def __init__(self, weights: Sequence[Float[Tensor, "heads _ _"]], like: Tensor) -> None:
        self.weights = weights
        self.workspace = Workspace(like)

    def stages(
        self,
        tile: Sequence[QueryTile],
        head: int,
        pixels: Float[Tensor, "images *spatial channels"],
    ) -> list[Tensor]:
        """Takes the means along one axis after the other; returns the pixels before, between and after."""
        # Each is (all axes before, keys along the axis, all axes after); the last is (pixels, channels).
        stage = _region(pixels, tile, head).flatten(2)
        stages = [stage]
        for number, (weight, part) in enumerate(zip(self.weights, tile, strict=True)):
            rows = weight[head, part.queries, part.keys[head]]
            out = self.workspace.get(f"mixed {number}", len(stage), len(rows), stage.shape[2])
            mixed = torch.bmm(rows.expand(len(stage), -1, -1), stage, out=out)
            if number + 1 < len(self.weights):
                keys = length_of(tile[number + 1].keys[head])
                stage = mixed.view(len(stage) * len(rows), keys, -1)
            else:
                stage = mixed.view(-1, pixels.shape[-1])
            stages.append(stage)
        return stages

    def backward(
        self,
        tile: Sequence[QueryTile],
        head: int,
        stages: Sequence[Tensor],
        gradient: Float[Tensor, "pixels channels"],
        by_pixels: Float[Tensor, "images *spatial channels"] | None,
        by_weights: Sequence[Float[Tensor, "heads _ _"] | None],
    ) -> None:
        """Backpropagates from the last of the stages, and adds to the gradients that are not None.

        None of the stages may lie in memory that this function uses.
        """
        for number in reversed(range(len(self.weights))):
            part, stage = tile[number], stages[number]
            rows = self.weights[number][head, part.queries, part.keys[head]]
            upstream = gradient.view(len(stage), len(rows), stage.shape[2])
            by_weight = by_weights[number]
            if by_weight is not None:
                products = self._summed_products(upstream, stage)
                by_weight[head, part.queries, part.keys[head]] += products
            back = rows.mT.expand(len(stage), -1, -1)
            if number:
                out = self.workspace.get(f"back {number}", *stage.shape)
                gradient = torch.bmm(back, upstream, out=out)
            elif by_pixels is not None:
                _region(by_pixels, tile, head).view(stage.shape).baddbmm_(back, upstream)

    def _summed_products(
        self,
        upstream: Float[Tensor, "before queries behind"],
        stage: Float[Tensor, "before keys behind"],
    ) -> Float[Tensor, "queries keys"]:
        """Multiplies queries with keys and sums over all else, with nothing larger than the factors in memory."""
        before, queries, behind = upstream.shape
        keys = stage.shape[1]
        if queries * keys > (queries + keys) * behind:
            pattern = "before queries behind, before keys behind -> queries keys"
            return einsum(upstream, stage, pattern)
        out = self.workspace.get("products", before, queries, keys)
        return torch.bmm(upstream, stage.mT, out=out).sum(0)


def _region(pixels: Tensor, tile: Sequence[QueryTile], head: int) -> Tensor:
    """Returns a view of the keys that a head looks at."""
    return pixels[(slice(None), *(part.keys[head] for part in tile))]


def add_head(
    out: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
) -> None:
    """Adds one head's matrix times its pixels: out += W_h · mixed."""
    if groups == 1:
        out.addmm_(mixed, weight.contiguous().mT)
    elif groups == out.shape[1] == mixed.shape[1]:
        out.addcmul_(mixed, weight[:, 0])
    else:
        _split(out, groups).baddbmm_(_split(mixed, groups), weight.unflatten(0, (groups, -1)).mT)


def head_backward(
    gradient: Float[Tensor, "pixels outputs"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
    *,
    out: Float[Tensor, "pixels channels"],
) -> None:
    """Writes the gradient of `add_head` with respect to the mixed pixels into `out`."""
    if groups == 1:
        torch.mm(gradient, weight, out=out)
    elif groups == gradient.shape[1] == out.shape[1]:
        torch.mul(gradient, weight[:, 0], out=out)
    else:
        back = torch.bmm(_split(gradient, groups), weight.unflatten(0, (groups, -1)))
        out.copy_(rearrange(back, "groups pixels channels -> pixels (groups channels)"))


def head_weight_backward(
    gradient: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    groups: int,
    *,
    into: Float[Tensor, "outputs channels_per_group"],
) -> None:
    """Adds the gradient of `add_head` with respect to the head's matrix to `into`."""
    if groups == 1:
        into.addmm_(gradient.mT, mixed)
    elif groups == gradient.shape[1] == mixed.shape[1]:
        into[:, 0] += (gradient * mixed).sum(0)
    else:
        into.unflatten(0, (groups, -1)).baddbmm_(_split(gradient, groups).mT, _split(mixed, groups))


def _split(
    x: Float[Tensor, "pixels channels"], groups: int
) -> Float[Tensor, "groups pixels channels_per_group"]:
    return x.unflatten(1, (groups, -1)).transpose(0, 1)
