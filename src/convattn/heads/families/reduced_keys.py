"""Queries and keys that are pooled from feature maps, as in PVT, Segformer and MViT, and images with channels first."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import UnsupportedModelError
from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.families.window_attention import read_maxvit
from convattn.heads.layout import Layout, global_layout, lattice

_REDUCTIONS = ("sr", "sequence_reduction", "spatial_reduction")


def cell_centres(size: int, cells: int, step: int | None = None) -> Float[Tensor, " cells"]:
    """Lists the middles of the cells along one axis, in positions of the grid.

    With a `step` cell i covers the positions i · step to (i + 1) · step − 1, as a convolution whose kernel is as long
    as its step; without, ⌊i size / cells⌋ to ⌈(i + 1) size / cells⌉ − 1, as adaptive pooling.
    """
    number = torch.arange(cells, dtype=torch.float64)
    if step is not None:
        return number * step + (step - 1) / 2
    first = (number * size / cells).floor()
    end = ((number + 1) * size / cells).ceil()
    last = end - 1
    return (first + last) / 2


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
    counts = call.grid_of(reduction)
    axes = zip((rows, cols), counts, _steps(reduction), strict=True)
    keys = lattice([cell_centres(*sizes) for sizes in axes])
    return global_layout((rows, cols), keys=keys, pattern="reduced keys")


def _grid(call: CallContext) -> tuple[int, int]:
    """Returns the grid that the module is given: as a pair, or as rows and columns."""
    given: Any = call.argument(1, "feat_size") or call.kwargs.get("size")
    if given is None or isinstance(given, int):
        given = (call.argument(1, "height"), call.argument(2, "width"))
    return int(given[0]), int(given[1])


def _steps(reduction: nn.Module) -> tuple[int | None, int | None]:
    """Returns the step of a reducing convolution along each axis; None where its input was pooled before."""
    convolution = next(part for part in reduction.modules() if isinstance(part, nn.Conv2d))
    if convolution.kernel_size == (1, 1):
        return None, None
    if convolution.kernel_size != convolution.stride or convolution.padding not in ((0, 0), 0):
        raise UnsupportedModelError("its keys are made of cells that overlap")
    return convolution.stride[0], convolution.stride[1]


def read_image(call: CallContext) -> Layout:
    """Reads a module that is given images with their channels first, and attends from every pixel to every pixel."""
    return call.global_layout(tuple(call.args[0].shape[2:]))


def read_partition_or_image(call: CallContext) -> Layout:
    """Reads timm's attention with channels first, which runs on partitions or on whole images."""
    in_partition = bool(call.parents) and hasattr(call.parents[0].module, "partition_size")
    return read_maxvit(call) if in_partition else read_image(call)


def read_pooled(call: CallContext) -> Layout:
    """Reads queries and keys pooled from the grid that the module is given; a token lies where its kernel does."""
    grid = tuple(call.argument(1, "feat_size"))
    prefix = int(call.module.has_cls_token)  # type: ignore[arg-type]
    (rows, cols), q_steps = _pooled(call, call.module.pool_q, grid)
    counts, k_steps = _pooled(call, call.module.pool_k, grid)
    axes = []
    for count, k_step, q_step in zip(counts, k_steps, q_steps, strict=True):
        axes.append(torch.arange(count).double() * k_step / q_step)
    keys = lattice(axes)
    if (call.queries, call.keys) != (prefix + rows * cols, prefix + len(keys)):
        raise UnsupportedModelError(
            f"{call.queries} queries and {call.keys} keys do not fit {(rows, cols)} and {counts} positions"
        )
    pattern = "pooled queries"
    if counts == (rows, cols):
        pattern = "global"
    elif len(keys) < rows * cols:
        pattern = "reduced keys"
    return global_layout((rows, cols), prefix, keys=keys, pattern=pattern)


def _pooled(
    call: CallContext, pool: Any, grid: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns rows and columns of what a pooling gave, and its steps."""
    if pool is None:
        return grid, (1, 1)
    convolves = isinstance(pool, nn.Conv2d)
    if not convolves or pool.padding != tuple((size - 1) / 2 for size in pool.kernel_size):
        raise UnsupportedModelError(
            "its tokens are pooled by no convolution that is centred on them"
        )
    return call.grid_of(pool), (pool.stride[0], pool.stride[1])


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
