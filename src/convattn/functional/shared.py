"""Heads that share their weights along an axis: those of a 3 × 3 kernel have three matrices per axis, not nine.

Only without gradients: when centres are learned, no two heads are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from convattn.functional.reference import pad_keys, position_weights
from convattn.functional.separable import WORTHWHILE, Workspace, add_head, chunks, length_of, needed_keys
from convattn.grid import Axis, Geometry


@dataclass(frozen=True, eq=False, slots=True)
class HeadGrid:
    """Attention of heads that are all combinations of a few matrices per axis.

    Zeros that pad the image or lie between its pixels are keys and enter the softmax. They contribute nothing to the
    output, so their columns are left out of the matrices.
    """

    rows: Float[Tensor, "_ _ _"]  # (matrices, queries, pixels), attention along the first axis
    cols: Float[Tensor, "_ _ _"]  # along the second; in sequences the first axis has one pixel
    heads: tuple[int, ...] | None  # the head of each combination, row by row; None if that is their order
    geometry: Geometry | None  # how images are padded before; None if their own pixels are enough

    def by_head(self, axes: int) -> list[Float[Tensor, "heads _ _"]]:
        """Returns the matrices of every head, along each of one or two axes."""
        every = range(len(self.rows) * len(self.cols))
        place = torch.tensor(every if self.heads is None else _inverse(self.heads), device=self.cols.device)
        both = [self.rows[place // len(self.cols)], self.cols[place % len(self.cols)]]
        return both[2 - axes :]


def find_head_grid(
    tables: Sequence[Float[Tensor, "heads _"]], axes: Sequence[Axis], geometry: Geometry, dtype: torch.dtype
) -> HeadGrid | None:
    """Finds a few matrices per axis whose combinations are the heads.

    Args:
        tables: For each axis, the scores of all its displacements from the lowest to the highest, in the dtype in which
            the softmax is taken.
        axes: Queries and keys along each axis of the padded images; one or two.
        geometry: How images are padded.
        dtype: Dtype of the matrices.

    Returns:
        The matrices; None if the heads are not all combinations.

    Example:
        >>> tables, axes = [torch.tensor([[0.0, 1.0, 2.0]] * 2), torch.tensor([[0.0], [1.0]])], [Axis(range(2), 2)]
        >>> grid = find_head_grid(tables, [*axes, Axis(range(1), 1)], Geometry.parse(2), torch.float32)
        >>> None if grid is None else (len(grid.rows), len(grid.cols), grid.heads)
        (1, 2, None)
    """
    different, numbers = zip(*(_distinct(table) for table in tables), strict=True)
    heads = _combinations(numbers, [len(table) for table in different])
    if heads is None:
        return None
    zeros = geometry.padding_mode == "zeros"
    made = []
    for number, (table, axis) in enumerate(zip(different, axes, strict=True)):
        weights = position_weights(table, (axis,)).to(dtype)
        made.append(_at_pixels(weights, geometry, number) if zeros else weights)
    if len(made) == 1:
        made.insert(0, torch.ones_like(made[0][:1, :1, :1]))
    order = None if heads == list(range(len(heads))) else tuple(heads)
    return HeadGrid(made[0], made[1], order, None if zeros else geometry)


def _distinct(
    table: Float[Tensor, "heads displacements"],
) -> tuple[Float[Tensor, "different displacements"], list[int]]:
    """Returns the different rows in order of first appearance, and the number of each head's row."""
    found, number = torch.unique(table, dim=0, return_inverse=True)
    first: dict[int, int] = {}
    numbers = [first.setdefault(value, len(first)) for value in number.tolist()]
    return found[list(first)], numbers


def _combinations(numbers: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int] | None:
    """Returns the head of each combination; None if one is missing or occurs twice."""
    places = [0] * len(numbers[0])
    for along, count in zip(numbers, counts, strict=True):
        places = [place * count + number for place, number in zip(places, along, strict=True)]
    return _inverse(places) if sorted(places) == list(range(prod(counts))) else None


