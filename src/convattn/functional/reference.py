"""Softmax attention over explicit scores: the definition that every other path is held against.

Written to be read, with all N × N weights in memory. Notation and signs follow `docs/theory.md`.
"""

from collections.abc import Sequence

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.values import combine_heads
from convattn.grid import Axis

__all__ = ["attend", "attention_weights", "displacement_scores", "position_weights"]


def displacement_scores(
    table: Float[Tensor, "heads *displacements"], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries keys"]:
    """Looks the score of every query and key up by their displacement: s_h(q, k) = table_h[k − q].

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.

    Returns:
        Scores; queries and keys are flattened in row-major order.
    """
    dims = len(axes)
    index = []
    for number, axis in enumerate(axes):
        shape = [1] * (2 * dims)
        shape[number], shape[dims + number] = len(axis.queries), axis.keys
        index.append(axis.index(table.device).view(shape))
    return table[(slice(None), *index)].flatten(1, dims).flatten(2)


def attention_weights(scores: Float[Tensor, "*batch queries keys"]) -> Float[Tensor, "*batch queries keys"]:
    """Normalises scores over the keys: A[q, k] = exp s(q, k) / Σ_k' exp s(q, k').

    Args:
        scores: Scores in any float dtype; those of fewer than 32 bits are normalised in float32.

    Returns:
        Weights that sum to one over the keys, in at least float32.

    Example:
        >>> attention_weights(torch.tensor([[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def position_weights(
    table: Float[Tensor, "heads *displacements"], axes: Sequence[Axis]
) -> Float[Tensor, "heads queries keys"]:
    """Takes the softmax of position scores, with zero for every weight below the root of the smallest normal number.

    Products of smaller weights are subnormal, and processors multiply subnormal numbers far more slowly.
    In float32 the bound is 1e-19, twelve digits below what rounding leaves of the output.

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.

    Returns:
        Weights that sum to one over the keys, in at least float32.

    Example:
        >>> position_weights(torch.tensor([[0.0, -60.0]]), [Axis(range(1), 2)]).tolist()
        [[[1.0, 0.0]]]
    """
    weights = attention_weights(displacement_scores(table, axes))
    return torch.where(weights < torch.finfo(weights.dtype).tiny ** 0.5, 0, weights)


def attend(
    weights: Float[Tensor, "*batch heads queries keys"],
    keys: Float[Tensor, "images channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    dropout: float = 0.0,
) -> Float[Tensor, "images outputs queries"]:
    """Takes weighted means of the keys and applies the heads' matrices: y[q] = Σ_h W_h Σ_k A_h[q, k] x[k].

    Args:
        weights: A_h, the same for all images, or one per image.
        keys: Key images.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.
        dropout: Probability with which a weight is set to zero, the others growing in proportion; 0 at inference.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    pattern = "heads queries keys" if weights.ndim == 3 else "images heads queries keys"
    weights = (functional.dropout(weights, dropout) if dropout else weights).to(keys.dtype)
    pixels = rearrange(keys, "images channels ... -> images channels (...)")
    mixed = einsum(weights, pixels, f"{pattern}, images channels keys -> images heads channels queries")
    return combine_heads(mixed, maps, groups)
