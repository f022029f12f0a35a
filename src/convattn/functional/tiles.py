"""Attention in tiles of the queries, so that intermediate results stay in the cache.

    pixels of some images              (keys, images, channels, keys)
    along the first axis, some heads   (heads, queries, images, channels, keys)
    along the last axis                (heads, queries, images, channels, queries)
    a row for each channel of a head   (heads, channels, queries images queries), times W_h, summed over heads

Channels lie between the axes, so that products are large if channels are few; if they are many, they lie last.
Queries are computed over the keys that matter to them. For gradients, intermediate results are computed again.
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

_MANY = 8
"""Channels for each pixel along the last axis above which channels lie last, and a tile is of one head and many images:
512 channels on 7 x 7 pixels take 0.7 of the time, 256 on 14 x 14 0.9, but 64 on 32 x 32 1.04 (one core)."""

WORTHWHILE = 0.6
"""Share of all keys below which short tiles along an axis after the first pay for their calls."""


def attention_in_tiles(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention`, with weights in the dtype of the keys."""
    last = len(weights) == 1 or keys.shape[1] > _MANY * keys.shape[-1]
    pixels = keys.movedim(2, 0)
    if last:
        pixels = pixels.movedim(2, -1)
    matrices = maps.unflatten(1, (groups, -1))
    return _Product.apply(pixels.contiguous(), matrices, last, *weights)


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the heads' matrices, summing over heads in place."""

    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        matrices: Tensor,
        last: bool,
        *weights: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(pixels, matrices, *weights)
        ctx.last = last
        groups, outputs = matrices.shape[1:3]
        means = _Means(weights, pixels, groups, last=last)
        y = pixels.new_empty(
            pixels.shape[1], groups * outputs, *[len(weight[0]) for weight in weights]
        )
        by_channel = _by_channel(y, groups)
        for images, rows, tiles in means.blocks():
            part = by_channel[:, :, rows, images]
            total = means.in_order("total", part).zero_().flatten(2)
            for tile in tiles:
                mixed = means.rows(tile, means.stages(tile)[-1], "mixed 0")
                for matrix, of_head in zip(matrices[tile.heads], mixed, strict=True):
                    _add_product(total, matrix, of_head)
            part.copy_(total.view(part.shape))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, matrices, *weights = ctx.saved_tensors
        needs_pixels, needs_matrices, _, *needs_weights = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            by_pixels, by_matrices, *by_weights = backward_to_differentiate(
                partial(_as_products, ctx.last),
                (pixels, matrices, *weights),
                (needs_pixels, needs_matrices, *needs_weights),
                gradient,
            )
            return by_pixels, by_matrices, None, *by_weights
        groups = matrices.shape[1]
        means = _Means(weights, pixels, groups, last=ctx.last)
        by_matrices = torch.zeros_like(matrices) if needs_matrices else None
        by_pixels = torch.zeros_like(pixels) if needs_pixels else None
        by_weights = []
        for weight, needed in zip(weights, needs_weights, strict=True):
            by_weights.append(torch.zeros_like(weight) if needed else None)
        by_channel = _by_channel(gradient, groups)
        for images, rows, tiles in means.blocks():
            part = by_channel[:, :, rows, images]
            upstream = means.in_order("upstream", part).copy_(part).flatten(2)
            for tile in tiles:
                stages = means.stages(tile)
                mixed = means.rows(tile, stages[-1], "back 1")
                if by_matrices is not None:
                    for by_matrix, of_head in zip(by_matrices[tile.heads], mixed, strict=True):
                        _add_product(by_matrix, upstream, of_head.mT)
                if needs_pixels or any(needs_weights):
                    for matrix, of_head in zip(matrices[tile.heads], mixed, strict=True):
                        _add_product(of_head.zero_(), matrix.mT, upstream)
                    means.backward(tile, stages, by_pixels, by_weights)
        return by_pixels, by_matrices, None, *by_weights


