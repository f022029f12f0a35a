"""Attention in tiles of the queries, so that intermediate results stay in the cache.

    pixels of an image                   (keys, channels, keys)
    along the first axis, some heads  →  (heads, queries, channels, keys)
    along the last axis               →  (heads, queries, channels, queries)
    times W_h, summed over heads      →  (queries, outputs, queries)

Channels lie between the axes, so that products are large if channels are few; if they are many, they lie last. Queries
are computed over the keys that matter to them. For gradients, intermediate results are computed again.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from convattn.functional.reference import attend_by_axis
from convattn.functional.torch_modes import (
    backward_to_differentiate,
    chunks,
    needs_own_operations,
)

_CACHE = 1 << 21
"""Bytes of mixed pixels worked on at a time on a CPU, about the second-level caches of a few cores."""

_SHORT = 32
_SHORTER = 16
"""Queries along an axis whose keys are found together, if channels lie last, and else: enough for matrix products to
run at speed, few enough for their keys to be few."""

_MANY = 1 / 2
"""Channels by keys along the last axis above which channels lie last."""

WORTHWHILE = 0.6
"""Share of all keys below which short tiles along an axis after the first pay for their calls."""


def attention_in_tiles(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention`, with weights in the dtype of the keys."""
    several = len(weights) > 1
    if not several:  # one row of pixels, the same for all heads
        weights = [torch.ones_like(weights[0][:1, :1, :1]), *weights]
        keys = keys[:, :, None]
    order = (2, 0)
    if keys.shape[1] > _MANY * keys.shape[-1]:
        order = (1, -1)
    pixels = keys.movedim(*order).contiguous()
    y = _Product.apply(pixels, maps, groups, order, *weights).movedim(*order[::-1])
    return y if several else y[:, :, 0]


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the heads' matrices, summing over heads in place."""

    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        maps: Tensor,
        groups: int,
        order: tuple[int, int],
        *weights: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        ctx.groups, ctx.order = groups, order
        means = _Means(weights, pixels, order)
        queries = [weight.shape[1] for weight in weights]
        images = pixels.new_empty(means.images, maps.shape[1], *queries)
        y = pixels.new_zeros(images.movedim(*order).shape)
        for tile in means.tiles:
            part = means.part(y, tile.images, tile.rows.queries)
            total = part
            if not part.is_contiguous():
                total = means.workspace.get("total", *part.shape).copy_(part)
            mixed = means.stages(tile)[-1]
            add_heads(means.by_channel(total), mixed, maps[tile.heads], groups)
            if total is not part:
                part.copy_(total)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs_pixels, needs_maps, _, _, *needs_weights = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            by_pixels, by_maps, *by_weights = backward_to_differentiate(
                partial(_as_products, ctx.groups, ctx.order),
                (pixels, maps, *weights),
                (needs_pixels, needs_maps, *needs_weights),
                gradient,
            )
            return by_pixels, by_maps, None, None, *by_weights
        gradient = gradient.contiguous()
        means = _Means(weights, pixels.contiguous(), ctx.order)
        by_pixels = pixels.new_zeros(pixels.shape) if needs_pixels else None
        by_maps = torch.zeros_like(maps) if needs_maps else None
        by_weights = []
        for weight, needed in zip(weights, needs_weights, strict=True):
            by_weights.append(torch.zeros_like(weight) if needed else None)
        for tile in means.tiles:
            part = means.part(gradient, tile.images, tile.rows.queries)
            upstream = means.by_channel(part.contiguous())
            stages = means.stages(tile)
            of_heads = maps[tile.heads]
            if by_maps is not None:
                maps_backward(upstream, stages[-1], ctx.groups, into=by_maps[tile.heads])
            if by_pixels is not None or any(needs_weights):
                heads_backward(upstream, of_heads, ctx.groups, out=stages[-1])
                means.backward(tile, stages, by_pixels, by_weights)
        return by_pixels, by_maps, None, None, *by_weights


def _as_products(
    groups: int,
    order: tuple[int, int],
    pixels: Tensor,
    maps: Tensor,
    *weights: Tensor,
) -> Tensor:
    """Computes what `_Product` does, in operations that torch can differentiate."""
    keys = pixels.movedim(*order[::-1])
    of_heads = [weight.expand(len(maps), -1, -1) for weight in weights]
    y = attend_by_axis(of_heads, keys, maps, groups)
    return y.movedim(*order)


class Window(NamedTuple):
    """Queries along one axis, and the keys that get all their attention but rounding."""

    queries: slice
    keys: slice


