"""How the attention matrices along an axis are cut into blocks, which hold all attention but rounding."""

from itertools import pairwise
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from convattn.functional.separable.tiles import WORTHWHILE, needed_keys

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
