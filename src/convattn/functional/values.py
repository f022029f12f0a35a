"""What each head does to the pixels it attends to: its matrix W_h, and the sum over heads."""

from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

__all__ = ["combine_heads"]


def combine_heads(
    mixed: Float[Tensor, "batch heads channels *queries"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Applies each head's matrix and sums over heads: y[q] = Σ_h W_h · mixed_h[q].

    Args:
        mixed: Per head, the attention-weighted mean of the input channels at each query.
        maps: W_h; with groups its block-diagonal, as in `torch.nn.Conv2d`.
        groups: Number of blocks, dividing channels and outputs.

    Returns:
        The output channels at each query.
    """
    blocks = rearrange(maps, "heads (groups outputs) channels -> heads groups outputs channels", groups=groups)
    split = rearrange(mixed, "batch heads (groups channels) ... -> batch heads groups channels (...)", groups=groups)
    combined = einsum(
        split,
        blocks,
        "batch heads groups channels queries, heads groups outputs channels -> batch groups outputs queries",
    )
    return combined.reshape(mixed.shape[0], maps.shape[1], *mixed.shape[3:])
