"""Attention over a whole feature map, and with queries and keys pooled by strided convolutions (MViTv2)."""

from typing import Any

import torch
from torch import nn

from convattn.adapters.attention.layout import Layout, global_layout
from convattn.adapters.attention.partitions import read_maxvit
from convattn.adapters.attention.reduced import key_cells
from convattn.adapters.attention.seen import Read, Seen
from convattn.errors import UnsupportedModelError

_TIMM = "timm.models"


def read_image(seen: Seen) -> Layout:
    """Reads a module that is given images with their channels first, and attends from every pixel to every pixel."""
    rows, cols = seen.args[0].shape[2:]
    return seen.global_layout((rows, cols), 0, "the image that it is given")


def read_partition_or_image(seen: Seen) -> Layout:
    """Reads timm's attention with channels first, which runs on partitions or on whole images."""
    return (
        read_maxvit(seen)
        if any(hasattr(frame.module, "partition_size") for frame in seen.parents[:1])
        else read_image(seen)
    )


def read_pooled(seen: Seen) -> Layout:
    """Reads queries and keys pooled from the grid that the module is given; a token lies where its kernel does."""
    rows, cols = seen.argument(1, "feat_size")
    prefix = int(seen.module.has_cls_token)  # type: ignore[arg-type]
    query, q_steps = _pooled(seen, seen.module.pool_q, (rows, cols))
    key, k_steps = _pooled(seen, seen.module.pool_k, (rows, cols))
    axes = [torch.arange(count).double() * by / step for count, by, step in zip(key, k_steps, q_steps, strict=True)]
    keys = key_cells(axes)
    if (seen.queries, seen.keys) != (prefix + query[0] * query[1], prefix + len(keys)):
        raise UnsupportedModelError(
            f"{seen.queries} queries and {seen.keys} keys do not fit {query} and {key} positions"
        )
    pattern = "global" if query == key else "reduced keys" if len(keys) < query[0] * query[1] else "pooled queries"
    return global_layout(
        query, prefix, keys=keys, pattern=pattern, source="the sizes that its pooling convolutions gave"
    )


def _pooled(seen: Seen, pool: Any, grid: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    if pool is None:
        return grid, (1, 1)
    if not isinstance(pool, nn.Conv2d) or isinstance(pool.padding, str):
        raise UnsupportedModelError("its tokens are pooled by no convolution with a padding in pixels")
    if any(2 * pad + 1 != size for pad, size in zip(pool.padding, pool.kernel_size, strict=True)):
        raise UnsupportedModelError("its tokens are pooled by no convolution that is centred on them")
    return seen.grid_of(pool), (pool.stride[0], pool.stride[1])


POOLED: dict[str, tuple[str, Read]] = {
    f"{_TIMM}.visformer.Attention": ("global", read_image),
    f"{_TIMM}.fastvit.Attention": ("global", read_image),
    f"{_TIMM}.maxxvit.Attention2d": ("global, windows or grid", read_partition_or_image),
    f"{_TIMM}.mvitv2.MultiScaleAttention": ("reduced keys", read_pooled),
}
"""Family and reader by full name of the class."""