def _at_pixels(
    weights: Float[Tensor, "heads queries keys"], geometry: Geometry, axis: int
) -> Float[Tensor, "heads queries pixels"]:
    """Takes the weights of the image's own pixels; those of cropped pixels are zero."""
    (before, after), step = geometry.padding[axis], geometry.input_dilation[axis]
    keys = weights.shape[2]
    pixels = (keys - before - after - 1) // step + 1
    stands: Int[Tensor, " pixels"] = torch.arange(pixels, device=weights.device) * step + before
    inside = (stands >= 0) & (stands < keys)
    return torch.where(inside, weights[:, :, stands.clamp(0, keys - 1)], 0)


def _inverse(places: Sequence[int]) -> list[int]:
    heads = [0] * len(places)
    for head, place in enumerate(places):
        heads[place] = head
    return heads


SHORT = 16
"""Queries of a block along an axis on which heads are narrow."""


class MatrixBlock(NamedTuple):
    """A part of one or several attention matrices along an axis."""

    number: int  # which matrix along the axis; 0 if a block holds all of them
    queries: slice  # rows of the part
    keys: slice  # columns of the part; in a strip, counted from its first key
    weights: Tensor  # (queries, keys); of several matrices, in the arrangement that was asked for


class RowStrip(NamedTuple):
    """Rows of the image that are computed together."""

    queries: slice  # those of all its blocks
    keys: slice  # those of all its blocks
    blocks: tuple[MatrixBlock, ...]  # one for each matrix


def joint_blocks(
    matrices: Float[Tensor, "matrices queries keys"], arrangement: str, short: int = SHORT
) -> tuple[MatrixBlock, ...]:
    """Cuts all matrices along an axis together; `arrangement` orders the weights, as in "m q k -> (q m) k"."""
    spans, blocks, longest = _needed(matrices), [], matrices.shape[1]
    for part in _query_parts(matrices, spans, longest, short):
        keys = _range(spans[:, :, part])
        blocks.append(MatrixBlock(0, part, keys, rearrange(matrices[:, part, keys], arrangement).contiguous()))
    return tuple(blocks)


def row_strips(
    matrices: Float[Tensor, "matrices queries keys"], longest: int, *, all_keys: bool = False
) -> tuple[RowStrip, ...]:
    """Cuts the first axis into strips of at most `longest` queries, with the keys that they need or all keys."""
    spans, strips = _needed(matrices), []
    for part in _query_parts(matrices, spans, longest, SHORT):
        keys = slice(0, matrices.shape[2]) if all_keys else _range(spans[:, :, part])
        blocks = []
        for number, matrix in enumerate(matrices):
            own = _range(spans[:, number, part])
            inside = slice(own.start - keys.start, own.stop - keys.start)
            blocks.append(MatrixBlock(number, part, inside, matrix[part, own].contiguous()))
        strips.append(RowStrip(part, keys, tuple(blocks)))
    return tuple(strips)


def _needed(matrices: Float[Tensor, "matrices queries keys"]) -> Int[Tensor, "2 matrices queries"]:
    return needed_keys(matrices, torch.finfo(matrices.dtype).eps / 64)


