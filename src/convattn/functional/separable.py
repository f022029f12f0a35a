"""Axis-additive scores: the softmax over a product grid factors into one softmax per axis.

With s_h(δ) = Σ_a s_h,a(δ_a), exp s_h is a product over axes and so is its sum over the keys, hence
A_h = A_h,rows ⊗ A_h,cols exactly: O(N · (H + W)) instead of O(N²) (`docs/theory.md` §4).
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from convattn.functional.product import product_attention
from convattn.functional.reference import position_weights
from convattn.grid import Axis

__all__ = ["separable_attention"]


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
    weights = [position_weights(table, (axis,)).to(keys.dtype) for table, axis in zip(tables, axes, strict=True)]
    return product_attention(weights, keys, maps, groups)