def _add_product(
    total: Float[Tensor, "groups m n"],
    left: Float[Tensor, "groups m k"],
    right: Float[Tensor, "groups k n"],
) -> None:
    """Adds products of matrices; element by element where a group has one channel: up to 100 times as fast."""
    if left.shape[1:] == (1, 1):
        total.addcmul_(left, right)
    elif total.shape[1:] == (1, 1):
        total += (left * right.mT).sum(2, keepdim=True)
    else:
        torch.baddbmm(total, left, right, out=total)


def _as_products(last: bool, pixels: Tensor, matrices: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_Product` does, in operations that torch can differentiate."""
    if last:
        pixels = pixels.movedim(-1, 2)
    keys = pixels.movedim(0, 2)
    return attend_by_axis(weights, keys, matrices.flatten(1, 2), matrices.shape[1])


def _by_channel(
    images: Float[Tensor, "batch channels rows *others"], groups: int
) -> Float[Tensor, "groups channels_per_group rows batch others"]:
    """Views contiguous images with their channels first."""
    batch, channels, rows = images.shape[:3]
    return (
        images.contiguous()
        .view(batch, groups, channels // groups, rows, prod(images.shape[3:]))
        .permute(1, 2, 3, 0, 4)
    )


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
    """Cuts positions into chunks of about one size, none longer than `most` if that is at least 1."""
    parts = max(1, -(-length // max(1, most)))
    return chunks(length, max(1, -(-length // parts)))


class _Workspace:
    """Memory that is reused within one call, with the dtype and device of a given tensor."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, shape: Sequence[int]) -> Tensor:
        """Returns an uninitialised, contiguous tensor in the memory that the last tensor of this name had."""
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = self._like.new_empty(size)
        return held[:size].view(shape)


class _Means:
    """Weighted means of the pixels, in memory that every tile uses again.

    Pixels are (rows, images, channels, other axes), or channels lie last.
    """

    def __init__(
        self, weights: Sequence[Tensor], pixels: Tensor, groups: int, *, last: bool
    ) -> None:
        self.weights = weights
        self.pixels = pixels
        self.groups = groups
        self.last = last
        self.channels = pixels.shape[-1 if last else 2]
        self.workspace = _Workspace(pixels)
        heads, queries, _ = weights[0].shape
        self.length = min(queries, _SHORT if len(weights) > 1 else _LONG)
        row = self.length * self.channels * pixels.element_size()
        for weight in weights[1:]:
            row *= max(weight.shape[1:])
        fitting = _CACHE // max(1, row)
        images = pixels.shape[1]
        self.heads = _even(heads, fitting // max(1, images) if last else fitting)
        self.images = _even(images, fitting // self.heads[0].stop)

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
        self, axis: int, weight: Tensor, stage: Tensor
    ) -> Float[Tensor, "heads before keys behind"]:
        """Views means as matrices with a row for each key along an axis after the first."""
        behind = prod(self.pixels.shape[axis + 3 - self.last :])
        return stage.view(len(weight), -1, weight.shape[2], behind)

    def stages(self, tile: _Tile) -> list[Tensor]:
        """Takes the means along one axis after the other; returns those after each axis.

        Each is (heads, before, queries along the axis, behind).
        """
        weight, seen = self._first(tile)
        stage = self.workspace.get("mixed 0", (len(weight), seen.shape[1]))
        stages = [torch.mm(weight, seen, out=stage)]
        for axis, windows in enumerate(tile.others, start=1):
            weight = self.weights[axis][tile.heads]
            x = self._along(axis, weight, stages[-1])
            _, before, _, behind = x.shape
            shape = (len(weight), before, weight.shape[1], behind)
            stage = self.workspace.get(f"mixed {axis}", shape)
            for queries, keys in windows:
                _mix(weight[:, queries, keys], x[:, :, keys], stage[:, :, queries])
            stages.append(stage)
        return stages

    def in_order(
        self, name: str, part: Float[Tensor, "groups channels_per_group rows images others"]
    ) -> Float[Tensor, "groups channels_per_group rows images others"]:
        """Returns memory for outputs in which channels lie as those of the pixels do."""
        if not self.last:
            return self.workspace.get(name, part.shape)
        moved = part.permute(2, 3, 4, 0, 1)
        return self.workspace.get(name, moved.shape).permute(3, 4, 0, 1, 2)

    def rows(
        self, tile: _Tile, stage: Tensor, name: str
    ) -> Float[Tensor, "heads groups channels_per_group pixels"]:
        """Returns, for each head, a row for each channel: copied, into memory of a name, or views of the stage.

        Memory that has no other use then is named: fewer pages are new to the process, which takes 0.93 of the time.
        """
        seen = self._rows_of(tile, stage)
        if not self.last:
            seen = self.workspace.get(name, seen.shape).copy_(seen)
        return seen.flatten(3)

    def _rows_of(self, tile: _Tile, stage: Tensor) -> Tensor:
        """Views the last means with heads, groups and channels first."""
        heads = tile.heads.stop - tile.heads.start
        images = tile.images.stop - tile.images.start
        others = prod(weight.shape[1] for weight in self.weights[1:])
        sizes = (others, self.channels) if self.last else (self.channels, others)
        by_channel = stage.view(heads, -1, images, *sizes).movedim(3 + self.last, 1)
        return by_channel.unflatten(1, (self.groups, -1))

    def backward(
        self,
        tile: _Tile,
        stages: Sequence[Tensor],
        by_pixels: Float[Tensor, "_ _ *_"] | None,
        by_weights: Sequence[Float[Tensor, "heads _ _"] | None],
    ) -> None:
        """Backpropagates from the gradient of the rows, and adds to the gradients that are not None."""
        if not self.last:
            into = self._rows_of(tile, stages[-1])
            into.copy_(self.workspace.get("back 1", into.shape))
        gradient = stages[-1]
        for axis in reversed(range(1, len(self.weights))):
            weight = self.weights[axis][tile.heads]
            by_weight = by_weights[axis]
            windows = tile.others[axis - 1]
            x = self._along(axis, weight, stages[axis - 1])
            upstream = gradient.view(*x.shape[:2], -1, x.shape[3])
            gradient = self.workspace.get(f"back {axis}", x.shape)
            add = windows != [_whole(weight)]
            if add:
                gradient.zero_()
            for queries, keys in windows:
                above = upstream[:, :, queries]
                seen = x[:, :, keys]
                if by_weight is not None:
                    by_weight[tile.heads, queries, keys] += _sum_of_products(above, seen)
                back = weight[:, queries, keys].mT
                _mix(back, above, gradient[:, :, keys], add=add)
        weight, seen = self._first(tile)
        upstream = gradient.view(len(weight), -1)
        queries, keys = tile.rows
        if by_weights[0] is not None:
            by_weight = by_weights[0][tile.heads, queries, keys]
            by_weight += (upstream @ seen.mT).view(by_weight.shape)
        if by_pixels is not None:
            part = by_pixels[keys, tile.images]
            part += (weight.mT @ upstream).view(part.shape)

    def _first(self, tile: _Tile) -> tuple[Tensor, Tensor]:
        """Returns the weights along the first axis, and the pixels that they are times."""
        queries, keys = tile.rows
        weight = self.weights[0][tile.heads, queries, keys].flatten(0, 1)
        return weight, self.pixels[keys, tile.images].flatten(1)


def _mix(
    weight: Float[Tensor, "heads queries keys"],
    x: Float[Tensor, "heads before keys behind"],
    out: Float[Tensor, "heads before queries behind"],
    *,
    add: bool = False,
) -> None:
    """Writes the products along an axis into `out`, or adds them to it."""
    if x.shape[3] == 1:
        means = out[..., 0]
        torch.baddbmm(means, x[..., 0], weight.mT, beta=add, out=means)
        return
    for of_head, keys, means in zip(weight, x, out, strict=True):
        torch.baddbmm(means, of_head.expand(len(keys), -1, -1), keys, beta=add, out=means)


def _sum_of_products(
    upstream: Float[Tensor, "heads before queries behind"],
    x: Float[Tensor, "heads before keys behind"],
) -> Float[Tensor, "heads queries keys"]:
    if x.shape[3] == 1:
        return torch.bmm(upstream[..., 0].mT, x[..., 0])
    sums = []
    for above, keys in zip(upstream, x, strict=True):
        sums.append(torch.bmm(above, keys.mT).sum(0))
    return torch.stack(sums)
