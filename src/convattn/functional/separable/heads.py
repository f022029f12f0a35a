"""Multiplication of pixels with one head's matrix W_h, and its gradients; with groups W_h is its block-diagonal."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor


def add_head(
    out: Float[Tensor, "pixels outputs"],
    mixed: Float[Tensor, "pixels channels"],
    weight: Float[Tensor, "outputs channels_per_group"],
    groups: int,
) -> None:
    """Adds one head's matrix times its pixels: out += W_h · mixed."""
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
    """Writes the gradient of `add_head` with respect to the mixed pixels into `out`."""
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
    """Adds the gradient of `add_head` with respect to the head's matrix to `into`."""
    if groups == 1:
        into.addmm_(gradient.mT, mixed)
    elif groups == gradient.shape[1] == mixed.shape[1]:
        into[:, 0] += (gradient * mixed).sum(0)
    else:
        into.unflatten(0, (groups, -1)).baddbmm_(_split(gradient, groups).mT, _split(mixed, groups))


def _split(x: Float[Tensor, "pixels channels"], groups: int) -> Float[Tensor, "groups pixels channels_per_group"]:
    return x.unflatten(1, (groups, -1)).transpose(0, 1)
