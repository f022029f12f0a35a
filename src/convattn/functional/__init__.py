"""Attention on grids as pure functions: the readable reference, and the faster paths that are compared with it."""

from convattn.functional.bands import Bands, band_attention, find_bands
from convattn.functional.content import (
    ContentMaps,
    PositionTables,
    content_attention,
    content_scores,
    gated_weights,
    position_share,
)
from convattn.functional.convolution import take_every
from convattn.functional.flex import flex_attention
from convattn.functional.fourier import Filters, fourier_attention, fourier_filters
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
from convattn.functional.separable import separable_attention, values_first_attention
from convattn.functional.shift import (
    Shifts,
    WindowConvolution,
    shift_attention,
    window_convolution,
)

__all__ = [
    "Bands",
    "ContentMaps",
    "Cost",
    "Filters",
    "HeadMaps",
    "Path",
    "PositionTables",
    "Shifts",
    "WindowConvolution",
    "Work",
    "add_bias",
    "attend",
    "attention_weights",
    "band_attention",
    "combine_heads",
    "content_attention",
    "content_scores",
    "displacement_scores",
    "find_bands",
    "find_shifts",
    "flex_attention",
    "fourier_attention",
    "fourier_filters",
    "gated_weights",
    "pad_keys",
    "position_share",
    "position_weights",
    "query_pixels",
    "separable_attention",
    "shift_attention",
    "take_every",
    "values_first_attention",
    "window_convolution",
]
