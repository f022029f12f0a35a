"""Windows and sparse grids: Swin, MaxViT, DaViT, GCViT, TinyViT, NesT and what is built like them."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.layout import Layout, grouped_layout

_TORCHVISION_MAXVIT = "torchvision.models.maxvit"
_TORCHVISION_SWIN = "torchvision.models.swin_transformer"


def window_layout(
    grid: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int] = (0, 0),
    *,
    roll_first: bool = False,
) -> Layout:
    """Makes the layout of windows, row by row, whose queries are row by row as well.

    The grid is padded at its far ends to a whole number of windows. A shift rolls it towards the first row and column.
    Windows that then hold pixels from two ends of the grid have a mask between them.

    Args:
        grid: Rows and columns.
        window: Rows and columns of a window.
        shift: By how much the windows are shifted; 0 for none.
        roll_first: Whether the shift comes before the padding.

    Returns:
        The layout.
    """
    rolled = [
        _rolled(*sizes, roll_first=roll_first) for sizes in zip(grid, window, shift, strict=True)
    ]
    regions = [
        _regions(len(axis), *sizes)
        for axis, sizes in zip(rolled, zip(window, shift, strict=True), strict=True)
    ]
    places, region = _cut(rolled, window), _cut(regions, window)
    same = (region[:, :, None] == region[:, None]).all(-1)
    name, words = "windows", f"windows of {window[0]} × {window[1]}"
    if any(shift):
        name, words = "shifted windows", f"{words}, shifted by {shift[0]} and {shift[1]}"
    return grouped_layout(
        (int(grid[0]), int(grid[1])),
        places,
        allowed=same if any(shift) else None,
        pattern=name,
        source=f"{words}, of the block that it runs in",
    )


def _rolled(size: int, window: int, shift: int, *, roll_first: bool) -> Int[Tensor, " padded"]:
    """Lists the positions along one axis after padding and shifting."""
    padded = torch.arange(-(-size // window) * window)
    if roll_first:
        return torch.where(padded < size, (padded + shift) % size, padded)
    return (padded + shift) % len(padded)


def _regions(padded: int, window: int, shift: int) -> Int[Tensor, " padded"]:
    """Numbers the parts of one axis between which a mask lies."""
    place = torch.arange(padded)
    if not shift:
        return torch.zeros_like(place)
    return (place >= padded - window).long() + (place >= padded - shift).long()


def _cut(
    axes: Sequence[Int[Tensor, " _"]], window: Sequence[int]
) -> Int[Tensor, "groups queries 2"]:
    """Cuts the grid of two axes' numbers into windows."""
    rows, cols = (axis.view(-1, size) for axis, size in zip(axes, window, strict=True))
    shape = (len(rows), len(cols), *window)
    parts = rows[:, None, :, None].expand(shape), cols[None, :, None, :].expand(shape)
    return torch.stack(parts, -1).reshape(len(rows) * len(cols), -1, 2)


