"""How attention matrices along an axis are cut up: blocks that hold all attention but rounding."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from convattn.functional.separable.tiles import WORTHWHILE, needed_keys

_SHORT = 16
"""Pixels of a piece along an axis on which heads are narrow."""

_NUMBERS = 1024
"""Pixels times channels of a piece along the second axis, where channels are few."""


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """A part of one or several matrices along an axis.

    Attributes:
        number: Which matrix along the axis; 0 where a block holds all of them.
        queries: Rows of the part.
        keys: Columns of the part, counted from the first key of its strip where it is in one.
        weights: The part, (queries, keys); where a block holds all of them, as its order wants them.
    """

    number: int
    queries: slice
    keys: slice
    weights: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Strip:
    """Pixels along the first axis that are worked on together.

    Attributes:
        queries: Queries of the strip; those of all its blocks.
        keys: Keys of the strip; those of all its blocks.
        blocks: One for each matrix that matters here.
    """

    queries: slice
    keys: slice
    blocks: tuple[Block, ...]


def _needed(matrices: Float[Tensor, "matrices queries keys"]) -> Int[Tensor, "2 matrices queries"]:
    """Finds, for each query, the keys with all its attention but rounding.

    Args:
        matrices: Attention; rows sum to one at most.

    Returns:
        The first of them, and the one behind the last; both the same for a query that needs none.
    """
    first, last = needed_keys(matrices, torch.finfo(matrices.dtype).eps / 64)
    return torch.stack([first, torch.where(first < last, last, first)])


def _pieces(length: int, matrices: Tensor, spans: Tensor, longest: int, short: int = _SHORT) -> list[slice]:
    """Cuts an axis of queries or keys evenly, into short pieces where heads are narrow."""
    narrow = (spans[1] - spans[0]).clamp(min=0).double().mean().item() + short < WORTHWHILE * matrices.shape[2]
    most = max(1, min(longest, short if narrow else length))
    count = -(-length // most)
    edges = [round(length * number / count) for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def joint_blocks(
    matrices: Float[Tensor, "matrices queries keys"], arrangement: str, short: int = _SHORT
) -> tuple[Block, ...]:
    """Cuts the matrices along an axis, all of them together.

    Args:
        matrices: Attention along the axis.
        arrangement: How weights of a block lie, as rows of keys: "m q k -> (q m) k", for instance.
        short: Queries of a block where heads are narrow.

    Returns:
        Blocks that cover all queries.
    """
    spans, blocks, longest = _needed(matrices), [], matrices.shape[1]
    for part in _pieces(longest, matrices, spans, longest, short):
        keys = _range(spans[:, :, part])
        blocks.append(Block(0, part, keys, rearrange(matrices[:, part, keys], arrangement).contiguous()))
    return tuple(blocks)


def col_blocks(matrices: Float[Tensor, "matrices queries keys"], channels: int) -> tuple[Block, ...]:
    """Cuts the matrices along the second axis; rows of a block are (queries, matrices).

    Args:
        matrices: Attention along the axis.
        channels: Number of channels of the keys; of few, blocks are longer.

    Returns:
        Blocks that cover all queries.
    """
    return joint_blocks(matrices, "m q k -> (q m) k", max(_SHORT, min(_NUMBERS // channels, 2 * _SHORT)))


def query_strips(
    matrices: Float[Tensor, "matrices queries keys"], longest: int, *, whole: bool = False
) -> tuple[Strip, ...]:
    """Cuts the first axis by queries; a strip has the keys that they need.

    Args:
        matrices: Attention along the axis.
        longest: Largest number of queries of a strip, ≥ 1.
        whole: Whether strips have all keys.

    Returns:
        Strips that cover all queries, in each of which every matrix has a block for all of its queries.
    """
    spans, strips = _needed(matrices), []
    for part in _pieces(matrices.shape[1], matrices, spans, longest):
        keys = slice(0, matrices.shape[2]) if whole else _range(spans[:, :, part])
        blocks = []
        for number, matrix in enumerate(matrices):
            own = _range(spans[:, number, part])
            inside = slice(own.start - keys.start, own.stop - keys.start)
            blocks.append(Block(number, part, inside, matrix[part, own].contiguous()))
        strips.append(Strip(part, keys, tuple(blocks)))
    return tuple(strips)


def _range(spans: Int[Tensor, "2 *queries"]) -> slice:
    """Returns the keys that any of the queries needs; one key where none is needed."""
    low, high = spans[0], spans[1]
    used = low < high
    if not used.any():
        return slice(0, 1)
    return slice(low[used].min().item(), high[used].max().item())
