"""Scores that depend on the input: the four-term relative score, and the gate between content and position."""

from typing import Literal

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


def content_scores(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    position: Float[Tensor, "heads_or_one queries keys width"] | None = None,
    content_bias: Float[Tensor, "heads width"] | None = None,
) -> Float[Tensor, "images heads queries keys"]:
    """Computes the terms of the relative score that depend on the input.

    `s = ((q + u)·k + q·r_δ) / √width`: content–content, content bias and content–position. The fourth term, the
    position bias v·r_δ, is the encoding's own score, which the caller adds (theory.md §6; Transformer-XL, Dai et al.
    2019, §3.3).

    Args:
        query: q = W_q x at the queries.
        key: k = W_k x at the keys.
        position: r_δ (projected to the heads' width, or shared by all heads); None leaves content–position out.
        content_bias: u per head; None leaves the content bias out.

    Returns:
        Scores in at least float32.
    """
    query, key = _at_least_float32(query), _at_least_float32(key)
    biased = query if content_bias is None else query + content_bias.to(query.dtype)[:, None]
    scores = einsum(biased, key, "images heads queries width, images heads keys width -> images heads queries keys")
    if position is not None:
        position = position.to(query.dtype).expand(query.shape[1], -1, -1, -1)
        scores = scores + einsum(
            query, position, "images heads queries width, heads queries keys width -> images heads queries keys"
        )
    return scores * query.shape[-1] ** -0.5


def gated_weights(
    content: Float[Tensor, "images heads queries keys"],
    position: Float[Tensor, "heads queries keys"],
    share: Float[Tensor, " heads"],
) -> Float[Tensor, "images heads queries keys"]:
    """Mixes two attention distributions: A = (1 − s) · content + s · position.

    Args:
        content: Weights from content scores.
        position: Weights from displacement scores.
        share: s per head, the share of position; 1 leaves position alone.

    Returns:
        Weights that sum to one over the keys (d'Ascoli et al. 2021, ConViT, eq. 6); with s above 1 some are negative.
    """
    share = share.to(content.dtype)[:, None, None]
    return (1 - share) * content + share * position


def position_share(gate: Float[Tensor, " heads"], kind: Literal["sigmoid", "tanh"]) -> Float[Tensor, " heads"]:
    """Computes the share of position from a gate: s = σ(λ), or s = 1 − tanh(g).

    σ reaches 1 only by rounding, where it has no gradient. 1 − tanh(g) is exactly 1 at g = 0, with the slope −1: such a
    gate can start closed on content, and open.

    Args:
        gate: λ or g per head.
        kind: Which of the two.

    Returns:
        The share, in at least float32: in (0, 1), or in (0, 2) of a tanh.

    Example:
        >>> position_share(torch.tensor([0.0, 20.0]), "tanh").tolist()
        [1.0, 0.0]
    """
    gate = _at_least_float32(gate)
    return torch.sigmoid(gate) if kind == "sigmoid" else 1 - torch.tanh(gate)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
