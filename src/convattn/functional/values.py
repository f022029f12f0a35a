"""What each head does to the pixels it attends to: its matrix W_h, and the sum over heads."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

__all__ = ["add_head", "combine_heads", "head_backward", "head_weight_backward"]


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


def add_head(
    out: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
) -> None:
    """Adds one head's matrix times its pixels: out += W_h · mixed.

    Args:
        out: Where to add.
        mixed: Channels of each pixel.
        weight: W_h; with groups its block-diagonal.
        groups: Number of blocks.
    """
    if groups == 1:
        out.addmm_(mixed, weight.contiguous().mT)
    elif groups == out.shape[1] == mixed.shape[1]:
        out.addcmul_(mixed, weight[:, 0])
    else:
        _split(out, groups).baddbmm_(_split(mixed, groups), weight.unflatten(0, (groups, -1)).mT)


def head_backward(
    gradient: Float[Tensor, "pixels outputs"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
    *,
    out: Float[Tensor, "pixels channels"],
) -> None:
    """Carries a gradient back through `add_head` to the mixed pixels.

    Args:
        gradient: Gradient with respect to its result.
        weight: As given to `add_head`.
        groups: As given to `add_head`.
        out: Where to write the gradient with respect to `mixed`.
    """
    if groups == 1:
        torch.mm(gradient, weight, out=out)
    elif groups == gradient.shape[1] == out.shape[1]:
        torch.mul(gradient, weight[:, 0], out=out)
    else:
        back = torch.bmm(_split(gradient, groups), weight.unflatten(0, (groups, -1)))
        out.copy_(rearrange(back, "groups pixels channels -> pixels (groups channels)"))


def head_weight_backward(
    gradient: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    groups: int,
    *,
    into: Float[Tensor, "outputs channels_per_group"],
) -> None:
    """Carries a gradient back through `add_head` to the head's matrix.

    Args:
        gradient: Gradient with respect to its result.
        mixed: As given to `add_head`.
        groups: As given to `add_head`.
        into: Where to add the gradient with respect to the weight.
    """
    if groups == 1:
        into.addmm_(gradient.mT, mixed)
    elif groups == gradient.shape[1] == mixed.shape[1]:
        into[:, 0] += (gradient * mixed).sum(0)
    else:
        into.unflatten(0, (groups, -1)).baddbmm_(_split(gradient, groups).mT, _split(mixed, groups))


def _split(x: Float[Tensor, "pixels channels"], groups: int) -> Float[Tensor, "groups pixels channels_per_group"]:
    return x.unflatten(1, (groups, -1)).transpose(0, 1)