def _query_parts(matrices: Tensor, spans: Tensor, longest: int, short: int) -> list[slice]:
    """Cuts the queries evenly into parts, short ones if heads are narrow."""
    length, keys = matrices.shape[1:]
    narrow = (spans[1] - spans[0]).double().mean().item() + short < WORTHWHILE * keys
    count = -(-length // max(1, min(longest, short if narrow else length)))
    edges = [round(length * number / count) for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _range(spans: Int[Tensor, "2 *queries"]) -> slice:
    """Returns the keys that any of the queries needs; one key if none is needed."""
    low, high = spans
    used = low < high
    return slice(low[used].min().item(), high[used].max().item()) if used.any() else slice(0, 1)


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
        mixed = _pixels_along_cols(tiling, pixels[images, strip.keys], workspace)
        out = y[images, strip.queries].view(-1, y.shape[-1])
        for block in strip.blocks:
            means = workspace.get("means", len(mixed), len(block.weights), mixed.shape[2])
            torch.bmm(block.weights.expand(len(mixed), -1, -1), mixed[:, block.keys], out=means)
            values.apply(means.view(len(out), -1), block.number, out)
        if bias is not None:
            out += bias
    return y


def _pixels_along_cols(
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


def few_channels_first(
    tiling: GridTiling, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Takes the means along both axes, then multiplies with W_h of all heads at once; returns pixels, not planes."""
    y, workspace = x.new_empty(len(x), tiling.rows, tiling.across, values.maps.shape[1]), Workspace(x)
    assert values.whole is not None
    weight = values.whole.flatten(1).mT
    for image, pixels in zip(x.contiguous(), y, strict=True):
        mixed = _along_cols(tiling, image[None], workspace)
        for strip in tiling.strips:
            means = _along_rows(strip, mixed, _means(strip, mixed, workspace))
            out = pixels[strip.queries].flatten(0, 1)
            torch.mm(means.view(-1, len(out)).mT, weight, out=out)
            if bias is not None:
                out += bias
    return y


def plane_values_first(
    tiling: GridTiling, x: Float[Tensor, "batch channels rows cols"], values: GridValues, bias: Tensor | None
) -> Float[Tensor, "batch rows_out cols_out outputs"]:
    """Multiplies with the only W_h, then takes the means along both axes."""
    y, workspace = x.new_empty(len(x), values.maps.shape[1], tiling.rows, tiling.across), Workspace(x)
    groups, weight = values.groups, values.maps[0].unflatten(0, (values.groups, -1))
    for images in chunks(len(y), tiling.images):
        keys, out = x[images].contiguous(), y[images]
        made = workspace.get("values", len(keys), out.shape[1], *keys.shape[2:])
        for image, into in zip(keys.flatten(2), made.flatten(2), strict=True):
            torch.bmm(weight, image.unflatten(0, (groups, -1)), out=into.unflatten(0, (groups, -1)))
        mixed = _along_cols(tiling, made, workspace)
        for strip in tiling.strips:
            part = out[:, :, strip.queries]
            means = part if part.is_contiguous() else _means(strip, mixed, workspace).view(part.shape)
            _along_rows(strip, mixed, means.view(1, len(mixed), *part.shape[2:]))
            if bias is not None:
                torch.add(means, bias[:, None, None], out=part)
            elif means is not part:
                part.copy_(means)
    return y.movedim(1, -1)


def _along_cols(
    tiling: GridTiling, planes: Float[Tensor, "images channels rows cols"], workspace: Workspace
) -> Float[Tensor, "matrices_and_images_and_channels rows cols_out"]:
    """Takes means along the columns, by each matrix."""
    rows, cols = planes.shape[2:]
    if not tiling.cols:
        return planes.view(-1, rows, cols)
    lines = planes.view(-1, cols)
    mixed = workspace.get("mixed", len(tiling.cols[0].weights), len(lines), tiling.across)
    for block in tiling.cols:
        for weights, into in zip(block.weights, mixed, strict=True):
            torch.mm(lines[:, block.keys], weights, out=into[:, block.queries])
    return mixed.view(-1, rows, tiling.across)


def _means(strip: RowStrip, mixed: Tensor, workspace: Workspace) -> Float[Tensor, "matrices planes rows_out cols"]:
    """Allocates the means along the rows of a strip."""
    return workspace.get("means", len(strip.blocks), len(mixed), length_of(strip.queries), mixed.shape[2])


def _along_rows(
    strip: RowStrip, mixed: Float[Tensor, "planes rows cols"], out: Float[Tensor, "matrices planes rows_out cols"]
) -> Float[Tensor, "matrices planes rows_out cols"]:
    """Takes means along the rows of a strip, by each matrix."""
    for block, into in zip(strip.blocks, out, strict=True):
        keys = slice(strip.keys.start + block.keys.start, strip.keys.start + block.keys.stop)
        torch.bmm(block.weights.expand(len(mixed), -1, -1), mixed[:, keys], out=into)
    return out


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
                _channels_along_rows(row, mixed, len(maps), out[:, :, row.queries, block.queries], added, workspace)
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


def _channels_along_rows(
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
