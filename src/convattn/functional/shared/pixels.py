"""The products of a grid of heads for images whose channels stand together, (images, rows, cols, channels)."""

from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.separable.heads import add_head
from convattn.functional.separable.tiles import Workspace, chunks, length_of
from convattn.functional.shared.blocks import MatrixBlock, RowStrip


class GridTiling(NamedTuple):
    """How the products of one call are cut into parts that stay in the cache."""

    rows: int  # queries along the first axis
    across: int  # queries along the second axis
    images: int  # images that go together; if there are several, there is one strip
    cols: tuple[MatrixBlock, ...]  # blocks along the second axis; none if all attention goes to its only key
    strips: tuple[RowStrip, ...]  # strips along the first axis
    turned: bool = False  # whether rows and columns are those of the image with its axes exchanged


class GridValues:
    """W_h, for products with the pixels of all column matrices at once."""

    def __init__(self, maps: Tensor, heads: tuple[int, ...] | None, cols: int, groups: int) -> None:
        self.maps = maps if heads is None else maps[list(heads)]  # the heads of a row matrix stand together
        self.cols, self.groups = cols, groups  # number of column matrices and of blocks
        self.whole = self.maps.movedim(0, 1).contiguous() if groups == 1 else None  # (outputs, heads, channels)

    def apply(self, mixed: Tensor, row: int, out: Tensor) -> None:
        """Multiplies means (pixels, column matrices × channels) with the matrices of a row matrix's heads.

        Those of the first row matrix are written into `out`, (pixels, outputs); the others are added.
        """
        heads = slice(row * self.cols, (row + 1) * self.cols)
        if self.whole is not None:
            matrix = self.whole[:, heads].flatten(1).mT
            out.addmm_(mixed, matrix) if row else torch.mm(mixed, matrix, out=out)
            return
        if not row:
            out.zero_()
        for part, weight in zip(mixed.view(len(mixed), self.cols, -1).unbind(1), self.maps[heads], strict=True):
            add_head(out, part, weight, self.groups)


def keys_first(
    tiling: GridTiling, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Takes the means along both axes, then multiplies with W_h."""
    pixels, workspace = x.movedim(1, -1).contiguous(), Workspace(x)
    y = x.new_empty(len(x), tiling.rows, tiling.across, values.maps.shape[1])
    for images, strip in product(chunks(len(pixels), tiling.images), tiling.strips):
        mixed = _along_cols(tiling, pixels[images, strip.keys], workspace)
        out = y[images, strip.queries].view(-1, y.shape[-1])
        for block in strip.blocks:
            means = workspace.get("means", len(mixed), len(block.weights), mixed.shape[2])
            torch.bmm(block.weights.expand(len(mixed), -1, -1), mixed[:, block.keys], out=means)
            values.apply(means.view(len(out), -1), block.number, out)
        if bias is not None:
            out += bias
    return y


def _along_cols(
    tiling: GridTiling, pixels: Tensor, workspace: Workspace
) -> Float[Tensor, "images rows cols_and_matrices_and_channels"]:
    """Takes means along the columns; those of a query by all matrices stand together."""
    images, rows, cols, channels = pixels.shape
    if not tiling.cols:
        return pixels.view(images, rows, -1)
    count = len(tiling.cols[0].weights) // length_of(tiling.cols[0].queries)
    lines = pixels.view(images * rows, cols, channels)
    mixed = workspace.get("mixed", len(lines), tiling.across * count, channels)
    for block in tiling.cols:
        out = mixed[:, block.queries.start * count : block.queries.stop * count]
        whole = out.is_contiguous()  # a batch of products is slow if the result is not one block of memory
        part = out if whole else workspace.get("part", *out.shape)
        torch.bmm(block.weights.expand(len(lines), -1, -1), lines[:, block.keys], out=part)
        if not whole:
            out.copy_(part)
    return mixed.view(images, rows, -1)
