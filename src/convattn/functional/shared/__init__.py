"""Heads that share their weights along an axis: those of a 3 × 3 kernel have three matrices per axis, not nine.

Only without gradients: when centres are learned, no two heads are the same.
"""

from convattn.functional.shared.attention import GridAttention, GridSizes, grid_attention
from convattn.functional.shared.grid import HeadGrid, find_head_grid

__all__ = ["GridAttention", "GridSizes", "HeadGrid", "find_head_grid", "grid_attention"]