def _whole(weight: Float[Tensor, "heads queries keys"]) -> Window:
    """Returns all queries and keys."""
    return Window(slice(0, weight.shape[1]), slice(0, weight.shape[2]))


class _Tile(NamedTuple):
    """What is computed together; if channels lie last, several heads of one image or one head of several."""

    images: slice
    heads: slice
    rows: Window  # along the first axis
    others: Sequence[list[Window]]  # along each further axis, all queries


def axis_tiles(
    weights: Float[Tensor, "heads queries keys"],
    negligible: float,
    length: int,
    parts: Sequence[slice],
) -> list[list[Window]]:
    """Cuts the queries along one axis into tiles of a length, each with the keys that matter to one of its queries.

    `negligible` is the attention that may be left out on either side, per query; 0 leaves out exact zeros only. Returns
    the tiles for each part of the heads.
    """
    keys = weights.shape[2]
    tiles = chunks(weights.shape[1], length)
    most = torch.stack([weights[:, tile].amax(1) for tile in tiles])
    before = (most.cumsum(-1) <= negligible).sum(-1)
    lows = before.clamp(max=keys - 1)  # where no key matters, one stays
    after = (most.flip(-1).cumsum(-1) <= negligible).sum(-1)
    highs = (keys - after).maximum(lows + 1)
    found = list(zip(tiles, lows.tolist(), highs.tolist(), strict=True))
    cuts = []
    for part in parts:
        cut = []
        for tile, starts, stops in found:
            seen = slice(min(starts[part]), max(stops[part]))
            cut.append(Window(tile, seen))
        cuts.append(cut)
    return cuts