def sparse_layout(grid: Sequence[int], counts: Sequence[int], source: str) -> Layout:
    """Makes the layout of sparse grids: a group holds `counts` positions along each axis, spread evenly."""
    steps = [size // count for size, count in zip(grid, counts, strict=True)]
    groups = torch.cartesian_prod(*(torch.arange(step) for step in steps))
    inside = torch.cartesian_prod(
        *(torch.arange(count) * step for count, step in zip(counts, steps, strict=True))
    )
    places = groups[:, None] + inside[None]
    return grouped_layout((int(grid[0]), int(grid[1])), places, pattern="grid", source=source)


def read_timm_swin(call: CallContext) -> Layout:
    """Reads the windows of a timm block, which is given (images, rows, columns, channels)."""
    block = call.parent("window_size", "shift_size")
    grid, module = block.args[0].shape[1:3], block.module
    return window_layout(grid, module.window_size, module.shift_size, roll_first=True)  # type: ignore[arg-type]


def read_transformers_swin(call: CallContext) -> Layout:
    """Reads the windows of a transformers layer, which is given the grid as its second argument."""
    layer = call.parent("window_size", "shift_size")
    grid = layer.args[1] if len(layer.args) > 1 else layer.kwargs["input_dimensions"]
    window, shift = int(layer.module.window_size), int(layer.module.shift_size)  # type: ignore[arg-type]
    return window_layout([int(size) for size in grid], (window, window), (max(shift, 0),) * 2)


def read_torchvision_swin(call: CallContext) -> Layout:
    """Reads torchvision's windows; nothing is shifted along an axis that one window covers."""
    grid, module = call.args[0].shape[1:3], call.module
    window: Sequence[int] = module.window_size  # type: ignore[assignment]
    sizes = zip(grid, window, module.shift_size, strict=True)  # type: ignore[arg-type]
    return window_layout(grid, window, [0 if size <= side else by for size, side, by in sizes])


def read_sam(call: CallContext) -> Layout:
    """Reads the windows of a SAM block, or all patches where it has none; the block is given a grid of patches."""
    block = call.parent("norm1", "attn")
    _, rows, cols, _ = block.args[0].shape
    side = int(block.module.window_size)  # type: ignore[arg-type]
    if not side:
        return call.global_layout((rows, cols), 0, "the input of the block that it runs in")
    return window_layout((rows, cols), (side, side))


def read_twins(call: CallContext) -> Layout:
    """Reads Twins' windows; the module is given the grid."""
    side = int(call.module.ws)  # type: ignore[arg-type]
    return window_layout(call.argument(1, "size"), (side, side))


def read_block_windows(call: CallContext) -> Layout:
    """Reads windows of a block that says how large they are, and is given images, channels last or first."""
    block = call.parent("window_size")
    sizes = block.args[0].shape
    side: Any = block.module.window_size
    first = type(block.module).__name__ == "SpatialBlock"
    return window_layout(
        sizes[2:] if first else sizes[1:3], (side, side) if isinstance(side, int) else side
    )


def read_maxvit(call: CallContext) -> Layout:
    """Reads timm's partitions: windows, or grids of as many positions spread over the image."""
    block = call.parent("partition_size")
    kind, sizes, side = (
        type(block.module).__name__,
        block.args[0].shape,
        block.module.partition_size,
    )
    grid = sizes[2:] if kind == "PartitionAttention2d" else sizes[1:3]
    parallel = kind == "ParallelPartitionAttention"  # it holds both partitions
    if call.module is block.module.attn_block if parallel else block.module.partition_block:
        return window_layout(grid, side)  # type: ignore[arg-type]
    return sparse_layout(grid, side, "the partition of the block that it runs in")  # type: ignore[arg-type]


def read_torchvision_maxvit(call: CallContext) -> Layout:
    """Reads torchvision's partitions, which are given images with their channels first."""
    block = call.parent_of_kind(f"{_TORCHVISION_MAXVIT}.PartitionAttentionLayer")
    grid, side = block.args[0].shape[2:], int(block.module.p)  # type: ignore[arg-type]
    if block.module.partition_type == "window":
        return window_layout(grid, (side, side))
    return sparse_layout(
        grid, [size // side for size in grid], "the partition of the layer that it runs in"
    )


def read_nest(call: CallContext) -> Layout:
    """Reads the blocks of a level of NesT, which halves its images before if it has a convolution."""
    level = call.parent("block_size", "pool")
    rows, cols = level.args[0].shape[2:]
    if any(part in call.features for part in level.module.pool.modules()):  # type: ignore[union-attr, operator]
        rows, cols = (-(-size // 2) for size in (rows, cols))
    side = int(level.module.block_size)  # type: ignore[arg-type]
    return window_layout((rows, cols), (side, side))


WINDOWS: dict[str, AttentionClass] = {
    "timm.models.swin_transformer.WindowAttention": AttentionClass("windows", read_timm_swin),
    "timm.models.swin_transformer_v2.WindowAttention": AttentionClass("windows", read_timm_swin),
    "timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention": AttentionClass(
        "windows", read_timm_swin
    ),
    "timm.models.vision_transformer_sam.Attention": AttentionClass("windows", read_sam),
    "timm.models.twins.LocallyGroupedAttn": AttentionClass("windows", read_twins),
    "timm.models.davit.WindowAttention": AttentionClass("windows", read_block_windows),
    "timm.models.tiny_vit.Attention": AttentionClass("windows", read_block_windows),
    "timm.models.gcvit.WindowAttentionGlobal": AttentionClass("windows", read_block_windows),
    "timm.models.nest.Attention": AttentionClass("windows", read_nest, heads_first=True),
    "timm.models.maxxvit.AttentionCl": AttentionClass("windows or grid", read_maxvit),
    "transformers.models.swin.modeling_swin.SwinAttention": AttentionClass(
        "windows", read_transformers_swin
    ),
    "transformers.models.swinv2.modeling_swinv2.Swinv2SelfAttention": AttentionClass(
        "windows", read_transformers_swin
    ),
    f"{_TORCHVISION_SWIN}.ShiftedWindowAttention": AttentionClass("windows", read_torchvision_swin),
    f"{_TORCHVISION_SWIN}.ShiftedWindowAttentionV2": AttentionClass(
        "windows", read_torchvision_swin
    ),
    f"{_TORCHVISION_MAXVIT}.RelativePositionalMultiHeadAttention": AttentionClass(
        "windows or grid", read_torchvision_maxvit
    ),
}
"""Classes of attention by full name."""
