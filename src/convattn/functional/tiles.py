"""Attention in tiles of the queries, so that intermediate results stay in the cache.

    pixels of some images              (keys, images, channels, keys)
    along the first axis, some heads   (heads, queries, images, channels, keys)
    along the last axis                (heads, queries, images, channels, queries)
    a row for each channel of a head   (heads, channels, queries images queries), times W_h, summed over heads

Channels lie between the axes, so that products are large if channels are few. Queries are computed over the keys that
matter to them. For gradients, intermediate results are computed again.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
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

_SHORT = 16
"""Queries along an axis whose keys are found together: enough for matrix products to run at speed, few enough for their
keys to be few."""

_LONG = 64
"""The same for images of one axis, whose products are over all channels of the images."""

WORTHWHILE = 0.6
"""Share of all keys below which short tiles along an axis after the first pay for their calls."""


def attention_in_tiles(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention`, with weights in the dtype of the keys."""
    return _Product.apply(keys.movedim(2, 0).contiguous(), maps, groups, *weights)


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the heads' matrices, summing over heads in place."""

    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        maps: Tensor,
        groups: int,
        *weights: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        ctx.groups = groups
        means = _Means(weights, pixels, groups)
        matrices = of_groups(maps, groups)
        y = pixels.new_empty(
            pixels.shape[1], maps.shape[1], *[len(weight[0]) for weight in weights]
        )
        outputs = _by_channel(y, groups)
        for images, rows, tiles in means.blocks():
            part = outputs[:, :, rows, images]
            total = means.workspace.like("total", part).zero_().flatten(2)
            for tile in tiles:
                mixed = means.rows(tile, means.stages(tile)[-1])
                for matrix, of_head in zip(matrices[tile.heads], mixed, strict=True):
                    if matrix.shape[1:] == (
                        1,
                        1,
                    ):  # a call takes half the time (128 channels, 14 x 14)
                        total.addcmul_(matrix, of_head)
                    else:
                        torch.baddbmm(total, matrix, of_head, out=total)
            part.copy_(total.view(part.shape))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs_pixels, needs_maps, _, *needs_weights = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            by_pixels, by_maps, *by_weights = backward_to_differentiate(
                partial(_as_products, ctx.groups),
                (pixels, maps, *weights),
                (needs_pixels, needs_maps, *needs_weights),
                gradient,
            )
            return by_pixels, by_maps, None, *by_weights
        means = _Means(weights, pixels, ctx.groups)
        matrices = of_groups(maps, ctx.groups)
        by_maps = torch.zeros_like(maps) if needs_maps else None
        by_pixels = pixels.new_zeros(pixels.shape) if needs_pixels else None
        by_weights = []
        for weight, needed in zip(weights, needs_weights, strict=True):
            by_weights.append(torch.zeros_like(weight) if needed else None)
        outputs = _by_channel(gradient, ctx.groups)
        for images, rows, tiles in means.blocks():
            part = outputs[:, :, rows, images]
            upstream = means.workspace.like("upstream", part).copy_(part).flatten(2)
            for tile in tiles:
                stages = means.stages(tile)
                mixed = means.rows(tile, stages[-1])
                if by_maps is not None:
                    into = of_groups(by_maps, ctx.groups)[tile.heads]
                    for by_matrix, of_head in zip(into, mixed, strict=True):
                        torch.baddbmm(by_matrix, upstream, of_head.mT, out=by_matrix)
                if needs_pixels or any(needs_weights):
                    for matrix, of_head in zip(matrices[tile.heads], mixed, strict=True):
                        torch.bmm(matrix.mT, upstream, out=of_head)
                    means.backward(tile, stages, by_pixels, by_weights)
        return by_pixels, by_maps, None, *by_weights


