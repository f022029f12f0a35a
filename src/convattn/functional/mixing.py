"""Weighted means along one axis of an image, skipping the keys that no query of a block looks at."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Block", "key_blocks", "mix_axis", "mix_axis_backward"]


class Block(NamedTuple):
    """A range of queries along one axis, and the range of keys that gets all their attention but rounding.

    Attributes:
        queries: The queries' positions in the output.
        keys: The keys' positions.
    """

    queries: slice
    keys: slice


_ROWS = 32
"""Queries in a block: enough for a matrix product to run at speed, few enough for a narrow band."""

_WORTHWHILE = 0.7
"""Share of all products below which blocks pay for their calls."""


def key_blocks(weights: Float[Tensor, "heads queries keys"], negligible: float) -> list[list[Block]]:
    """Finds, per head, blocks of queries with the keys that matter to them.

    Args:
        weights: Attention along one axis; rows sum to one.
        negligible: Attention that may be left out on either side, per query; 0 leaves out exact zeros only.

    Returns:
        Per head, blocks that cover all queries; a single block of everything where bands would not pay.
    """
    heads, queries, keys = weights.shape
    whole = [Block(slice(0, queries), slice(0, keys))]
    if queries <= _ROWS and keys <= 2 * _ROWS:
        return [whole] * heads
    starts = range(0, queries, _ROWS)
    most = torch.stack([weights[:, start : start + _ROWS].amax(1) for start in starts], dim=1)
    first = (most.cumsum(-1) <= negligible).sum(-1)
    last = keys - (most.flip(-1).cumsum(-1) <= negligible).sum(-1)
    result = []
    for head_first, head_last in zip(first.tolist(), last.tolist(), strict=True):
        spans = [(low, max(high, low + 1)) for low, high in zip(head_first, head_last, strict=True)]
        used = sum(high - low for low, high in spans) / (keys * len(spans))
        blocks = [
            Block(slice(start, min(start + _ROWS, queries)), slice(low, high))
            for start, (low, high) in zip(starts, spans, strict=True)
        ]
        result.append(blocks if used < _WORTHWHILE else whole)
    return result


def mix_axis(
    weights: Float[Tensor, "queries keys"],
    x: Float[Tensor, "before keys after"],
    blocks: list[Block],
    out: Float[Tensor, "before queries after"] | None = None,
) -> Float[Tensor, "before queries after"]:
    """Takes weighted means along the middle axis.

    Args:
        weights: One row per query.
        x: Values; the axes before and after are carried along.
        blocks: Which keys matter to which queries.
        out: Where to add the result; a new tensor where None.

    Returns:
        `out`, or the new tensor.
    """
    before, _, after = x.shape
    if out is None and len(blocks) == 1:
        return torch.bmm(weights.expand(before, -1, -1), x)
    result = x.new_empty(before, weights.shape[0], after) if out is None else out
    for queries, keys in blocks:
        part = weights[queries, keys].expand(before, -1, -1)
        result[:, queries].baddbmm_(part, x[:, keys], beta=0 if out is None else 1)
    return result


def mix_axis_backward(
    weights: Float[Tensor, "queries keys"],
    x: Float[Tensor, "before keys after"],
    gradient: Float[Tensor, "before queries after"],
    blocks: list[Block],
    *,
    weights_gradient: Float[Tensor, "queries keys"] | None,
    out: Float[Tensor, "before keys after"] | None = None,
) -> Float[Tensor, "before keys after"]:
    """Carries a gradient back through `mix_axis`.

    Args:
        weights: As given to `mix_axis`.
        x: As given to `mix_axis`.
        gradient: Gradient with respect to its result.
        blocks: As given to `mix_axis`.
        weights_gradient: Where to add the gradient with respect to the weights; None leaves it out.
        out: Where to add the gradient with respect to `x`; a new tensor where None.

    Returns:
        The gradient with respect to `x`.
    """
    before, keys_count, after = x.shape
    whole = len(blocks) == 1
    if weights_gradient is not None:
        for queries, keys in blocks:
            products = torch.bmm(gradient[:, queries], x[:, keys].mT)
            weights_gradient[queries, keys] += products.sum(0)
    if out is None and whole:
        return torch.bmm(weights.mT.expand(before, -1, -1), gradient)
    result = x.new_zeros(before, keys_count, after) if out is None else out
    for queries, keys in blocks:
        result[:, keys].baddbmm_(weights[queries, keys].mT.expand(before, -1, -1), gradient[:, queries])
    return result