class _Workspace:
    """Memory that is reused within one call, with the dtype and device of a given tensor."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """Returns an uninitialised, contiguous tensor in the memory that the last tensor of this name had."""
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = self._like.new_empty(size)
        return held[:size].view(shape)


class _Means:
    """Weighted means of the pixels, in memory that every tile uses again.

    Pixels are (images, rows, other axes, channels) or (rows, images, channels, other axes).
    """

    def __init__(self, weights: Sequence[Tensor], pixels: Tensor, order: tuple[int, int]) -> None:
        heads = len(weights[-1])
        self.shared = len(weights[0]) < heads  # whether there is one row of pixels
        self.weights = [weight.expand(heads, -1, -1) for weight in weights]
        self.pixels = pixels
        self.last = order[1] == -1  # whether channels lie last
        self.short = _SHORT if self.last else _SHORTER
        self.images = pixels.shape[0 if self.last else 1]
        self.workspace = _Workspace(pixels)
        self.tiles = list(self._tiles())

    def _tiles(self) -> Iterator[_Tile]:
        """Cuts the call into tiles."""
        heads, queries, _ = self.weights[0].shape
        images = self.images
        together = 1
        length = min(queries, self.short)
        row = length * self.pixels.shape[-1 if self.last else 2]
        for weight in self.weights[1:]:
            row *= max(weight.shape[1:])
        fitting = max(1, _CACHE // max(1, row * self.pixels.element_size()))
        if self.last and images > 1:
            images = fitting
        else:
            together = -(-heads // -(-heads // fitting))  # so that parts are about as large
            images = fitting // together
        parts = chunks(heads, together)
        first, *others = self.weights
        rows = self._windows(first, parts, length)
        cuts = [self._windows(weight, parts) for weight in others]
        windows = list(zip(*cuts, strict=True))
        for several in chunks(self.images, images):
            for same_queries in zip(*rows, strict=True):
                for tile in zip(parts, same_queries, windows, strict=True):
                    yield _Tile(several, *tile)

    def _windows(
        self,
        weight: Tensor,
        parts: Sequence[slice],
        length: int | None = None,
    ) -> list[list[Window]]:
        """Cuts an axis into tiles of a length; into short ones, if that pays, where none is given."""
        negligible = torch.finfo(weight.dtype).eps / 64
        cuts = axis_tiles(weight.detach(), negligible, length or self.short, parts)
        if length is None:
            for number, tiles in enumerate(cuts):
                used = sum(tile.keys.stop - tile.keys.start for tile in tiles)
                if used > WORTHWHILE * weight.shape[2] * len(tiles):
                    cuts[number] = [_whole(weight)]
        return cuts

    def part(self, x: Tensor, images: slice, rows: slice) -> Tensor:
        """Views some rows of some images."""
        return x[images, rows] if self.last else x[rows, images]

    def by_channel(self, part: Tensor) -> Float[Tensor, "before channels behind"]:
        """Views pixels as matrices with a row for each channel."""
        if self.last:
            return part.view(1, -1, part.shape[-1]).mT
        return part.view(-1, part.shape[2], prod(part.shape[3:]))

    def along(self, axis: int, stage: Tensor) -> Float[Tensor, "heads before keys behind"]:
        """Views means as matrices with a row for each key along the next axis."""
        own = axis + (1 if self.last else 2)
        behind = prod(self.pixels.shape[own + 1 :])
        return stage.view(len(stage), -1, self.weights[axis].shape[2], behind)

    def stages(self, tile: _Tile) -> list[Tensor]:
        """Takes the means along one axis after the other; returns those after each axis.

        Each is (heads, before, queries along the axis, behind), but the last (heads, before, channels, behind).
        """
        heads = tile.heads.stop - tile.heads.start
        weight, seen = self._first(tile, self.pixels)
        if self.shared:
            stages = [seen.view(1, -1).expand(heads, -1)]
        else:
            stage = self.workspace.get("mixed 0", len(seen), weight.shape[1], seen.shape[2])
            torch.bmm(weight, seen, out=stage)
            stages = [stage.view(heads, -1)]
        for axis, windows in enumerate(tile.others, start=1):
            weight = self.weights[axis][tile.heads]
            x = self.along(axis, stages[-1])
            _, before, _, behind = x.shape
            queries = weight.shape[1]
            stage = self.workspace.get(f"mixed {axis}", heads, before, queries, behind)
            for own, keys in windows:
                seen = x[:, :, keys]
                self._mix(weight[:, own, keys], seen, stage[:, :, own])
            stages.append(stage)
        stage = stages[-1]
        if self.last:
            stages[-1] = stage.view(heads, 1, -1, self.pixels.shape[-1]).mT
        else:
            others = prod(weight.shape[1] for weight in self.weights[1:])
            stages[-1] = stage.view(heads, -1, self.pixels.shape[2], others)
        return stages

    def backward(
        self,
        tile: _Tile,
        stages: Sequence[Tensor],
        by_pixels: Float[Tensor, "_ _ *_"] | None,
        by_weights: Sequence[Float[Tensor, "heads _ _"] | None],
    ) -> None:
        """Backpropagates from the last stage, which holds its gradient, and adds to the gradients that are not None."""
        gradient = stages[-1].mT if self.last else stages[-1]
        for axis in reversed(range(1, len(self.weights))):
            weight = self.weights[axis][tile.heads]
            by_weight = by_weights[axis]
            windows = tile.others[axis - 1]
            x = self.along(axis, stages[axis - 1])
            upstream = gradient.view(*x.shape[:2], -1, x.shape[3])
            gradient = self.workspace.get(f"back {axis}", *x.shape)
            add = windows != [_whole(weight)]
            if add:
                gradient.zero_()
            for queries, keys in windows:
                above = upstream[:, :, queries]
                seen = x[:, :, keys]
                if by_weight is not None:
                    by_weight[tile.heads, queries, keys] += self._sum_of_products(above, seen)
                back = weight[:, queries, keys].mT
                self._mix(back, above, gradient[:, :, keys], add=add)
        weight, seen = self._first(tile, self.pixels)
        upstream = gradient.view(len(seen), weight.shape[1], -1)
        if by_weights[0] is not None:
            queries, keys = tile.rows
            into = by_weights[0][tile.heads, queries, keys]
            products = self._products(upstream, seen.mT)
            into += products.sum(0).view(into.shape)
        if by_pixels is not None:
            self._first(tile, by_pixels)[1].baddbmm_(weight.mT, upstream)

    def _mix(
        self,
        weight: Float[Tensor, "heads queries keys"],
        x: Float[Tensor, "heads before keys behind"],
        out: Float[Tensor, "heads before queries behind"],
        *,
        add: bool = False,
    ) -> None:
        """Writes the products along an axis into `out`, or adds them to it."""
        if x.shape[3] == 1:
            self._multiply(out[..., 0], x[..., 0], weight.mT, add=add)
            return
        for of_head, keys, means in zip(weight, x, out, strict=True):
            self._multiply(means, of_head.expand(len(keys), -1, -1), keys, add=add)

    def _sum_of_products(
        self,
        upstream: Float[Tensor, "heads before queries behind"],
        x: Float[Tensor, "heads before keys behind"],
    ) -> Float[Tensor, "heads queries keys"]:
        if x.shape[3] == 1:
            return torch.bmm(upstream[..., 0].mT, x[..., 0])
        sums = []
        for above, keys in zip(upstream, x, strict=True):
            sums.append(self._products(above, keys.mT).sum(0))
        return torch.stack(sums)

    def _multiply(self, out: Tensor, left: Tensor, right: Tensor, *, add: bool) -> None:
        """Writes products of matrices, or adds them."""
        # Into memory with gaps they go one by one, and threads would wait for each other after each.
        if not out.is_contiguous() and torch.get_num_threads() > 1:
            products = self._products(left, right)
            if add:
                out += products
            else:
                out.copy_(products)
        elif add:
            out.baddbmm_(left, right)
        else:
            torch.bmm(left, right, out=out)

    def _products(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiplies matrices, in memory that is used again."""
        out = self.workspace.get("products", *left.shape[:2], right.shape[2])
        return torch.bmm(left, right, out=out)

    def _first(self, tile: _Tile, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the weights along the first axis, the same for each image, and a view of what they are times."""
        queries, keys = tile.rows
        weight = self.weights[0][tile.heads, queries, keys].flatten(0, 1)
        part = self.part(pixels, tile.images, keys)
        seen = part.flatten(2) if self.last else part.flatten(1)[None]
        return weight.expand(len(seen), -1, -1), seen


def add_heads(
    out: Float[Tensor, "before outputs behind"],
    mixed: Float[Tensor, "heads before channels behind"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
) -> None:
    """Adds each head's matrix times its pixels: out += Σ_h W_h · mixed_h."""
    if groups == out.shape[1] == mixed.shape[2]:
        for of_head, weight in zip(mixed, maps, strict=True):
            out.addcmul_(of_head, weight)
        return
    parts = _split(out, groups)
    seen = _split(mixed, groups)
    matrices = _blocks(maps, len(out), groups)
    for of_head, matrix in zip(seen, matrices, strict=True):
        parts.baddbmm_(matrix, of_head)


def heads_backward(
    gradient: Float[Tensor, "before outputs behind"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
    *,
    out: Float[Tensor, "heads before channels behind"],
) -> None:
    """Writes the gradient of `add_heads` with respect to the mixed pixels into `out`."""
    if groups == gradient.shape[1] == out.shape[2]:
        torch.mul(gradient, maps[:, None], out=out)
        return
    upstream = _split(gradient, groups)
    seen = _split(out, groups)
    matrices = _blocks(maps, len(gradient), groups)
    for of_head, matrix in zip(seen, matrices, strict=True):
        torch.bmm(matrix.mT, upstream, out=of_head)


def maps_backward(
    gradient: Float[Tensor, "before outputs behind"],
    mixed: Float[Tensor, "heads before channels behind"],
    groups: int,
    *,
    into: Float[Tensor, "heads outputs channels_per_group"],
) -> None:
    """Adds the gradient of `add_heads` with respect to the heads' matrices to `into`."""
    if len(gradient) == 1:
        pattern = "(groups channels) behind -> groups channels behind"
        upstream = rearrange(gradient[0], pattern, groups=groups)
        for of_head, weight in zip(mixed, into, strict=True):
            seen = rearrange(of_head[0], pattern, groups=groups)
            weight.unflatten(0, (groups, -1)).baddbmm_(upstream, seen.mT)
        return
    # Copied, so that one product takes all pixels and heads: sums over small products take up to three times as long.
    pattern = "before (groups outputs) behind -> groups outputs (before behind)"
    upstream = rearrange(gradient, pattern, groups=groups)
    pattern = "heads before (groups channels) behind -> groups (heads channels) (before behind)"
    seen = rearrange(mixed, pattern, groups=groups)
    products = torch.bmm(upstream, seen.mT)
    pattern = "groups outputs (heads channels) -> heads (groups outputs) channels"
    into += rearrange(products, pattern, heads=len(mixed))


def _split(
    x: Float[Tensor, "*heads before channels behind"], groups: int
) -> Float[Tensor, "*heads parts channels_per_group behind"]:
    pattern = "... before (groups channels) behind -> ... (before groups) channels behind"
    return rearrange(x, pattern, groups=groups)


def _blocks(
    maps: Float[Tensor, "heads outputs channels_per_group"],
    before: int,
    groups: int,
) -> Float[Tensor, "heads parts outputs_per_group channels_per_group"]:
    """Repeats the blocks of each matrix for all that is before the channels."""
    pattern = "heads (groups outputs) channels -> heads (before groups) outputs channels"
    return repeat(maps, pattern, before=before, groups=groups)
