"""Windows and sparse grids: Swin, MaxViT, DaViT, GCViT, TinyViT, NesT and what is built like them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from convattn.grid import PerAxis, axis_lists
from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.layout import Layout, grouped_layout

_TORCHVISION_SWIN = "torchvision.models.swin_transformer"


def window_layout(
    grid: Sequence[int],
    window: PerAxis,
    shift: PerAxis = 0,
    *,
    roll_first: bool = False,
) -> Layout:
    """Makes the layout of windows, row by row, whose queries are row by row as well.

    The grid is padded at its far ends to a whole number of windows. A shift rolls it towards the first row and column.
    Windows that then hold pixels from two ends of the grid have a mask between them.

    Args:
        grid: Rows and columns.
        window: Rows and columns of a window, or one number for both.
        shift: By how much the windows are shifted along each axis, or along both; 0 for none.
        roll_first: Whether the shift comes before the padding.

    Returns:
        The layout.

    Raises:
        ArgumentError: A window holds nothing, or a shift is negative.
    """
    sides = axis_lists("window", window, 2, least=1)
    shifts = axis_lists("shift", shift, 2, least=0)
    rolled = []
    regions = []
    for size, side, by in zip(grid, sides, shifts, strict=True):
        positions = _rolled(size, side, by, roll_first=roll_first)
        rolled.append(positions.view(-1, side))
        regions.append(_regions(len(positions), side, by).view(-1, side))
    pattern = "windows"
    allowed = None
    if any(shifts):
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
    sides, shifts = block.module.window_size, block.module.shift_size
    return window_layout(block.grid_before_channels, sides, shifts, roll_first=True)


def read_transformers_swin(call: CallContext) -> Layout:
    """Reads the windows of a transformers layer, which is given the grid as its second argument."""
    layer = call.parent("window_size", "shift_size")
    grid = layer.argument(1, "input_dimensions")
    return window_layout(grid, layer.module.window_size, max(layer.module.shift_size, 0))


def read_torchvision_swin(call: CallContext) -> Layout:
    """Reads torchvision's windows; nothing is shifted along an axis that one window covers."""
    grid = call.grid_before_channels
    sides = call.module.window_size
    shift = list(call.module.shift_size)
    for axis in (0, 1):
        if grid[axis] <= sides[axis]:
            shift[axis] = 0
    return window_layout(grid, sides, shift)


def read_sam(call: CallContext) -> Layout:
    """Reads the windows of a SAM block, or all patches where it has none; the block is given a grid of patches."""
    block = call.parent("window_size", "attn")
    grid = block.grid_before_channels
    side = block.module.window_size
    return window_layout(grid, side) if side else call.global_layout(grid)


def read_twins(call: CallContext) -> Layout:
    """Reads Twins' windows; the module is given the grid."""
    return window_layout(call.argument(1, "size"), call.module.ws)


def read_block_windows(call: CallContext) -> Layout:
    """Reads windows of a block that says how large they are, and is given images, channels last or first."""
    block = call.parent("window_size")
    grid = block.grid_before_channels
    if type(block.module).__name__ == "SpatialBlock":
        grid = block.grid_after_channels
    return window_layout(grid, block.module.window_size)


def read_maxvit(call: CallContext) -> Layout:
    """Reads timm's partitions: windows, or grids of as many positions spread over the image."""
    block = call.parent("partition_size")
    module = block.module
    kind = type(module).__name__
    side = module.partition_size
    grid = block.grid_before_channels
    if kind == "PartitionAttention2d":
        grid = block.grid_after_channels
    if kind == "ParallelPartitionAttention":  # it holds both partitions
        windows = call.name.rpartition(".")[2] == "attn_block"  # its module may be another by now
    else:
        windows = module.partition_block
    return window_layout(grid, side) if windows else sparse_layout(grid, side)


def read_torchvision_maxvit(call: CallContext) -> Layout:
    """Reads torchvision's partitions, which are given images with their channels first."""
    block = call.parent("partition_type", "p")
    grid = block.grid_after_channels
    side = block.module.p
    if block.module.partition_type == "window":
        return window_layout(grid, side)
    return sparse_layout(grid, [size // side for size in grid])


def read_nest(call: CallContext) -> Layout:
    """Reads the blocks of a level of NesT, which halves its images before if it has a convolution."""
    level = call.parent("block_size", "pool")
    grid: Sequence[int] = level.grid_after_channels
    if any(part in call.features for part in level.module.pool.modules()):
        grid = [-(-size // 2) for size in grid]
    return window_layout(grid, level.module.block_size)


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
_TORCHVISION_MAXVIT = "torchvision.models.maxvit.RelativePositionalMultiHeadAttention"

WINDOWS: dict[str, AttentionClass] = {
    **{kind: AttentionClass("windows", read) for kind, read in _READERS.items()},
    "timm.models.nest.Attention": AttentionClass("windows", read_nest, heads_first=True),
    "timm.models.maxxvit.AttentionCl": AttentionClass(_EITHER, read_maxvit),
    _TORCHVISION_MAXVIT: AttentionClass(_EITHER, read_torchvision_maxvit),
}
"""Classes of attention by full name."""
