"""Attention on grids as pure functions: the readable reference, and the faster paths that are held against it."""

from convattn.functional.band_attention import band_attention
from convattn.functional.bands import Bands, find_bands
from convattn.functional.content import content_scores, gated_weights, position_share
from convattn.functional.content_attention import content_attention
from convattn.functional.dense import dense_attention
from convattn.functional.flex import flex_attention
from convattn.functional.folding import ContentMaps, PositionTables
from convattn.functional.fourier import Filters, fourier_attention, fourier_filters
from convattn.functional.grid_attention import GridAttention, GridSizes, grid_attention
from convattn.functional.head_grid import HeadGrid, find_head_grid
from convattn.functional.keys import pad_keys, query_pixels
from convattn.functional.narrow import values_first_attention
from convattn.functional.plan import Cost, Work
from convattn.functional.product import product_attention
from convattn.functional.reference import attend, attention_weights, displacement_scores, position_weights
from convattn.functional.separable import separable_attention
from convattn.functional.shift import Shifts, find_shifts, shift_attention
from convattn.functional.shift_convolution import (
    ShiftConvolution,
    WindowConvolution,
    shift_convolution,
    window_convolution,
)
from convattn.functional.strided import take_every
from convattn.functional.values import combine_heads

__all__ = [
    "Bands",
    "ContentMaps",
    "Cost",
    "Filters",
    "GridAttention",
    "GridSizes",
    "HeadGrid",
    "PositionTables",
    "ShiftConvolution",
    "Shifts",
    "WindowConvolution",
    "Work",
    "attend",
    "attention_weights",
    "band_attention",
    "combine_heads",
    "content_attention",
    "content_scores",
    "dense_attention",
    "displacement_scores",
    "find_bands",
    "find_head_grid",
    "find_shifts",
    "flex_attention",
    "fourier_attention",
    "fourier_filters",
    "gated_weights",
    "grid_attention",
    "pad_keys",
    "position_share",
    "position_weights",
    "product_attention",
    "query_pixels",
    "separable_attention",
    "shift_attention",
    "shift_convolution",
    "take_every",
    "values_first_attention",
    "window_convolution",
]
