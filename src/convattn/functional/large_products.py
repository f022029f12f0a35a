"""All heads in a few large products: on a GPU, where each kernel costs a start, and in 16 bits, multiplied in blocks.

    rows, a query and a head each    (queries · heads, keys)    the same for every image
    times pixels, channels last   →  (images, queries, heads · channels)
    times all W_h, side by side   →  (images, queries, outputs)

Where attention is left as
a product over axes, all heads attend along the rows in one product, then along the columns. Images that do not fit the
memory, on a CPU the cache, go through in parts, and are computed again for the gradient.
"""

from collections.abc import Sequence
from functools import partial
from math import gcd, prod

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.reference import attend_by_axis
from convattn.functional.torch_modes import (
    at_least_float32,
    computed_again,
    fitting,
    is_accelerator,
    needs_own_operations,
    product_dtype,
    without_autocast,
)

_ALIGNED = 32
"""On a CPU, images times channels is a multiple of this: other products take up to three times as long (oneDNN)."""


def attention_by_products(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention`, in the dtype of products; one axis of weights may hold all pixels."""
    dtype = product_dtype(keys)
    maps = maps.to(at_least_float32(dtype))  # in which gradients of parts are summed
    inputs = (keys.to(dtype), maps, *weights)
    compute = partial(_compute, groups)
    pixels = max(prod(keys.shape[2:]), prod(weight.shape[1] for weight in weights))
    each = len(maps) * pixels * dtype.itemsize
    channels = keys.shape[1]
    aligned = 1
    if is_accelerator(keys.device):  # the gradient of all weights is in memory for each image
        channels = max(channels, weights[0].shape[2])
    else:
        aligned = _ALIGNED // gcd(_ALIGNED, channels)
    images = max(1, fitting(keys.device, each * channels) // aligned) * aligned
    with without_autocast(keys.device):
        if torch.compiler.is_compiling() or needs_own_operations(*inputs) or len(keys) <= images:
            return compute(*inputs)
        again = computed_again(compute)
        parts = inputs[0].split(images)
        return torch.cat([again(part, *inputs[1:]) for part in parts])


def _compute(groups: int, keys: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    if len(weights) == 1:
        return _of_all_pairs(groups, keys, maps, *weights)
    narrow = [weight.to(keys.dtype) for weight in weights]
    if len(weights) > 2 or groups > 1:
        return attend_by_axis(narrow, keys, maps.to(keys.dtype), groups)
    rows, cols = narrow
    heads, queries, _ = rows.shape
    images, channels = keys.shape[:2]
    pixels = rearrange(keys, "images channels rows cols -> cols rows (images channels)")
    by_rows = torch.bmm(rows.flatten(0, 1).expand(len(pixels), -1, -1), pixels)
    by_head = rearrange(
        by_rows, "cols (heads queries) inner -> heads cols (queries inner)", heads=heads
    )
    by_cols = torch.bmm(cols, by_head)
    pattern = "heads cols (rows_images channels) -> (cols rows_images) (heads channels)"
    means = rearrange(by_cols, pattern, channels=channels)
    matrix = maps.transpose(0, 1).flatten(1).to(keys.dtype)
    y = functional.linear(means, matrix)
    return y.view(cols.shape[1], queries, images, len(matrix)).permute(2, 3, 1, 0)


def _of_all_pairs(groups: int, keys: Tensor, maps: Tensor, weight: Tensor) -> Tensor:
    rows = weight.transpose(0, 1).flatten(0, 1).to(keys.dtype)
    pixels = keys.flatten(2).mT
    mixed = torch.bmm(rows.expand(len(pixels), -1, -1), pixels)
    queries = weight.shape[1]
    pattern = "batch (queries heads) (groups channels) -> groups (batch queries) (heads channels)"
    by_group = rearrange(mixed, pattern, queries=queries, groups=groups)
    matrices = rearrange(
        maps, "heads (groups outputs) channels -> groups (heads channels) outputs", groups=groups
    )
    pattern = "groups (batch queries) outputs -> batch (groups outputs) queries"
    return rearrange(by_group @ matrices.to(keys.dtype), pattern, queries=queries)
