"""Keys that are fewer than the queries: PVT, Segformer and attention over pooled feature maps."""

from typing import Any

import torch
from torch import nn

from convattn.errors import UnsupportedModelError
from convattn.heads.layout import Layout, Read, Seen, cell_centres, global_layout, key_cells
from convattn.heads.window_families import read_maxvit

_HF = "transformers.models"
_REDUCTIONS = ("sr", "sequence_reduction", "spatial_reduction")


def read_reduced(seen: Seen) -> Layout:
    """Reads keys that a convolution, or a pooling to 7 × 7, makes of the grid that the module is given."""
    rows, cols = _grid(seen)
    prefix = seen.queries - rows * cols
    if prefix not in (0, 1):
        raise UnsupportedModelError(
            f"{seen.queries} queries are not {rows} × {cols} positions, with a class token or not"
        )
    if seen.keys == seen.queries:
        return seen.global_layout((rows, cols), prefix, "the grid that it is given")
    reduction = next((part for name in _REDUCTIONS if (part := getattr(seen.module, name, None)) is not None), None)
    if prefix or reduction is None:
        raise UnsupportedModelError(
            f"{seen.keys} keys for {seen.queries} queries, and nothing that reduces them is known"
        )
    steps = _steps(reduction)
    counts = seen.grid_of(reduction)
    keys = key_cells([cell_centres(*sizes) for sizes in zip((rows, cols), counts, steps, strict=True)])
    source = (
        f"the grid that it is given; each key is a cell of {rows} × {cols} positions cut into {counts[0]} × {counts[1]}"
    )
    return global_layout((rows, cols), keys=keys, key_prefix=0, pattern="reduced keys", source=source)


def _grid(seen: Seen) -> tuple[int, int]:
    """Returns the grid that the module is given: as a pair, or as rows and columns."""
    given: Any = seen.argument(1, "feat_size") or seen.kwargs.get("size")
    if given is None or isinstance(given, int):
        given = (seen.argument(1, "height"), seen.argument(2, "width"))
    return int(given[0]), int(given[1])


def _steps(reduction: nn.Module) -> tuple[int | None, int | None]:
    """Returns the step of a reducing convolution along each axis; None where its input was pooled before."""
    convolution = next(part for part in reduction.modules() if isinstance(part, nn.Conv2d))
    if convolution.kernel_size == (1, 1):
        return None, None
    if convolution.kernel_size != convolution.stride or convolution.padding not in ((0, 0), 0):
        raise UnsupportedModelError("its keys are made of cells that overlap")
    return convolution.stride[0], convolution.stride[1]


REDUCED: dict[str, tuple[str, Read]] = {
    "timm.models.pvt_v2.Attention": ("reduced keys", read_reduced),
    "timm.models.twins.GlobalSubSampleAttn": ("reduced keys", read_reduced),
    f"{_HF}.pvt.modeling_pvt.PvtEfficientSelfAttention": ("reduced keys", read_reduced),
    f"{_HF}.pvt_v2.modeling_pvt_v2.PvtV2SelfAttention": ("reduced keys", read_reduced),
    f"{_HF}.segformer.modeling_segformer.SegformerAttention": ("reduced keys", read_reduced),
}
"""Family and reader by full name of the class."""


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
