"""Values before weights: each head mixes channels of its own, few of them, instead of all channels of the image."""

from collections.abc import Sequence

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.functional.reference import combine_heads

AXES = ("depth", "rows", "cols")


def values_first_attention(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    value: Float[Tensor, "heads inner channels_per_group"],
    output: Float[Tensor, "heads outputs inner_per_group"] | None,
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Attends with weights A_h = A_h,1 ⊗ … ⊗ A_h,n: y[q] = Σ_h W_out,h Σ_k A_h[q, k] W_val,h x[k].

    It is faster if heads have few channels, or if there are fewer output than input channels.

    Args:
        weights: For each axis, (heads, queries, keys).
        keys: Key images with as many axes.
        value: W_val; with groups its block-diagonal.
        output: W_out likewise; None sums the heads as they are.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    names = AXES[-len(weights) :]
    before = " ".join(names)
    mixed = einsum(
        rearrange(keys, "batch (groups channels) ... -> batch groups channels (...)", groups=groups),
        rearrange(value, "heads (groups inner) channels -> heads groups inner channels", groups=groups),
        "batch groups channels keys, heads groups inner channels -> heads batch groups inner keys",
    )
    mixed = rearrange(mixed, "heads batch groups inner keys -> heads (batch groups inner) keys")
    mixed = mixed.unflatten(2, keys.shape[2:])
    for name, weight in zip(names, weights, strict=True):
        after = before.replace(name, "queries")
        pattern = f"heads queries {name}, heads channels {before} -> heads channels {after}"
        mixed, before = einsum(weight, mixed, pattern), after.replace("queries", f"queries_{name}")
    mixed = mixed.unflatten(1, (len(keys), value.shape[1]))
    if output is None:
        return mixed.sum(0, dtype=torch.promote_types(mixed.dtype, torch.float32)).to(mixed.dtype)
    return combine_heads(rearrange(mixed, "heads batch ... -> batch heads ..."), output, groups)
