"""Windows and sparse grids: Swin, MaxViT, DaViT, GCViT, TinyViT, NesT and what is built like them."""

from collections.abc import Sequence
from typing import Any

from convattn.heads.layout import Layout, Read, Seen, dilated_layout, window_layout

_TIMM = "timm.models"
_HF = "transformers.models"
_TORCHVISION_SWIN = "torchvision.models.swin_transformer"


def read_timm_swin(seen: Seen) -> Layout:
    """Reads the windows of a timm block, which is given (images, rows, columns, channels)."""
    block = seen.parent("window_size", "shift_size")
    _, rows, cols, _ = block.args[0].shape
    return window_layout((rows, cols), block.module.window_size, block.module.shift_size, roll_first=True)  # type: ignore[arg-type]


def read_transformers_swin(seen: Seen) -> Layout:
    """Reads the windows of a transformers layer, which is given the grid as its second argument."""
    layer = seen.parent("window_size", "shift_size")
    grid = layer.args[1] if len(layer.args) > 1 else layer.kwargs["input_dimensions"]
    window, shift = int(layer.module.window_size), int(layer.module.shift_size)  # type: ignore[arg-type]
    return window_layout([int(size) for size in grid], (window, window), (max(shift, 0),) * 2)


def read_torchvision_swin(seen: Seen) -> Layout:
    """Reads torchvision's windows; along an axis that one window covers nothing is shifted."""
    _, rows, cols, _ = seen.args[0].shape
    window: Sequence[int] = seen.module.window_size  # type: ignore[assignment]
    shift: Any = [
        0 if size <= side else by
        for size, side, by in zip((rows, cols), window, seen.module.shift_size, strict=True)  # type: ignore[arg-type]
    ]
    return window_layout((rows, cols), window, shift)


def read_sam(seen: Seen) -> Layout:
    """Reads the windows of a SAM block, or all patches where it has none; the block is given a grid of patches."""
    block = seen.parent("norm1", "attn")
    _, rows, cols, _ = block.args[0].shape
    side = int(block.module.window_size)  # type: ignore[arg-type]
    if not side:
        return seen.global_layout((rows, cols), 0, "the input of the block that it runs in")
    return window_layout((rows, cols), (side, side))


def read_twins(seen: Seen) -> Layout:
    """Reads Twins' windows; the module is given the grid."""
    rows, cols = seen.argument(1, "size")
    side = int(seen.module.ws)  # type: ignore[arg-type]
    return window_layout((rows, cols), (side, side))


WINDOWS: dict[str, tuple[str, Read]] = {
    f"{_TIMM}.swin_transformer.WindowAttention": ("windows", read_timm_swin),
    f"{_TIMM}.swin_transformer_v2.WindowAttention": ("windows", read_timm_swin),
    f"{_TIMM}.swin_transformer_v2_cr.WindowMultiHeadAttention": ("windows", read_timm_swin),
    f"{_TIMM}.vision_transformer_sam.Attention": ("windows", read_sam),
    f"{_TIMM}.twins.LocallyGroupedAttn": ("windows", read_twins),
    f"{_HF}.swin.modeling_swin.SwinAttention": ("windows", read_transformers_swin),
    f"{_HF}.swinv2.modeling_swinv2.Swinv2SelfAttention": ("windows", read_transformers_swin),
    f"{_TORCHVISION_SWIN}.ShiftedWindowAttention": ("windows", read_torchvision_swin),
    f"{_TORCHVISION_SWIN}.ShiftedWindowAttentionV2": ("windows", read_torchvision_swin),
}
"""Family and reader by full name of the class."""


_TORCHVISION = "torchvision.models.maxvit"


def read_block_windows(seen: Seen) -> Layout:
    """Reads windows of a block that says how large they are, and is given images, channels last or first."""
    block = seen.parent("window_size")
    sizes = block.args[0].shape
    side: Any = block.module.window_size
    first = seen.name.startswith("stages") and type(block.module).__name__ == "SpatialBlock"
    return window_layout(sizes[2:] if first else sizes[1:3], (side, side) if isinstance(side, int) else side)


def read_maxvit(seen: Seen) -> Layout:
    """Reads timm's partitions: windows, or grids of as many positions spread over the image."""
    block = seen.parent("partition_size")
    sizes, side = block.args[0].shape, block.module.partition_size
    grid = sizes[2:] if type(block.module).__name__ == "PartitionAttention2d" else sizes[1:3]
    if block.module.partition_block:
        return window_layout(grid, side)  # type: ignore[arg-type]
    return dilated_layout(grid, side, "the partition of the block that it runs in")  # type: ignore[arg-type]


def read_torchvision_maxvit(seen: Seen) -> Layout:
    """Reads torchvision's partitions, which are given images with their channels first."""
    block = seen.parent_of_kind(f"{_TORCHVISION}.PartitionAttentionLayer")
    grid, side = block.args[0].shape[2:], int(block.module.p)  # type: ignore[arg-type]
    if block.module.partition_type == "window":
        return window_layout(grid, (side, side))
    return dilated_layout(grid, [size // side for size in grid], "the partition of the layer that it runs in")


def read_nest(seen: Seen) -> Layout:
    """Reads the blocks of a level of NesT, which halves its images before if it has a convolution."""
    level = seen.parent("block_size", "pool")
    rows, cols = level.args[0].shape[2:]
    if any(part in seen.features for part in level.module.pool.modules()):  # type: ignore[union-attr, operator]
        rows, cols = (-(-size // 2) for size in (rows, cols))
    side = int(level.module.block_size)  # type: ignore[arg-type]
    return window_layout((rows, cols), (side, side))


PARTITIONS: dict[str, tuple[str, Read]] = {
    f"{_TIMM}.davit.WindowAttention": ("windows", read_block_windows),
    f"{_TIMM}.tiny_vit.Attention": ("windows", read_block_windows),
    f"{_TIMM}.gcvit.WindowAttentionGlobal": ("windows", read_block_windows),
    f"{_TIMM}.nest.Attention": ("windows", read_nest),
    f"{_TIMM}.maxxvit.AttentionCl": ("windows or grid", read_maxvit),
    f"{_TORCHVISION}.RelativePositionalMultiHeadAttention": ("windows or grid", read_torchvision_maxvit),
}
"""Family and reader by full name of the class."""
HEADS_FIRST = (f"{_TIMM}.nest.Attention",)
"""Classes whose weights have their heads before their groups."""
