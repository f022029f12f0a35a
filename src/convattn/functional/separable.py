"""Weights that are a product over axes: means along one axis after the other, O(N · (H + W)) instead of O(N²).

With s_h(δ) = Σ_a s_h,a(δ_a), exp s_h is a product over axes and so is its sum over the keys, hence exactly
A_h = A_h,rows ⊗ A_h,cols (`docs/explanation/theory.md` §4), and y = Σ_h W_h A_h,rows A_h,cols x. One axis that holds
all pixels is the general case of weights that are not a product.

Three ways compute this, on a CPU by what was measured to be faster:

- all heads in few large products (`large_products.py`): elsewhere than on a CPU, and in 16 bits;
- plain products of all heads: small calls, and all that torch must see (compilers, `torch.func`);
- in tiles of the queries (`tiles.py`): all else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.functional.large_products import attention_by_products
from convattn.functional.path import CallSizes, Cost, KeyPath
from convattn.functional.reference import HeadMaps, attend_by_axis, means_by_axis
from convattn.functional.tiles import attention_in_tiles
from convattn.functional.torch_modes import is_accelerator, needs_own_operations, product_dtype

SMALL_BYTES = 15 << 15
"""Bytes of the means of all heads up to which plain products of all heads are quicker than tiles: with nine heads and
64 channels on 14 x 14 pixels, 430 kB, by 1.2 and 1.3 times (forward and a step, one core)."""

OWN_CHANNELS = 2.0
"""How many times longer an operation takes if each head mixes channels of its own than in a large product: 1.0 to 2.7
times forward, 3.7 with 224 x 224 pixels, and 0.8 to 2.4 in a step (7 x 7 to 224 x 224 pixels, heads of 8 to 160
channels; two cores, float32). Only ratios of this size decide."""


def separable_attention(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Attends with weights A_h = A_h,1 ⊗ … ⊗ A_h,n and sums the heads' matrices times the means.

    Args:
        weights: For each axis, (heads, queries, keys), as a softmax makes them: rows ≥ 0 of sum 1. Keys with less than
            eps/64 of a row may be left out, also from the gradient of the weights.
        keys: Key images with as many axes.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of products with `keys`. Derivatives above the first, and those of
        torch's function transforms, take the memory of all mixed pixels.
    """
    in_torch = torch.compiler.is_compiling() or needs_own_operations(keys, maps, *weights)
    narrow = product_dtype(keys).itemsize < 4 and not in_torch
    if is_accelerator(keys.device) or narrow:
        return attention_by_products(weights, keys, maps, groups)
    maps = maps.contiguous()  # held as a kernel they are strided, and every product would copy them
    weights = [weight.to(keys.dtype) for weight in weights]
    if in_torch or keys.is_meta or _are_small(weights, keys):
        return attend_by_axis(weights, keys, maps, groups)
    return attention_in_tiles(weights, keys, maps, groups)


def _are_small(weights: Sequence[Tensor], keys: Tensor) -> bool:
    """Tells whether the means of all heads are few numbers."""
    pixels = max(prod(keys.shape[2:]), prod(weight.shape[1] for weight in weights))
    return len(weights[0]) * prod(keys.shape[:2]) * pixels * keys.element_size() <= SMALL_BYTES


def values_come_first(sizes: CallSizes, *, by_axis: bool) -> bool:
    """Tells whether values before means are estimated to be faster than means before W_h."""
    if sizes.inner * OWN_CHANNELS >= sizes.channels:  # as there are no more queries than keys
        return False
    values = sizes.explicit_flops(by_axis=by_axis, values_first=True) * OWN_CHANNELS
    return values < sizes.explicit_flops(by_axis=by_axis)


def explicit_cost(sizes: CallSizes, *, by_axis: bool, values_first: bool) -> Cost:
    """Counts the softmax, the means, and the matrices before or after them."""
    memory = sizes.weights(by_axis=by_axis) * (4 + sizes.itemsize)
    if values_first:
        memory += (
            sizes.batch * sizes.heads * sizes.inner * (sizes.keys + sizes.queries) * sizes.itemsize
        )
    return Cost(sizes.explicit_flops(by_axis=by_axis, values_first=values_first), memory)


def explicit_means(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: HeadMaps,
    *,
    values_first: bool,
) -> Float[Tensor, "batch outputs *queries"]:
    """Attends with weights A_h = A_h,1 ⊗ … ⊗ A_h,n before the matrices, or after W_val.

    Values first, y[q] = Σ_h W_out,h Σ_k A_h[q, k] W_val,h x[k], is faster if heads have few channels, or if there are
    fewer output than input channels.
    """
    if not values_first:
        return separable_attention(weights, keys, maps.whole(), maps.groups)
    narrow = [weight.to(keys.dtype) for weight in weights]
    values = rearrange(maps.values(keys), "images heads keys inner -> heads images inner keys")
    means = means_by_axis(narrow, values.unflatten(3, keys.shape[2:]))
    return maps.combine(means.transpose(0, 1))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class SeparablePath(KeyPath):
    """One softmax along each axis; on a GPU their products may be one matrix of all pairs of queries and keys."""

    name: ClassVar[str] = "separable"
    by_axis: ClassVar[bool] = True
    weights: tuple[Float[Tensor, "heads _ _"], ...]  # in at least float32

    def cost(self) -> Cost:
        """Counts the softmax, the means, and the matrices in the order of the path."""
        by_axis = len(self.weights) == len(self.sizes.axes)
        return explicit_cost(self.sizes, by_axis=by_axis, values_first=self.values_first)

    def outputs(self, keys: Tensor, maps: HeadMaps) -> Tensor:
        """Takes weighted means along each axis, before or after the matrices."""
        if len(self.weights) < keys.ndim - 2:
            keys = keys.flatten(2)
        return explicit_means(self.weights, keys, maps, values_first=self.values_first)
