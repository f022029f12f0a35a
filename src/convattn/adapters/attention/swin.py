"""Windows and shifted windows: Swin of timm, transformers and torchvision, and what is built like it."""

from collections.abc import Sequence
from typing import Any

from convattn.adapters.attention.layout import Layout
from convattn.adapters.attention.seen import Read, Seen
from convattn.adapters.attention.windows import window_layout

_TIMM = "timm.models"
_HF = "transformers.models"
_TV = "torchvision.models.swin_transformer"


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
    f"{_TV}.ShiftedWindowAttention": ("windows", read_torchvision_swin),
    f"{_TV}.ShiftedWindowAttentionV2": ("windows", read_torchvision_swin),
}
"""Family and reader by full name of the class."""