def _as_products(groups: int, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_Product` does, in operations that torch can differentiate."""
    return attend_by_axis(weights, pixels.movedim(0, 2), maps, groups)


def of_groups(
    maps: Float[Tensor, "heads outputs channels_per_group"], groups: int
) -> Float[Tensor, "heads groups outputs_per_group channels_per_group"]:
    """Views the blocks of matrices."""
    return maps.unflatten(1, (groups, -1))


def _by_channel(
    images: Float[Tensor, "batch channels rows *others"], groups: int
) -> Float[Tensor, "groups channels_per_group rows batch others"]:
    """Views contiguous images with their channels first."""
    batch, channels, rows = images.shape[:3]
    sizes = (batch, groups, channels // groups, rows, prod(images.shape[3:]))
    return images.contiguous().view(sizes).permute(1, 2, 3, 0, 4)


class Window(NamedTuple):
    """Queries along one axis, and the keys that get all their attention but rounding."""

    queries: slice
    keys: slice


def _whole(weight: Float[Tensor, "heads queries keys"]) -> Window:
    """Returns all queries and keys."""
    return Window(slice(0, weight.shape[1]), slice(0, weight.shape[2]))


class _Tile(NamedTuple):
    """What is computed together."""

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


def _even(length: int, most: int) -> list[slice]:
    """Cuts positions into chunks of about one size."""
    parts = max(1, -(-length // most))
    return chunks(length, max(1, -(-length // parts)))


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

    def like(self, name: str, other: Tensor) -> Tensor:
        """Returns such a tensor in the shape of another."""
        return self.get(name, *other.shape)


class _Means:
    """Weighted means of the pixels, in memory that every tile uses again.

    Pixels are (rows, images, channels, other axes).
    """

    def __init__(self, weights: Sequence[Tensor], pixels: Tensor, groups: int) -> None:
        self.weights = weights
        self.pixels = pixels
        self.groups = groups
        self.workspace = _Workspace(pixels)
        heads, queries, _ = weights[0].shape
        self.length = min(queries, _SHORT if len(weights) > 1 else _LONG)
        row = self.length * pixels.shape[2] * pixels.element_size()
        for weight in weights[1:]:
            row *= max(weight.shape[1:])
        fitting = max(1, _CACHE // max(1, row))
        self.heads = _even(heads, fitting)
        together = self.heads[0].stop
        self.images = _even(pixels.shape[1], max(1, fitting // together))

    def blocks(self) -> Iterator[tuple[slice, slice, list[_Tile]]]:
        """Yields images, rows of queries, and their tiles, one for each part of the heads."""
        first, *others = self.weights
        rows = self._windows(first, self.length)
        parts = list(zip(self.heads, *map(self._windows, others), strict=True))
        for images in self.images:
            for same_queries in zip(*rows, strict=True):
                tiles = []
                for (heads, *windows), row in zip(parts, same_queries, strict=True):
                    tiles.append(_Tile(images, heads, row, windows))
                yield images, same_queries[0].queries, tiles

    def _windows(self, weight: Tensor, length: int | None = None) -> list[list[Window]]:
        """Cuts an axis into tiles of a length; into short ones, if that pays, where none is given."""
        negligible = torch.finfo(weight.dtype).eps / 64
        cuts = axis_tiles(weight.detach(), negligible, length or _SHORT, self.heads)
        if length is None:
            for number, tiles in enumerate(cuts):
                used = sum(tile.keys.stop - tile.keys.start for tile in tiles)
                if used > WORTHWHILE * weight.shape[2] * len(tiles):
                    cuts[number] = [_whole(weight)]
        return cuts

    def _along(
        self, axis: int, heads: int, stage: Tensor
    ) -> Float[Tensor, "heads before keys behind"]:
        """Views means as matrices with a row for each key along an axis after the first."""
        behind = prod(self.pixels.shape[axis + 3 :])
        return stage.view(heads, -1, self.weights[axis].shape[2], behind)

    def stages(self, tile: _Tile) -> list[Tensor]:
        """Takes the means along one axis after the other; returns those after each axis.

        Each is (heads, before, queries along the axis, behind).
        """
        weight, seen = self._first(tile)
        stage = self.workspace.get("mixed 0", len(weight), seen.shape[1])
        stages = [torch.mm(weight, seen, out=stage)]
        for axis, windows in enumerate(tile.others, start=1):
            weight = self.weights[axis][tile.heads]
            x = self._along(axis, len(weight), stages[-1])
            _, before, _, behind = x.shape
            stage = self.workspace.get(
                f"mixed {axis}", len(weight), before, weight.shape[1], behind
            )
            for queries, keys in windows:
                self._mix(weight[:, queries, keys], x[:, :, keys], stage[:, :, queries])
            stages.append(stage)
        return stages

    def rows(
        self, tile: _Tile, stage: Tensor
    ) -> Sequence[Float[Tensor, "groups channels_per_group pixels"]]:
        """Returns, for each head, a row for each channel: copied, or views of one axis's means."""
        seen = self._rows_of(tile, stage)
        if len(self.weights) > 1:
            seen = self.workspace.like("rows", seen).copy_(seen)
        return [of_head.flatten(2) for of_head in seen]

    def _rows_of(self, tile: _Tile, stage: Tensor) -> Tensor:
        """Views the last means with heads, groups and channels first."""
        heads = tile.heads.stop - tile.heads.start
        images = tile.images.stop - tile.images.start
        channels = self.pixels.shape[2] // self.groups
        others = prod(weight.shape[1] for weight in self.weights[1:])
        apart = stage.view(heads, -1, images, self.groups, channels, others)
        return apart.permute(0, 3, 4, 1, 2, 5)

    def backward(
        self,
        tile: _Tile,
        stages: Sequence[Tensor],
        by_pixels: Float[Tensor, "_ _ *_"] | None,
        by_weights: Sequence[Float[Tensor, "heads _ _"] | None],
    ) -> None:
        """Backpropagates from the gradient of the rows, and adds to the gradients that are not None."""
        if len(stages) > 1:
            into = self._rows_of(tile, stages[-1])
            into.copy_(self.workspace.like("rows", into))
        gradient = stages[-1]
        for axis in reversed(range(1, len(self.weights))):
            weight = self.weights[axis][tile.heads]
            by_weight = by_weights[axis]
            windows = tile.others[axis - 1]
            x = self._along(axis, len(weight), stages[axis - 1])
            upstream = gradient.view(*x.shape[:2], -1, x.shape[3])
            gradient = self.workspace.like(f"back {axis}", x)
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
        weight, seen = self._first(tile)
        upstream = gradient.view(len(weight), -1)
        queries, keys = tile.rows
        if by_weights[0] is not None:
            by_weight = by_weights[0][tile.heads, queries, keys]
            by_weight += (upstream @ seen.mT).view(by_weight.shape)
        if by_pixels is not None:
            part = by_pixels[keys, tile.images]
            part += (weight.mT @ upstream).view(part.shape)

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
            torch.baddbmm(out, left, right, out=out)
        else:
            torch.bmm(left, right, out=out)

    def _products(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiplies matrices, in memory that is used again."""
        out = self.workspace.get("products", *left.shape[:2], right.shape[2])
        return torch.bmm(left, right, out=out)

    def _first(self, tile: _Tile) -> tuple[Tensor, Tensor]:
        """Returns the weights along the first axis, and the pixels that they are times."""
        queries, keys = tile.rows
        weight = self.weights[0][tile.heads, queries, keys].flatten(0, 1)
        return weight, self.pixels[keys, tile.images].flatten(1)
