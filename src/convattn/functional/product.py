"""Attention whose weights are a product over axes, computed without keeping anything of size heads × N.

Head by head, over images and rows that fit the cache, the mixed pixels are made, used and thrown away, and made
again where
the gradient needs them. One axis that holds all pixels is the general case, of weights that are not a product.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from convattn.functional.mixing import Block, key_blocks, mix_axis, mix_axis_backward
from convattn.functional.values import add_head, combine_heads, head_backward

__all__ = ["product_attention"]

_AXES = "depth rows cols"
_CACHE = 1 << 21
"""Bytes of mixed pixels worked on at a time on a CPU, about the second-level caches of a few cores."""


def product_attention(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Attends with weights A_h = A_h,1 ⊗ … ⊗ A_h,n and sums the heads' matrices times the means.

    Args:
        weights: For each axis, (heads, queries, keys).
        keys: Key images with as many axes.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of `keys`. Gradients are of first order only.
    """
    narrow = keys.element_size() < torch.float32.itemsize  # heads must be summed before they are rounded
    if narrow or torch.compiler.is_compiling() or torch.is_autocast_enabled(keys.device.type):
        return _as_products(weights, keys, maps, groups)
    pixels = rearrange(keys, "batch channels ... -> batch ... channels").contiguous()
    y = _Product.apply(pixels, maps, groups, *weights)
    return rearrange(y, "batch ... outputs -> batch outputs ...")


def _as_products(weights: Sequence[Tensor], keys: Tensor, maps: Tensor, groups: int) -> Tensor:
    """Computes the attention as plain products, for compilers and autocast to work on."""
    names = _AXES.split()[-len(weights) :]
    mixed, before = keys, "batch channels " + " ".join(names)
    for name, weight in zip(names, weights, strict=True):
        after = "batch heads channels " + before.split("channels ")[1].replace(name, "queries")
        mixed = einsum(weight, mixed, f"heads queries {name}, {before} -> {after}")
        before = after.replace("queries", f"queries_{name}")
    return combine_heads(mixed, maps, groups)


class _Work:
    """One call's sizes, bands and pieces."""

    def __init__(self, pixels: Tensor, maps: Tensor, weights: Sequence[Tensor]) -> None:
        self.weights = weights
        eps = torch.finfo(pixels.dtype).eps if pixels.device.type == "cpu" else None
        whole = [Block(slice(None), slice(None))]
        self.blocks = [[whole] * len(maps) if eps is None else key_blocks(weight, eps / 64) for weight in weights]
        self.queries = [weight.shape[1] for weight in weights]
        per_row = pixels.shape[-1] * pixels.element_size()
        for weight in weights[1:]:
            per_row *= max(weight.shape[1:])
        rows = max(1, _CACHE // max(1, per_row)) if pixels.device.type == "cpu" else 1 << 62
        self.images = max(1, rows // self.queries[0])
        self.rows = min(self.queries[0], rows)

    def pieces(self, batch: int) -> Iterator[tuple[slice, slice]]:
        """Yields (images, query rows) that fit the cache."""
        for image in range(0, batch, self.images):
            for row in range(0, self.queries[0], self.rows):
                yield slice(image, min(image + self.images, batch)), slice(row, min(row + self.rows, self.queries[0]))

    def first_axis(self, head: int, rows: slice) -> tuple[Tensor, list[Block]]:
        """Weights and bands of the first axis, for some of its queries."""
        weight, blocks = self.weights[0][head], self.blocks[0][head]
        if rows == slice(0, self.queries[0]):
            return weight, blocks
        if len(blocks) == 1:
            return weight[rows], [Block(slice(0, rows.stop - rows.start), blocks[0].keys)]
        cut = []
        for queries, keys in blocks:
            low, high = max(queries.start, rows.start), min(queries.stop, rows.stop)
            if low < high:
                cut.append(Block(slice(low - rows.start, high - rows.start), keys))
        return weight[rows], cut

    def mix(self, head: int, pixels: Tensor, rows: slice) -> list[Tensor]:
        """Mixes one axis after the other; returns the pixels before, between and after."""
        stages = [pixels]
        for number in range(len(self.weights)):
            weight, blocks = self.first_axis(head, rows) if number == 0 else self.axis(head, number)
            x = stages[-1]
            shape = (*x.shape[: 1 + number], weight.shape[0], *x.shape[2 + number :])
            flat = x.flatten(0, number) if number else x
            stages.append(mix_axis(weight, flat.flatten(2), blocks).view(shape))
        return stages

    def axis(self, head: int, number: int) -> tuple[Tensor, list[Block]]:
        """Weights and bands of an axis after the first."""
        return self.weights[number][head], self.blocks[number][head]

    def mix_backward(
        self, head: int, stages: list[Tensor], gradient: Tensor, rows: slice, into: Tensor, weight_gradients: list[Any]
    ) -> None:
        """Carries the gradient of the mixed pixels back to the pixels (added to `into`) and to the weights."""
        for number in reversed(range(len(self.weights))):
            weight, blocks = self.first_axis(head, rows) if number == 0 else self.axis(head, number)
            kept = weight_gradients[number]
            if kept is not None:
                kept = kept[head][rows] if number == 0 else kept[head]
            x = stages[number]
            shape = x.shape
            out = into.flatten(2) if number == 0 else None
            flat = (x.flatten(0, number) if number else x).flatten(2)
            g = (gradient.flatten(0, number) if number else gradient).flatten(2)
            gradient = mix_axis_backward(weight, flat, g, blocks, weights_gradient=kept, out=out).view(shape)


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the head's matrix, summing over heads in place."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, groups: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        ctx.groups = groups
        work = _Work(pixels, maps, weights)
        y = pixels.new_zeros(pixels.shape[0], *work.queries, maps.shape[1])
        for images, rows in work.pieces(len(pixels)):
            x, part = pixels[images], y[images, rows]
            total = part if part.is_contiguous() else torch.zeros_like(part, memory_format=torch.contiguous_format)
            for head, weight in enumerate(maps):
                mixed = work.mix(head, x, rows)[-1]
                add_head(total.flatten(0, -2), mixed.flatten(0, -2), weight, groups)
            if total is not part:
                part.copy_(total)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        groups = ctx.groups
        needs = ctx.needs_input_grad
        work = _Work(pixels, maps, weights)
        gradient = gradient.contiguous()
        dx = torch.zeros_like(pixels)
        dmaps = torch.zeros_like(maps) if needs[1] else None
        dweights = [torch.zeros_like(w) if need else None for w, need in zip(weights, needs[3:], strict=True)]
        for images, rows in work.pieces(len(pixels)):
            x, dy = pixels[images], gradient[images, rows]
            dy = dy.contiguous()
            for head, weight in enumerate(maps):
                stages = work.mix(head, x, rows)
                dweight = None if dmaps is None else dmaps[head]
                mixed = stages[-1]
                dmixed = head_backward(
                    dy.flatten(0, -2), mixed.flatten(0, -2), weight, groups, weight_gradient=dweight
                ).view(mixed.shape)
                work.mix_backward(head, stages, dmixed, rows, dx[images], dweights)
        return dx, dmaps, None, *dweights
