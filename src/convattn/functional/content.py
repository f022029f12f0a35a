"""Scores that depend on the input: the four-term relative score, and the gate between content and position."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

__all__ = ["content_scores", "gated_weights"]


def content_scores(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    position: Float[Tensor, "heads_or_one queries keys width"] | None = None,
    content_bias: Float[Tensor, "heads width"] | None = None,
) -> Float[Tensor, "images heads queries keys"]:
    """Computes the terms of the relative score that depend on the input.

    `s = ((q + u)·k + q·r_δ) / √width`: content–content, content bias and content–position. The fourth term, the
    position
    bias v·r_δ, is the encoding's own score and is added by the caller (theory.md §1; Transformer-XL, Dai et al.
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
    gate: Float[Tensor, " heads"],
) -> Float[Tensor, "images heads queries keys"]:
    """Mixes two attention distributions: A = (1 − σ(λ)) · content + σ(λ) · position.

    Args:
        content: Weights from content scores.
        position: Weights from displacement scores.
        gate: λ per head; large values leave position alone.

    Returns:
        Weights that sum to one over the keys (d'Ascoli et al. 2021, ConViT, eq. 6).
    """
    share = torch.sigmoid(gate.to(content.dtype))[:, None, None]
    return (1 - share) * content + share * position


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
