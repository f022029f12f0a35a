"""Vision transformers of other libraries in the one form that all adapters return: attention, and grid of patches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ShapeError
from convattn.records import LeftAlone


@dataclass(frozen=True, kw_only=True)
class TokenAttention:
    """What every layer of multi-head attention over tokens has: y = W_out · concat_h softmax(s q_h k_hᵀ) v_h + b."""

    heads: int  # N_h
    query: nn.Linear  # W_q with its bias, D → N_h·D_h; heads stand one after the other
    key: nn.Linear  # W_k with its bias
    value: nn.Linear  # W_v with its bias
    dropout: float  # Probability with which an attention weight is dropped in training
    scale: float | None = None  # s; None is 1/√D_h
    query_norm: nn.Module = field(default_factory=nn.Identity)  # What is applied to each query before the product
    key_norm: nn.Module = field(default_factory=nn.Identity)  # What is applied to each key
    after: nn.Module = field(default_factory=nn.Identity)  # What follows W_out: the dropout of the output

    @property
    def head_width(self) -> int:
        """D_h."""
        return self.value.out_features // self.heads


@final
@dataclass(frozen=True, kw_only=True)
class NativeAttention(TokenAttention):
    """One layer of a vision transformer."""

    names: tuple[str, ...]  # Its dotted names in the network, the first one first
    output: nn.Linear  # W_out with its bias, N_h·D_h → D_out


@final
class PatchGrid:
    """Rows and columns of the patches of the last image batch.

    An attention layer receives a sequence of tokens, which does not tell 2 × 8 from 4 × 4 patches. So the grid is a
    forward pre-hook of the module that cuts images into patches, and reads the sizes from its input.

    Attributes:
        sizes: Rows and columns.
        measure: Returns rows and columns, given that module and the height and width of an image.
    """

    def __init__(
        self, sizes: tuple[int, int], measure: Callable[[nn.Module, tuple[int, int]], tuple[int, int]]
    ) -> None:
        """Starts with the sizes for the network's own images."""
        self.sizes, self.measure = sizes, measure

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the sizes from an image, as a forward pre-hook."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        sizes = self.measure(module, (int(height), int(width)))
        if sizes != self.sizes:
            self.sizes = sizes

    def require(self, tokens: int, prefix: int) -> tuple[int, int]:
        """Returns rows and columns; raises ShapeError if the tokens are not `prefix` tokens and as many patches."""
        rows, cols = self.sizes
        if tokens != prefix + rows * cols:
            raise ShapeError(
                f"tokens must be {prefix + rows * cols} ({prefix} prefix and {rows} x {cols} patches), but are {tokens}"
            )
        return rows, cols

    def __repr__(self) -> str:
        """Returns the sizes, for printing."""
        return "{} x {} patches".format(*self.sizes)


@dataclass(frozen=True)
class NativeTransformer:
    """A vision transformer whose tokens are prefix tokens, then patches row by row."""

    layers: tuple[NativeAttention, ...]  # Its layers of attention
    prefix: int  # Number of tokens before the patches
    grid: PatchGrid  # Rows and columns of the patches, updated by the module that cuts images into patches
    embedding: str  # Name of that module
    # Gives a module from tokens to tokens the call signature of the native layer
    wrap: Callable[[nn.Module], nn.Module]
    left: tuple[LeftAlone, ...] = ()  # Attention that is left alone, and why


def linear(
    weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None, *, like: nn.Linear
) -> nn.Linear:
    """Makes a linear map from copied numbers, with the dtype, device and `requires_grad` of the map `like`."""
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


def split_linear(whole: nn.Linear, parts: int) -> tuple[nn.Linear, ...]:
    """Copies the outputs of a linear map into as many maps of equal size."""
    biases = (None,) * parts if whole.bias is None else whole.bias.chunk(parts)
    return tuple(linear(*part, like=whole) for part in zip(whole.weight.chunk(parts), biases, strict=True))
