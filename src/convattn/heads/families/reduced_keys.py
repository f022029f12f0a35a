"""Queries and keys that are pooled from feature maps, as in PVT, Segformer and MViT, and images with channels first."""

from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.families.window_attention import read_maxvit
from convattn.heads.layout import Layout, global_layout, lattice

_REDUCTIONS = ("sr", "sequence_reduction", "spatial_reduction")


def cell_centres(
    call: CallContext, pool: nn.Module | None, grid: tuple[int, int]
) -> list[Float64[Tensor, " cells"]]:
    """Lists the middles of the cells that a pooling makes of a grid along each axis, in positions of the grid.

    A convolution makes them, each where the middle of its kernel lies. One of 1 × 1 follows an adaptive pooling, whose
    cell i of n covers the positions ⌊i size / n⌋ to ⌈(i + 1) size / n⌉ − 1.
    """
    if pool is None:
        return [torch.arange(size).double() for size in grid]
    if not isinstance(pool, nn.Conv2d) or isinstance(pool.padding, str):
        raise UnsupportedModelError(
            "its tokens are pooled by no convolution with padding in numbers"
        )
    axes = []
    for axis, (size, cells) in enumerate(zip(grid, call.grid_of(pool), strict=True)):
        number = torch.arange(cells).double()
        if pool.kernel_size == pool.stride == (1, 1):
            first = (number * size / cells).floor()
            end = ((number + 1) * size / cells).ceil()
            axes.append((first + end - 1) / 2)
        else:
            reach = pool.dilation[axis] * (pool.kernel_size[axis] - 1)
            axes.append(number * pool.stride[axis] + reach / 2 - pool.padding[axis])
    return axes


def read_reduced(call: CallContext) -> Layout:
    """Reads keys that a convolution, or a pooling to 7 × 7, makes of the grid that the module is given."""
    rows, cols = _grid(call)
    prefix = call.queries - rows * cols
    if prefix not in (0, 1):
        raise UnsupportedModelError(
            f"{call.queries} queries are not {rows} × {cols} positions, with a class token or not"
        )
    if call.keys == call.queries:
        return call.global_layout((rows, cols), prefix)
    parts = [getattr(call.module, name, None) for name in _REDUCTIONS]
    reduction = next((part for part in parts if part is not None), None)
    if prefix or reduction is None:
        raise UnsupportedModelError(
            f"{call.keys} keys for {call.queries} queries, and nothing that reduces them is known"
        )
    convolution = next(part for part in reduction.modules() if isinstance(part, nn.Conv2d))
    keys = lattice(cell_centres(call, convolution, (rows, cols)))
    return global_layout((rows, cols), keys=keys, pattern="reduced keys")


def _grid(call: CallContext) -> tuple[int, int]:
    """Returns the grid that the module is given: as a pair, or as rows and columns."""
    given: Any = call.argument(1, "feat_size") or call.kwargs.get("size")
    if given is None or isinstance(given, int):
        given = (call.argument(1, "height"), call.argument(2, "width"))
    return int(given[0]), int(given[1])


def read_image(call: CallContext) -> Layout:
    """Reads a module that is given images with their channels first, and attends from every pixel to every pixel."""
    return call.global_layout(call.grid_after_channels)


def read_partition_or_image(call: CallContext) -> Layout:
    """Reads timm's attention with channels first, which runs on partitions or on whole images."""
    in_partition = bool(call.parents) and hasattr(call.parents[0].module, "partition_size")
    return read_maxvit(call) if in_partition else read_image(call)


def read_pooled(call: CallContext) -> Layout:
    """Reads queries and keys pooled from the grid that the module is given; a token lies where its kernel does."""
    module = call.module
    grid = tuple(call.argument(1, "feat_size"))
    prefix = int(module.has_cls_token)
    queries = cell_centres(call, module.pool_q, grid)
    keys = cell_centres(call, module.pool_k, grid)
    steps = (1, 1) if module.pool_q is None else module.pool_q.stride
    axes = []
    for key, query, step in zip(keys, queries, steps, strict=True):
        axes.append((key - query[0]) / step)
    sizes = tuple(map(len, queries))
    pattern = "pooled queries"
    if tuple(map(len, axes)) == sizes:
        pattern = "global"
    elif call.keys < call.queries:
        pattern = "reduced keys"
    return global_layout(sizes, prefix, keys=lattice(axes), pattern=pattern)


_REDUCED = (
    "timm.models.pvt_v2.Attention",
    "timm.models.twins.GlobalSubSampleAttn",
    "transformers.models.pvt.modeling_pvt.PvtEfficientSelfAttention",
    "transformers.models.pvt_v2.modeling_pvt_v2.PvtV2SelfAttention",
    "transformers.models.segformer.modeling_segformer.SegformerAttention",
)
_EITHER = "global, windows or grid"

REDUCED_KEYS: dict[str, AttentionClass] = {
    **dict.fromkeys(_REDUCED, AttentionClass("reduced keys", read_reduced)),
    "timm.models.mvitv2.MultiScaleAttention": AttentionClass("reduced keys", read_pooled),
    "timm.models.visformer.Attention": AttentionClass("global", read_image),
    "timm.models.fastvit.Attention": AttentionClass("global", read_image),
    "timm.models.maxxvit.Attention2d": AttentionClass(_EITHER, read_partition_or_image),
}
"""Classes of attention by full name."""
