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
    rolled = []
    regions = []
    for size, side, by in zip(grid, window, shift, strict=True):
        positions = _rolled(size, side, by, roll_first=roll_first)
        rolled.append(positions.view(-1, side))
        regions.append(_regions(len(positions), side, by).view(-1, side))
    pattern = "windows"
    allowed = None
    if any(shift):
        pattern = "shifted windows"
        region = _on_both_axes(*regions)
        allowed = (region[:, :, None] == region[:, None]).all(-1)
    return grouped_layout(grid, _on_both_axes(*rolled), allowed=allowed, pattern=pattern)


def _rolled(size: int, window: int, shift: int, *, roll_first: bool) -> Int[Tensor, " padded"]:
    """Lists the positions along one axis after padding and shifting."""
    padded = torch.arange(-(-size // window) * window)
    if roll_first:
        return torch.where(padded < size, (padded + shift) % size, padded)
    return (padded + shift) % len(padded)


def _regions(padded: int, window: int, shift: int) -> Int[Tensor, " padded"]:
    """Numbers the parts of one axis between which a mask lies; no window holds two of them without a shift."""
    place = torch.arange(padded)
    return (place >= padded - window).long() + (place >= padded - shift).long()


def _on_both_axes(
    rows: Int[Tensor, "_ rows"], cols: Int[Tensor, "_ cols"]
) -> Int[Tensor, "groups queries 2"]:
    """Pairs the groups of two axes, and the numbers in them."""
    parts = torch.broadcast_tensors(rows[:, None, :, None], cols[None, :, None, :])
    return torch.stack(parts, -1).flatten(2, 3).flatten(0, 1)


def sparse_layout(grid: Sequence[int], counts: Sequence[int]) -> Layout:
    """Makes the layout of sparse grids: a group holds `counts` positions along each axis, spread evenly."""
    axes = []
    for size, count in zip(grid, counts, strict=True):
        step = size // count
        axes.append(torch.arange(count * step).view(count, step).mT)
    return grouped_layout(grid, _on_both_axes(*axes), pattern="grid")


def read_timm_swin(call: CallContext) -> Layout:
    """Reads the windows of a timm block, which is given (images, rows, columns, channels)."""
    block = call.parent("window_size", "shift_size")
    grid = block.args[0].shape[1:3]
    module = block.module
    return window_layout(grid, module.window_size, module.shift_size, roll_first=True)  # type: ignore[arg-type]


def read_transformers_swin(call: CallContext) -> Layout:
    """Reads the windows of a transformers layer, which is given the grid as its second argument."""
    layer = call.parent("window_size", "shift_size")
    rows, cols = layer.argument(1, "input_dimensions")
    window, shift = int(layer.module.window_size), int(layer.module.shift_size)  # type: ignore[arg-type]
    return window_layout((int(rows), int(cols)), (window,) * 2, (max(shift, 0),) * 2)


def read_torchvision_swin(call: CallContext) -> Layout:
    """Reads torchvision's windows; nothing is shifted along an axis that one window covers."""
    grid = call.args[0].shape[1:3]
    module = call.module
    window: Sequence[int] = module.window_size  # type: ignore[assignment]
    shift = list(module.shift_size)  # type: ignore[arg-type]
    for axis in (0, 1):
        if grid[axis] <= window[axis]:
            shift[axis] = 0
    return window_layout(grid, window, shift)


def read_sam(call: CallContext) -> Layout:
    """Reads the windows of a SAM block, or all patches where it has none; the block is given a grid of patches."""
    block = call.parent("window_size", "attn")
    _, rows, cols, _ = block.args[0].shape
    side = int(block.module.window_size)  # type: ignore[arg-type]
    if not side:
        return call.global_layout((rows, cols))
    return window_layout((rows, cols), (side, side))


def read_twins(call: CallContext) -> Layout:
    """Reads Twins' windows; the module is given the grid."""
    side = int(call.module.ws)  # type: ignore[arg-type]
    return window_layout(call.argument(1, "size"), (side, side))


def read_block_windows(call: CallContext) -> Layout:
    """Reads windows of a block that says how large they are, and is given images, channels last or first."""
    block = call.parent("window_size")
    sizes = block.args[0].shape
    channels_first = type(block.module).__name__ == "SpatialBlock"
    window: Any = block.module.window_size
    if isinstance(window, int):
        window = (window, window)
    return window_layout(sizes[2:] if channels_first else sizes[1:3], window)


def read_maxvit(call: CallContext) -> Layout:
    """Reads timm's partitions: windows, or grids of as many positions spread over the image."""
    block = call.parent("partition_size")
    module: Any = block.module
    kind = type(module).__name__
    sizes = block.args[0].shape
    side = module.partition_size
    grid = sizes[2:] if kind == "PartitionAttention2d" else sizes[1:3]
    if kind == "ParallelPartitionAttention":  # it holds both partitions
        windows = call.module is module.attn_block
    else:
        windows = module.partition_block
    if windows:
        return window_layout(grid, side)
    return sparse_layout(grid, side)


def read_torchvision_maxvit(call: CallContext) -> Layout:
    """Reads torchvision's partitions, which are given images with their channels first."""
    block = call.parent_of_kind(f"{_TORCHVISION_MAXVIT}.PartitionAttentionLayer")
    grid, side = block.args[0].shape[2:], int(block.module.p)  # type: ignore[arg-type]
    if block.module.partition_type == "window":
        return window_layout(grid, (side, side))
    counts = [size // side for size in grid]
    return sparse_layout(grid, counts)


def read_nest(call: CallContext) -> Layout:
    """Reads the blocks of a level of NesT, which halves its images before if it has a convolution."""
    level = call.parent("block_size", "pool")
    rows, cols = level.args[0].shape[2:]
    if any(part in call.features for part in level.module.pool.modules()):  # type: ignore[union-attr, operator]
        rows, cols = (-(-size // 2) for size in (rows, cols))
    side = int(level.module.block_size)  # type: ignore[arg-type]
    return window_layout((rows, cols), (side, side))


_READERS = {
    "timm.models.swin_transformer.WindowAttention": read_timm_swin,
    "timm.models.swin_transformer_v2.WindowAttention": read_timm_swin,
    "timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention": read_timm_swin,
    "timm.models.vision_transformer_sam.Attention": read_sam,
    "transformers.models.sam.modeling_sam.SamVisionAttention": read_sam,
    "transformers.models.sam.modeling_sam.SamVisionSdpaAttention": read_sam,
    "transformers.models.sam_hq.modeling_sam_hq.SamHQVisionAttention": read_sam,
    "transformers.models.sam_hq.modeling_sam_hq.SamHQVisionSdpaAttention": read_sam,
    "timm.models.twins.LocallyGroupedAttn": read_twins,
    "timm.models.davit.WindowAttention": read_block_windows,
    "timm.models.tiny_vit.Attention": read_block_windows,
    "timm.models.gcvit.WindowAttentionGlobal": read_block_windows,
    "transformers.models.swin.modeling_swin.SwinAttention": read_transformers_swin,
    "transformers.models.swinv2.modeling_swinv2.Swinv2SelfAttention": read_transformers_swin,
    f"{_TORCHVISION_SWIN}.ShiftedWindowAttention": read_torchvision_swin,
    f"{_TORCHVISION_SWIN}.ShiftedWindowAttentionV2": read_torchvision_swin,
}

_EITHER = "windows or grid"
_TORCHVISION = f"{_TORCHVISION_MAXVIT}.RelativePositionalMultiHeadAttention"

WINDOWS: dict[str, AttentionClass] = {
    **{kind: AttentionClass("windows", read) for kind, read in _READERS.items()},
    "timm.models.nest.Attention": AttentionClass("windows", read_nest, heads_first=True),
    "timm.models.maxxvit.AttentionCl": AttentionClass(_EITHER, read_maxvit),
    _TORCHVISION: AttentionClass(_EITHER, read_torchvision_maxvit),
}
"""Classes of attention by full name."""
