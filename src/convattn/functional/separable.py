"""Axis-additive scores: the softmax over a product grid factors into one softmax per axis.

With s_h(δ) = Σ_a s_h,a(δ_a), exp s_h is a product over axes and so is its sum over the keys, hence
A_h = A_h,rows ⊗ A_h,cols exactly: O(N · (H + W)) instead of O(N²) (theory.md §4).
"""

from collections.abc import Sequence

from einops import einsum
from jaxtyping import Float
from torch import Tensor

from convattn.functional.reference import attention_weights, displacement_scores
from convattn.functional.values import combine_heads
from convattn.grid import Axis

__all__ = ["separable_attention"]

_AXES = "depth rows cols"


def separable_attention(
    tables: Sequence[Float[Tensor, "heads _"]],
    axes: Sequence[Axis],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes softmax attention with scores that are a sum over axes.

    Args:
        tables: For each axis, the scores of all its displacements from the lowest to the highest.
        axes: Queries and keys along each axis; one to three.
        keys: Key images.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    names = _AXES.split()[-len(axes) :]
    mixed, before = keys, "batch channels " + " ".join(names)
    for name, table, axis in zip(names, tables, axes, strict=True):
        weights = attention_weights(displacement_scores(table, (axis,))).to(keys.dtype)
        after = "batch heads channels " + before.split("channels ")[1].replace(name, "queries")
        mixed = einsum(weights, mixed, f"heads queries {name}, {before} -> {after}")
        before = after.replace("queries", f"queries_{name}")
    return combine_heads(mixed, maps, groups)
