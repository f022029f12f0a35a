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
    keys_first,
    single_channels,
    single_key,
)
from convattn.functional.grid_planes import few_channels_first, plane_keys_first, plane_values_first
from convattn.functional.grid_tiles import Strip, col_blocks, covers_once, joint_blocks, key_strips, query_strips
from convattn.functional.head_grid import HeadGrid
from convattn.functional.keys import pad_keys

__all__ = ["GridAttention", "GridSizes", "grid_attention"]

_CACHE = 1 << 20
"""Bytes of mixed pixels worked on at a time."""

_PLANES = 4 * _CACHE
"""Bytes of the planes of images that go together."""

_FEW, _SOME = 4, 64
"""Channels up to which they are kept as planes, and from which they are many."""

_SHORTEST = 8
"""Rows that a strip has at least, where there are so many."""

_PRECISE = 16
"""Pixels and outputs from which on a product with W_h from the left is as precise as one from the right: of fewer, the
sums over the channels are taken one number after another. Measured with up to 4096 channels (MKL, float32): root mean
square errors from the left are 0.92 to 1.09 of those from the right with 16 to 32 and AVX2, 1.00 with AVX-512; with
fewer they are up to 3.4 and 3.1 times those."""

_SLOW_MIX = 2.0
"""How many times longer than in a large product an operation along an axis takes. Measured on one core (float32)."""

_ORDERS: dict[str, Callable[[Pieces, Tensor, GridValues, Tensor | None], Tensor]] = {
    "keys": keys_first,
    "few": few_channels_first,
    "plane keys": plane_keys_first,
    "between": all_channels_between,
    "channels": single_channels,
    "plane values": plane_values_first,
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
        order: With the channels of a pixel together, "keys" (means, then W_h) or "between" (columns, W_h, rows); with
            channels as planes, "few" (means, then W_h), "plane keys" (the same with one head), "plane values" (W_h,
            then means, with one head) or "channels" (a group for each); or "single" (one key, to which all attention
            goes).
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
            (batch, outputs, *queries), with the pixels of a channel or the channels of a pixel side by side in memory.
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
    if order == "single":
        pieces = Pieces(grid.rows.shape[1], grid.cols.shape[1], 1, (), (), fresh=True)
    elif order == "channels":
        pieces = _pieces_of_channels(grid)
    elif order in {"few", "plane keys", "plane values"}:
        pieces = _pieces_of_planes(grid, sizes, order)
    else:
        pieces = _pieces_of_pixels(grid, sizes, order)
    return GridAttention(grid, order, pieces)


def _pieces_of_pixels(grid: HeadGrid, sizes: GridSizes, order: str) -> Pieces:
    """Cuts the matrices where the channels of a pixel stand together; of small images, several go together."""
    (_, queries, keys), (_, across, _) = grid.rows.shape, grid.cols.shape
    cols = () if _one_key(grid.cols) else col_blocks(grid.cols, sizes.channels)
    made = len(grid.cols) * sizes.channels + (sizes.outputs if order == "between" else 0)
    rows = max(4, _CACHE // (across * made * sizes.itemsize))
    if order == "keys":
        cut, longest = query_strips, max(1, rows * queries // keys)
    else:
        cut, longest = key_strips, rows
    strips = cut(grid.rows, longest)
    images = max(1, rows // keys) if len(strips) == 1 else 1
    if images > 1:  # pixels of several images are one block only with all of their rows
        strips = cut(grid.rows, longest, whole=True)
    fresh = order == "keys" or covers_once(strips, queries)
    return Pieces(queries, across, images, cols, strips, fresh=fresh)


def _pieces_of_planes(grid: HeadGrid, sizes: GridSizes, order: str) -> Pieces:
    """Cuts the matrices where channels are planes; of one head, several images go together."""
    (row_count, queries, keys), (col_count, across, _) = grid.rows.shape, grid.cols.shape
    cols = () if _one_key(grid.cols) else joint_blocks(grid.cols, "m q k -> m k q")
    per_row = across * (sizes.outputs if order == "plane values" else sizes.channels) * sizes.itemsize
    strips = query_strips(grid.rows, max(1, _CACHE // (row_count * col_count * per_row)))
    together = row_count == col_count == len(strips) == 1
    images = max(1, _PLANES // (keys * per_row)) if together else 1
    return Pieces(queries, across, images, cols, strips, fresh=True)


def _pieces_of_channels(grid: HeadGrid) -> Pieces:
    """Cuts the matrices where each channel is a group; where there is one row, columns take the place of rows."""
    turned = _one_key(grid.rows)
    first, second = (grid.cols, grid.rows) if turned else (grid.rows, grid.cols)
    rows = joint_blocks(first, "m q k -> q (k m)")
    strips = tuple(Strip(block.queries, block.keys, (block,)) for block in rows)
    cols = joint_blocks(second, "m q k -> m (k q)")
    return Pieces(grid.rows.shape[1], grid.cols.shape[1], 1, cols, strips, fresh=True, turned=turned)


def _order(grid: HeadGrid, sizes: GridSizes) -> str:
    """Returns the order of the products that takes the least time."""
    (row_count, queries, rows), (col_count, across, cols) = grid.rows.shape, grid.cols.shape
    if _one_key(grid.rows) and _one_key(grid.cols):
        return "single"
    if sizes.groups == sizes.channels == sizes.outputs > 1:
        return "channels"
    pixels = min(rows * cols, min(queries, _SHORTEST) * across)
    if row_count == col_count == 1 and min(pixels, sizes.outputs // sizes.groups) >= _PRECISE:
        return "plane keys" if queries * across * sizes.channels <= rows * cols * sizes.outputs else "plane values"
    products = row_count * col_count * sizes.channels * sizes.outputs // sizes.groups
    reach = [_SLOW_MIX * _mean_reach(matrices) for matrices in (grid.rows, grid.cols)]
    means = rows * across * col_count * sizes.channels * reach[1]
    ahead = queries * across * row_count * reach[0]
    keys = means + ahead * col_count * sizes.channels + queries * across * products
    between = means + rows * across * products + ahead * sizes.outputs
    if between < keys:
        return "between"
    return "few" if sizes.channels <= _FEW and sizes.groups == 1 else "keys"


def _mean_reach(matrices: Tensor) -> float:
    """Returns how many keys stand in a block, on average."""
    blocks = col_blocks(matrices, _SOME)
    return sum(block.keys.stop - block.keys.start for block in blocks) / max(1, len(blocks))


def _one_key(matrices: Tensor) -> bool:
    """Tells whether all attention along an axis goes to its only key: a softmax over one key is one."""
    return matrices.shape == (1, 1, 1) and matrices.item() == 1
