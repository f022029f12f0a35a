"""The attention of a vision transformer of another library, in the one form that all adapters return."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.adapters.patch_grid import PatchGrid
from convattn.records import LeftAlone

__all__ = ["NativeAttention", "NativeTransformer", "linear"]


@dataclass(frozen=True)
class NativeAttention:
    """One layer of multi-head attention over tokens: y = W_out · concat_h softmax(q_h k_hᵀ/√D_h) v_h + b.

    Attributes:
        names: Its dotted names in the network, the first one first.
        heads: N_h.
        query: W_q with its bias, D → N_h·D_h; heads stand one after the other.
        key: W_k with its bias.
        value: W_v with its bias.
        output: W_out with its bias, N_h·D_h → D_out.
        query_norm: What is applied to each query before the product.
        key_norm: What is applied to each key.
        dropout: Probability with which an attention weight is dropped in training.
        after: What follows W_out: the dropout of the output.
        training: Whether the layer is in training mode.
    """

    names: tuple[str, ...]
    heads: int
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    query_norm: nn.Module
    key_norm: nn.Module
    dropout: float
    after: nn.Module
    training: bool

    @property
    def head_width(self) -> int:
        """D_h."""
        return self.output.in_features // self.heads


@dataclass(frozen=True)
class NativeTransformer:
    """A vision transformer whose tokens are prefix tokens, then patches row by row.

    Attributes:
        layers: Its layers of attention.
        prefix: Number of tokens before the patches.
        grid: Rows and columns of the patches, updated by the module that cuts images into patches.
        embedding: Name of that module.
        wrap: Gives a module from tokens to tokens the call signature of the native layer.
        left: Attention that is left alone, and why.
    """

    layers: tuple[NativeAttention, ...]
    prefix: int
    grid: PatchGrid
    embedding: str
    wrap: Callable[[nn.Module], nn.Module]
    left: tuple[LeftAlone, ...] = ()


def linear(
    weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None, *, like: nn.Linear
) -> nn.Linear:
    """Makes a linear map from copied numbers.

    Args:
        weight: Its matrix.
        bias: Its bias, or None.
        like: The map that the numbers come from: dtype, device and what learns are as there.

    Returns:
        The map.
    """
    outputs, inputs = weight.shape
    old = like.weight
    made = nn.Linear(inputs, outputs, bias=bias is not None, device="meta", dtype=old.dtype)
    made = made.to_empty(device=old.device)  # no random numbers are drawn
    with torch.no_grad():
        made.weight.copy_(weight).requires_grad_(old.requires_grad)
        if bias is not None:
            assert like.bias is not None
            made.bias.copy_(bias).requires_grad_(like.bias.requires_grad)
    return made
