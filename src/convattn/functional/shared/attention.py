"""Attention of a grid of heads: the order of its products, and how they are cut.

With h = (r, c) and A_h = R_r ⊗ C_c the layer is y = Σ_r R_r Σ_c W_rc C_c x. A strip of rows is computed at a time, so
that it stays in the cache. The products are taken in one of four orders:

========  ===============================  =====================================  ======================================
order     when                             how                                    gain over "keys" (one core, AVX-512)
========  ===============================  =====================================  ======================================
keys      otherwise                        means by columns, by rows, then W_h
few       at most 4 channels               the same, with channels as planes      1.9 to 2.9 × on first layers (3
                                                                                  channels, 224²)
values    one head, fewer outputs than     W_h, then means, with channels as      0.9 to 2.6 ×, 1.5 in the middle, on
          inputs                           planes                                 1 × 1 layers of ResNet-50
channels  every channel is a group         column matrices weighted and summed    1.6 to 3.7 × on depthwise layers of
                                           for each channel, not pixels           ConvNeXt and EfficientNet
========  ===============================  =====================================  ======================================
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from convattn.functional.reference import pad_keys
from convattn.functional.shared.blocks import SHORT, RowStrip, joint_blocks, row_strips
from convattn.functional.shared.channels import single_channels
from convattn.functional.shared.grid import HeadGrid
from convattn.functional.shared.pixels import GridTiling, GridValues, keys_first
from convattn.functional.shared.planes import few_channels_first, plane_values_first

_CACHE = 1 << 20
"""Bytes of mixed pixels computed at a time."""

_PLANES = 4 * _CACHE
"""Bytes of the planes of images that are computed together."""

_NUMBERS = 1024
"""Queries times channels of a block along the second axis, if channels are few."""

_FEW = 4
"""Largest number of channels that are kept as planes."""

_PRECISE = 16
"""Pixels and outputs from which on a product with W_h from the left is as precise as one from the right: with fewer,
channels are summed one number after another. Measured with up to 4096 channels (MKL, float32): root mean square errors
from the left are 0.92 to 1.09 of those from the right with 16 to 32 and AVX2, 1.00 with AVX-512; with fewer they are up
to 3.4 and 3.1 times those."""

_ORDERS: dict[str, Callable[[GridTiling, Tensor, GridValues, Tensor | None], Tensor]] = {
    "keys": keys_first,
    "few": few_channels_first,
    "values": plane_values_first,
    "channels": single_channels,
}


class GridSizes(NamedTuple):
    """Sizes that decide the order of the products."""

    batch: int
    channels: int  # D_in
    outputs: int  # D_out
    groups: int  # blocks of each W_h
    itemsize: int  # bytes of a number


@dataclass(frozen=True, eq=False, slots=True)
class GridAttention:
    """The matrix products that compute a layer on images of one size."""

    grid: HeadGrid
    order: str  # order of the products: "keys", "few", "values" or "channels"
    tiling: GridTiling

    def __call__(self, x: Tensor, maps: Tensor, groups: int, bias: Tensor | None) -> Tensor:
        """Computes the layer, without a graph for gradients.

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
        y = _ORDERS[self.order](self.tiling, keys.unsqueeze(2) if sequence else keys, values, bias).movedim(-1, 1)
        return y.squeeze(2) if sequence else y


def grid_attention(grid: HeadGrid, sizes: GridSizes) -> GridAttention:
    """Chooses the order of the products, and cuts them.

    Args:
        grid: The attention matrices.
        sizes: Sizes of the call.

    Returns:
        What computes it.
    """
    order = _order(grid, sizes)
    if order == "channels":
        tiling = _tiling_of_channels(grid)
    elif order == "keys":
        tiling = _tiling_of_pixels(grid, sizes)
    else:
        tiling = _tiling_of_planes(grid, sizes, order)
    return GridAttention(grid, order, tiling)


def _tiling_of_pixels(grid: HeadGrid, sizes: GridSizes) -> GridTiling:
    """Cuts the matrices for images whose channels stand together; small images are joined."""
    (_, queries, keys), (_, across, _) = grid.rows.shape, grid.cols.shape
    short = max(SHORT, min(_NUMBERS // sizes.channels, 2 * SHORT))
    cols = () if _one_key(grid.cols) else joint_blocks(grid.cols, "m q k -> (q m) k", short)
    rows = max(4, _CACHE // (across * len(grid.cols) * sizes.channels * sizes.itemsize))
    longest = max(1, rows * queries // keys)
    strips = row_strips(grid.rows, longest)
    images = max(1, rows // keys) if len(strips) == 1 else 1
    if images > 1:  # pixels of several images are one block only with all of their rows
        strips = row_strips(grid.rows, longest, all_keys=True)
    return GridTiling(queries, across, images, cols, strips)


def _tiling_of_planes(grid: HeadGrid, sizes: GridSizes, order: str) -> GridTiling:
    """Cuts the matrices for images whose channels are planes; images of a single head are joined."""
    (row_count, queries, keys), (col_count, across, _) = grid.rows.shape, grid.cols.shape
    cols = () if _one_key(grid.cols) else joint_blocks(grid.cols, "m q k -> m k q")
    per_row = across * (sizes.outputs if order == "values" else sizes.channels) * sizes.itemsize
    strips = row_strips(grid.rows, max(1, _CACHE // (row_count * col_count * per_row)))
    together = row_count == col_count == len(strips) == 1
    images = max(1, _PLANES // (keys * per_row)) if together else 1
    return GridTiling(queries, across, images, cols, strips)


def _tiling_of_channels(grid: HeadGrid) -> GridTiling:
    """Cuts the matrices for one group per channel; rows and columns are exchanged if there is one row."""
    turned = _one_key(grid.rows)
    first, second = (grid.cols, grid.rows) if turned else (grid.rows, grid.cols)
    rows = joint_blocks(first, "m q k -> q (k m)")
    strips = tuple(RowStrip(block.queries, block.keys, (block,)) for block in rows)
    cols = joint_blocks(second, "m q k -> m (k q)")
    return GridTiling(grid.rows.shape[1], grid.cols.shape[1], 1, cols, strips, turned)


def _order(grid: HeadGrid, sizes: GridSizes) -> str:
    """Returns the fastest order of the products."""
    (row_count, queries, rows), (col_count, across, cols) = grid.rows.shape, grid.cols.shape
    if sizes.groups == sizes.channels == sizes.outputs > 1:
        return "channels"
    if row_count == col_count == 1 and rows * cols * sizes.outputs < queries * across * sizes.channels:
        shortest = min(rows * cols, sizes.outputs // sizes.groups)
        return "values" if shortest >= _PRECISE else "keys"
    return "few" if sizes.channels <= _FEW and sizes.groups == 1 else "keys"


def _one_key(matrices: Tensor) -> bool:
    """Tells whether all attention along an axis goes to its only key: a softmax over one key is one."""
    return matrices.shape == (1, 1, 1) and matrices.item() == 1
