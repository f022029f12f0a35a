"""Attention on grids as pure functions: the readable reference, and the faster paths that are compared with it."""

from convattn.functional.content import (
    ContentMaps,
    PositionTables,
    content_attention,
    content_scores,
    gated_weights,
    position_share,
)
from convattn.functional.convolution import take_every
from convattn.functional.plan import Cost, Path, Work, find_shifts
from convattn.functional.reference import (
    HeadMaps,
    add_bias,
    attend,
    attention_weights,
    combine_heads,
    displacement_scores,
    pad_keys,
    position_weights,
    query_pixels,
)
from convattn.functional.separable import separable_attention
from convattn.functional.shift import WindowConvolution, window_convolution

__all__ = [
    "ContentMaps",
    "Cost",
    "HeadMaps",
    "Path",
    "PositionTables",
    "WindowConvolution",
    "Work",
    "add_bias",
    "attend",
    "attention_weights",
    "combine_heads",
    "content_attention",
    "content_scores",
    "displacement_scores",
    "find_shifts",
    "gated_weights",
    "pad_keys",
    "position_share",
    "position_weights",
    "query_pixels",
    "separable_attention",
    "take_every",
    "window_convolution",
]
