"""Any content-free weights: the N × N matrix is made once for all images, and multiplied in large products."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.product import product_attention
from convattn.functional.reference import position_weights
from convattn.grid import Axis

__all__ = ["dense_attention"]


def dense_attention(
    table: Float[Tensor, "heads *displacements"],
    axes: Sequence[Axis],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    dropout: float = 0.0,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes softmax attention with any scores of a displacement.

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.
        keys: Key images.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.
        dropout: Probability with which a weight is set to zero, once for all images; 0 at inference.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    weights = position_weights(table, axes)
    weights = (functional.dropout(weights, dropout) if dropout else weights).to(keys.dtype)
    y = product_attention([weights], keys.flatten(2), maps, groups)
    return y.view(*y.shape[:2], *(len(axis.queries) for axis in axes))
