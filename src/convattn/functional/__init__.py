"""Attention on grids as pure functions: the readable reference, and the faster paths that are compared with it."""

from convattn.functional.fused import fused_attention
from convattn.functional.path import CallSizes, Path
from convattn.functional.positions import (
    Channels,
    position_channels,
    quadratic_channels,
    quadratic_error,
)
from convattn.functional.reference import (
    HeadMaps,
    add_bias,
    attend,
    attention_weights,
    displacement_scores,
    pad_keys,
    position_share,
)
from convattn.functional.separable import separable_attention
from convattn.functional.shift import WindowConvolution, find_shifts, window_convolution

__all__ = [
    "CallSizes",
    "Channels",
    "HeadMaps",
    "Path",
    "WindowConvolution",
    "add_bias",
    "attend",
    "attention_weights",
    "displacement_scores",
    "find_shifts",
    "fused_attention",
    "pad_keys",
    "position_channels",
    "position_share",
    "quadratic_channels",
    "quadratic_error",
    "separable_attention",
    "window_convolution",
]
