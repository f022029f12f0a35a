"""The products of a grid of heads, in each of their orders; pixels are (images, rows, cols, channels)."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.separable.heads import add_head
from convattn.functional.separable.tiles import Workspace
from convattn.functional.shared.blocks import Block, Strip
from convattn.functional.shared.channels import channel_by_channel


class Pieces(NamedTuple):
    """What is worked on together.

    Attributes:
        rows: Number of queries along the first axis.
        across: Number of queries along the second axis.
        images: Number of images that go together; where they are several, there is one strip.
        cols: Blocks along the second axis; none where it has one key, to which goes all attention.
        strips: Strips along the first axis.
        turned: Whether what is said of rows and columns holds for the image with its axes exchanged.
    """

    rows: int
    across: int
    images: int
    cols: tuple[Block, ...]
    strips: tuple[Strip, ...]
    turned: bool = False

    def of(self, batch: int) -> Iterator[tuple[slice, Strip]]:
        """Yields images and a strip."""
        for image in range(0, batch, self.images):
            for strip in self.strips:
                yield slice(image, min(image + self.images, batch)), strip

    def output(self, pixels: Tensor, values: "GridValues") -> Tensor:
        """Makes room for (images, rows, cols, outputs)."""
        return pixels.new_empty(len(pixels), self.rows, self.across, values.maps.shape[1])


class GridValues:
    """W_h, for products with the pixels of all column matrices at once.

    Attributes:
        maps: W_h, (heads, outputs, channels // groups), the heads of a row matrix together.
        cols: Number of column matrices.
        groups: Number of blocks.
        whole: (outputs, heads, channels), without groups.
    """

    def __init__(self, maps: Tensor, heads: tuple[int, ...] | None, cols: int, groups: int) -> None:
        """Orders the matrices; `heads` is the head of each combination, or None where they stand in this order."""
        self.maps, self.cols, self.groups = maps if heads is None else maps[list(heads)], cols, groups
        self.whole = self.maps.movedim(0, 1).contiguous() if groups == 1 else None

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
    pieces: Pieces, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Takes the means along both axes, then multiplies with W_h."""
    pixels, workspace = _pixels(x), Workspace(x)
    y = pieces.output(pixels, values)
    for images, strip in pieces.of(len(pixels)):
        mixed = _along_cols(pieces, pixels[images, strip.keys], workspace)
        out = y[images, strip.queries].view(-1, y.shape[-1])
        for block in strip.blocks:
            means = workspace.get("means", len(mixed), len(block.weights), mixed.shape[2])
            torch.bmm(block.weights.expand(len(mixed), -1, -1), mixed[:, block.keys], out=means)
            values.apply(means.view(len(out), -1), block.number, out)
        if bias is not None:
            out += bias
    return y


def single_channels(
    pieces: Pieces, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out channels"]:
    """Multiplies with W_h and the column matrices at once, where each channel is a group; then along the rows."""
    y = x.new_empty(*x.shape[:2], pieces.rows, pieces.across)
    maps = values.maps[:, :, 0].unflatten(0, (-1, values.cols))
    rows = tuple(block for strip in pieces.strips for block in strip.blocks)
    if pieces.turned:
        channel_by_channel(rows, pieces.cols, x.mT, maps.transpose(0, 1), y.mT, bias)
    else:
        channel_by_channel(rows, pieces.cols, x, maps, y, bias)
    return y.movedim(1, -1)


def _pixels(x: Tensor) -> Float[Tensor, "batch rows cols channels"]:
    return x.movedim(1, -1).contiguous()


def _along_cols(
    pieces: Pieces, pixels: Tensor, workspace: Workspace
) -> Float[Tensor, "images rows cols_and_matrices_and_channels"]:
    """Takes means along the columns; those of a query by all matrices stand together."""
    images, rows, cols, channels = pixels.shape
    if not pieces.cols:
        return pixels.view(images, rows, -1)
    count = len(pieces.cols[0].weights) // (pieces.cols[0].queries.stop - pieces.cols[0].queries.start)
    lines = pixels.view(images * rows, cols, channels)
    mixed = workspace.get("mixed", len(lines), pieces.across * count, channels)
    for block in pieces.cols:
        out = mixed[:, block.queries.start * count : block.queries.stop * count]
        whole = out.is_contiguous()  # a batch of products is slow where the result is not one block of memory
        part = out if whole else workspace.get("part", *out.shape)
        torch.bmm(block.weights.expand(len(lines), -1, -1), lines[:, block.keys], out=part)
        if not whole:
            out.copy_(part)
    return mixed.view(images, rows, -1)
