"""A grid of heads with one group per channel: column matrices are weighted and summed, not pixels.

W_h is a number w_h,d per channel d, so y_d = Σ_r R_r x_d (Σ_c w_rc,d C_c)ᵀ: one matrix per channel and row matrix, and
every step is a batch of matrix products over the channels. Weighting pixels instead would take a pass over the pixels
for each head.
"""

from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.separable.tiles import Workspace, chunks, length_of
from convattn.functional.shared.blocks import MatrixBlock
from convattn.functional.shared.pixels import GridTiling, GridValues

_MOST = 1 << 22
"""Largest number of elements of an intermediate tensor."""

_TOGETHER = 1 << 17
"""Pixels times channels up to which images are joined."""


def single_channels(
    tiling: GridTiling, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out channels"]:
    """Multiplies with W_h and the column matrices at once, then with the row matrices; one group per channel."""
    # Weights of rows are (queries, keys × matrices), those of columns (matrices, keys × queries).
    result = x.new_empty(*x.shape[:2], tiling.rows, tiling.across)
    maps = values.maps[:, :, 0].unflatten(0, (-1, values.cols))
    x, maps, y = (x.mT, maps.transpose(0, 1), result.mT) if tiling.turned else (x, maps, result)
    workspace, numbers, (channels, keys, across) = Workspace(x), maps.movedim(2, 0), x.shape[1:]
    widest = max(length_of(block.queries) * max(keys, length_of(block.keys)) for block in tiling.cols)
    count = min(channels, max(1, _MOST // (len(maps) * widest)))
    together = max(1, _TOGETHER // (count * keys * across))
    for some, images in product(chunks(channels, count), chunks(len(x), together)):
        lines, out = x[images, some].transpose(0, 1).flatten(1, 2).contiguous(), y[images, some].transpose(0, 1)
        added = None if bias is None else bias[some, None, None, None]
        for block in tiling.cols:
            matrices = _summed(numbers[some], block, workspace)
            mixed = workspace.get("mixed", *lines.shape[:2], matrices.shape[2])
            torch.bmm(lines[:, :, block.keys], matrices, out=mixed)
            mixed = mixed.view(-1, keys * len(maps), length_of(block.queries))
            for strip in tiling.strips:
                (row,) = strip.blocks
                _along_rows(row, mixed, len(maps), out[:, :, row.queries, block.queries], added, workspace)
    return result.movedim(1, -1)


def _summed(
    maps: Float[Tensor, "channels row_matrices col_matrices"], block: MatrixBlock, workspace: Workspace
) -> Float[Tensor, "channels keys row_matrices_and_queries"]:
    """Weights the column matrices with the numbers of their heads and sums them."""
    channels, rows, cols = maps.shape
    keys, queries = length_of(block.keys), length_of(block.queries)
    made = workspace.get("sums", channels * rows, keys * queries)
    torch.mm(maps.reshape(-1, cols), block.weights, out=made)
    matrices = workspace.get("matrices", channels, keys, rows, queries)
    return matrices.copy_(made.view(channels, rows, keys, queries).transpose(1, 2)).flatten(2)


def _along_rows(
    block: MatrixBlock,
    mixed: Float[Tensor, "channels_and_images keys_and_matrices cols"],
    count: int,
    out: Float[Tensor, "channels images rows cols"],
    bias: Tensor | None,
    workspace: Workspace,
) -> None:
    """Takes the means along the rows by all row matrices at once and sums them."""
    keys, whole = mixed[:, block.keys.start * count : block.keys.stop * count], out.is_contiguous()
    means = out.flatten(0, 1) if whole else workspace.get("means", len(keys), *out.shape[2:])
    if out.shape[3] == 1:
        torch.mm(keys[:, :, 0], block.weights.mT, out=means[:, :, 0])
    else:  # a batch of products is slow if the result is not one block of memory
        torch.bmm(block.weights.expand(len(keys), -1, -1), keys, out=means)
    if not whole:
        out.copy_(means.view(out.shape))
    if bias is not None:
        out += bias
