"""The products of `separable_attention`, head by head, with a gradient that keeps nothing of size heads × N."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.functional.autocast import autocasts, product_dtype
from convattn.functional.derivatives import backward_to_differentiate, needs_own_operations
from convattn.functional.reference import join_axes
from convattn.functional.separable.bfloat16 import bfloat16_attention
from convattn.functional.separable.heads import add_head, head_backward, head_weight_backward
from convattn.functional.separable.products import attention_as_products
from convattn.functional.separable.tiles import QueryTile, Workspace, chunks, mix, mix_backward, tiles_of_all_axes

_CACHE = 1 << 21
"""Bytes of mixed pixels worked on at a time on a CPU, about the second-level caches of a few cores."""

_JOINED = 64
"""Most keys of an image whose axes are joined under autocast on a CPU: one large product is then quicker than many
small ones (a step with 8 x 8 pixels in bfloat16 takes half the time on one core with AMX, with 16 x 16 as long)."""


def separable_attention(
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
        Output channels at each query, in the dtype of `keys`. Derivatives above the first, and those of torch's
        function transforms, take the memory of all mixed pixels.
    """
    if _to_be_joined(weights, keys):
        y = separable_attention([join_axes(weights)], keys.flatten(2), maps, groups)
        return y.unflatten(2, [weight.shape[1] for weight in weights])
    if groups == 1 and len(weights) < 3 and _in_bfloat16(keys) and not needs_own_operations(keys, maps, *weights):
        return bfloat16_attention(weights, keys, maps)
    weights = [weight.to(keys.dtype) for weight in weights]
    narrow = keys.element_size() < torch.float32.itemsize  # heads must be summed before they are rounded
    in_graph = torch.compiler.is_compiling() or autocasts(keys.device)
    if narrow or in_graph or needs_own_operations(keys, maps, *weights):
        return attention_as_products(weights, keys, maps, groups)
    pixels = rearrange(keys, "batch channels ... -> batch ... channels").contiguous()
    y = _Product.apply(pixels, maps, groups, *weights)
    return rearrange(y, "batch ... outputs -> batch outputs ...")


def _in_bfloat16(keys: Tensor) -> bool:
    """Tells whether products are taken in bfloat16 on a CPU, outside a compiled graph."""
    if torch.compiler.is_compiling():
        return False
    return keys.device.type == "cpu" and product_dtype(keys) == torch.bfloat16


def _to_be_joined(weights: Sequence[Tensor], keys: Tensor) -> bool:
    """Tells whether the weights of all axes are multiplied before they meet the pixels."""
    on_cpu = keys.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return len(weights) > 1 and on_cpu and math.prod(keys.shape[2:]) <= _JOINED


def _pixels_as_products(groups: int, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_Product` does, with the channels of a pixel together."""
    y = attention_as_products(weights, rearrange(pixels, "batch ... channels -> batch channels ..."), maps, groups)
    return rearrange(y, "batch outputs ... -> batch ... outputs")


def _image_tiles(pixels: Tensor, weights: Sequence[Tensor]) -> list[tuple[slice, tuple[QueryTile, ...]]]:
    """Cuts one call into images and tiles of queries; on a GPU it is one piece."""
    if pixels.device.type == "cpu":
        most = _CACHE // max(1, pixels.shape[-1] * pixels.element_size())
        eps = torch.finfo(pixels.dtype).eps
        tiles, images = tiles_of_all_axes([weight.detach() for weight in weights], eps / 64, most)
    else:
        whole = (QueryTile(slice(0, w.shape[1]), [slice(0, w.shape[2])] * len(w)) for w in weights)
        tiles, images = [tuple(whole)], max(1, len(pixels))
    return list(product(chunks(len(pixels), images), tiles))


class _Product(torch.autograd.Function):
    """Attend along each axis, then apply the head's matrix, summing over heads in place."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, groups: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        ctx.groups = groups
        workspace = Workspace(pixels)
        y = pixels.new_zeros(pixels.shape[0], *(weight.shape[1] for weight in weights), maps.shape[1])
        for images, tile in _image_tiles(pixels, weights):
            part = y[_queries(images, tile)]
            total = part if part.is_contiguous() else workspace.get("total", *part.shape).zero_()
            for head, weight in enumerate(maps):
                mixed = mix(weights, tile, head, pixels[images], workspace)[-1]
                add_head(total.view(-1, total.shape[-1]), mixed, weight, groups)
            if total is not part:
                part.copy_(total)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs, workspace = ctx.needs_input_grad, Workspace(pixels)
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            wanted = (*needs[:2], *needs[3:])
            compute = partial(_pixels_as_products, ctx.groups)
            dx, dmaps, *dweights = backward_to_differentiate(compute, (pixels, maps, *weights), wanted, gradient)
            return dx, dmaps, None, *dweights
        dx = torch.zeros_like(pixels) if needs[0] else None
        dmaps = torch.zeros_like(maps) if needs[1] else None
        dweights = [torch.zeros_like(w) if need else None for w, need in zip(weights, needs[3:], strict=True)]
        for images, tile in _image_tiles(pixels, weights):
            dy = gradient[_queries(images, tile)].flatten(0, -2).contiguous()
            for head, weight in enumerate(maps):
                stages = mix(weights, tile, head, pixels[images], workspace)
                if dmaps is not None:
                    head_weight_backward(dy, stages[-1], ctx.groups, into=dmaps[head])
                if dx is None and not any(needs[3:]):
                    continue
                dmixed = workspace.get("gradient", *stages[-1].shape)
                head_backward(dy, weight, ctx.groups, out=dmixed)
                mix_backward(
                    weights,
                    tile,
                    head,
                    stages,
                    dmixed,
                    pixels_gradient=None if dx is None else dx[images],
                    weight_gradients=dweights,
                    workspace=workspace,
                )
        return dx, dmaps, None, *dweights


def _queries(images: slice, tile: Sequence[QueryTile]) -> tuple[slice, ...]:
    return images, *(part.queries for part in tile)
