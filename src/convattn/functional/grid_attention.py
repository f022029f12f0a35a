"""Attention of a grid of heads: means along the columns once per column matrix, along the rows once per row matrix.

With h = (r, c) and A_h = R_r ⊗ C_c the layer is y = Σ_r R_r Σ_c W_rc C_c x. The orders of the products differ in cost;
the cheapest is taken. Pixels are worked on a strip of rows at a time, which stays in the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from convattn.functional.grid_orders import (
    GridValues,
    Pieces,
    all_channels_between,
    few_channels_first,
    keys_first,
    single_channels_between,
    single_key,
    values_first,
)
from convattn.functional.grid_tiles import col_blocks, covers_once, key_strips, query_strips
from convattn.functional.head_grid import HeadGrid
from convattn.functional.keys import pad_keys

__all__ = ["GridAttention", "GridSizes", "grid_attention"]

_CACHE = 1 << 20
"""Bytes of mixed pixels worked on at a time."""

_FEW, _SOME = 4, 64
"""Channels up to which they are kept as planes, and from which they are many."""

_SLOW_MIX, _SLOW_SINGLE = 2.0, 8.0
"""How many times longer than in a large product an operation takes: along an axis, and for channels of their own.
Measured on one core (float32)."""

_ORDERS: dict[str, Callable[[Pieces, Tensor, GridValues, Tensor | None], Tensor]] = {
    "keys": keys_first,
    "few": few_channels_first,
    "between": all_channels_between,
    "apart": single_channels_between,
    "values": values_first,
    "single": single_key,
}


class GridSizes(NamedTuple):
    """Sizes that decide the order of the products.

    Attributes:
        batch: Number of images.
        channels: D_in.
        outputs: D_out.
        groups: Blocks of each W_h.
        itemsize: Bytes of a number.
    """

    batch: int
    channels: int
    outputs: int
    groups: int
    itemsize: int


@dataclass(frozen=True, eq=False, slots=True)
class GridAttention:
    """The products that a layer is on images of one size, cut into pieces.

    Attributes:
        grid: The attention matrices.
        order: "keys" (means, then W_h) or "few" (the same with few channels), "between" (columns, W_h, rows) or "apart"
            (the same with a group for each channel), "values" (W_h, then means), or "single" (one key, to which all
            attention goes).
        pieces: What is worked on together.
    """

    grid: HeadGrid
    order: str
    pieces: Pieces

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        blocks = [*self.pieces.cols, *(block for strip in self.pieces.strips for block in strip.blocks)]
        return self.grid.rows.nbytes + self.grid.cols.nbytes + sum(block.weights.nbytes for block in blocks)

    def __call__(self, x: Tensor, maps: Tensor, groups: int, bias: Tensor | None) -> Tensor:
        """Computes it, without a graph for gradients.

        Args:
            x: Images, (batch, channels, *spatial) with one or two axes.
            maps: W_h, (heads, outputs, channels // groups).
            groups: Number of blocks.
            bias: Added to the output, or None.

        Returns:
            (batch, outputs, *queries), with the channels of a pixel side by side in memory.
        """
        keys = x if self.grid.geometry is None else pad_keys(x, self.grid.geometry)
        sequence = keys.ndim == 3
        values = GridValues(maps, self.grid.heads, len(self.grid.cols), groups)
        y = _ORDERS[self.order](self.pieces, keys.unsqueeze(2) if sequence else keys, values, bias).movedim(-1, 1)
        return y.squeeze(2) if sequence else y


def grid_attention(grid: HeadGrid, sizes: GridSizes) -> GridAttention:
    """Chooses the order of the products and cuts them into pieces.

    Args:
        grid: The attention matrices.
        sizes: Sizes of the call.

    Returns:
        What computes it.
    """
    order = _order(grid, sizes)
    (row_count, queries, keys), (col_count, across, _) = grid.rows.shape, grid.cols.shape
    if order == "single":
        return GridAttention(grid, order, Pieces(queries, across, 1, (), (), fresh=True))
    if order == "few":
        rows = max(1, _CACHE // (row_count * across * col_count * sizes.channels * sizes.itemsize))
        pieces = Pieces(queries, across, 1, col_blocks(grid.cols, _SOME), query_strips(grid.rows, rows), fresh=True)
        return GridAttention(grid, order, pieces)
    width = sizes.outputs if order == "values" else sizes.channels
    cols = () if _one_key(grid.cols) else col_blocks(grid.cols, width, queries_first=order != "apart")
    rows = max(4, _CACHE // (_numbers_per_row(grid, sizes, order) * sizes.itemsize))
    if order == "keys":
        cut, longest = query_strips, max(1, rows * queries // keys)
    else:
        cut, longest = key_strips, rows
    strips = cut(grid.rows, longest)
    images = max(1, rows // keys) if len(strips) == 1 else 1
    if images > 1:  # pixels of several images are one block only with all of their rows
        strips = cut(grid.rows, longest, whole=True)
    fresh = order == "keys" or covers_once(strips, queries)
    return GridAttention(grid, order, Pieces(queries, across, images, cols, strips, fresh=fresh))


def _order(grid: HeadGrid, sizes: GridSizes) -> str:
    """Returns the order of the products that takes the least time."""
    (row_count, queries, rows), (col_count, across, cols) = grid.rows.shape, grid.cols.shape
    if _one_key(grid.rows) and _one_key(grid.cols):
        return "single"
    apart = sizes.groups == sizes.channels == sizes.outputs
    products = row_count * col_count * sizes.channels * sizes.outputs // sizes.groups * (_SLOW_SINGLE if apart else 1)
    reach = [_SLOW_MIX * _mean_reach(matrices) for matrices in (grid.rows, grid.cols)]
    means = rows * across * col_count * sizes.channels * reach[1]
    ahead = queries * across * row_count * reach[0]
    costs = {
        "keys": means + ahead * col_count * sizes.channels + queries * across * products,
        "between": means + rows * across * products + ahead * sizes.outputs,
    }
    if row_count == col_count == 1:
        own = sizes.outputs * (rows * across * reach[1] + ahead)
        costs["values"] = rows * cols * products + own
    best = min(costs, key=costs.__getitem__)
    if best == "between" and apart and not _one_key(grid.cols):
        return "apart"
    return "few" if best == "keys" and sizes.channels <= _FEW and sizes.groups == 1 else best


def _numbers_per_row(grid: HeadGrid, sizes: GridSizes, order: str) -> int:
    """Counts the numbers made of one row of keys."""
    count, queries, keys = grid.cols.shape
    if order == "apart":
        longest = max(block.queries.stop - block.queries.start for block in col_blocks(grid.cols, sizes.channels))
        return longest * (count + 1) * sizes.channels
    width = sizes.outputs if order == "values" else sizes.channels
    made = {"keys": 0, "between": queries, "values": keys}[order] * sizes.outputs
    return queries * count * width + made


def _mean_reach(matrices: Tensor) -> float:
    """Returns how many keys stand in a block, on average."""
    blocks = col_blocks(matrices, _SOME)
    return sum(block.keys.stop - block.keys.start for block in blocks) / max(1, len(blocks))


def _one_key(matrices: Tensor) -> bool:
    """Tells whether all attention along an axis goes to its only key: a softmax over one key is one."""
    return matrices.shape == (1, 1, 1) and matrices.item() == 1
