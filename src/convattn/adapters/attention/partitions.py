"""Windows and sparse grids in networks of stages: MaxViT, DaViT, GCViT, TinyViT, NesT."""

from typing import Any

from convattn.adapters.attention.layout import Layout
from convattn.adapters.attention.seen import Read, Seen
from convattn.adapters.attention.windows import dilated_layout, window_layout

_TIMM = "timm.models"
_TV = "torchvision.models.maxvit"


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
    block = seen.parent_of_kind(f"{_TV}.PartitionAttentionLayer")
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
    f"{_TV}.RelativePositionalMultiHeadAttention": ("windows or grid", read_torchvision_maxvit),
}
"""Family and reader by full name of the class."""
HEADS_FIRST = (f"{_TIMM}.nest.Attention",)
"""Classes whose weights have their heads before their groups."""
