"""Layers from tokens to tokens with the call signatures of BERT's and torch's attention."""

from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from convattn.adapters.transformers import require_no_weights
from convattn.errors import ArgumentError, must_be


@final
class SequenceAttention(nn.Module):
    """A layer with the call signature of transformers' attention over sequences, which takes masks of padding."""

    def __init__(self, tokens: nn.Module, config: Any) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens, self.config = tokens, config

    def forward(
        self, hidden_states: Float[Tensor, "batch tokens width"], attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Float[Tensor, "batch tokens outputs"], None]:
        """Attends to the tokens that the mask leaves, and returns None in place of attention weights.

        A mask that differs between queries, a cache, or a request for attention weights raises ArgumentError.
        """
        if options.get("past_key_values") is not None:
            raise ArgumentError("past_key_values must be None, but a cache is given: kernels see both sides of a token")
        require_no_weights(options, self.config)
        return self.tokens(hidden_states, None if attention_mask is None else _present(attention_mask)), None


@final
class TorchAttention(nn.Module):
    """A layer with the call signature of `nn.MultiheadAttention`, for attention of tokens to themselves."""

    def __init__(self, tokens: nn.Module) -> None:
        """Wraps the layer."""
        super().__init__()
        self.tokens = tokens

    def forward(
        self,
        query: Float[Tensor, "batch tokens width"],
        key: Float[Tensor, "batch tokens width"],
        value: Float[Tensor, "batch tokens width"],
        need_weights: bool = True,
        **options: Any,
    ) -> tuple[Float[Tensor, "batch tokens outputs"], None]:
        """Attends, and returns None in place of attention weights.

        Keys or values that are not the queries' tokens, a mask, or a request for weights raise ArgumentError.
        """
        if not (key is query and value is query):
            raise ArgumentError(
                "query, key and value must be one tensor: heads that average by position have no others"
            )
        if need_weights:
            raise ArgumentError(must_be("need_weights", "False", True, because="weights are never computed"))
        for name, option in options.items():
            if name not in ("average_attn_weights", "is_causal") and option is not None:
                raise ArgumentError(f"{name} must be None, but is a {type(option).__name__}: no masks are taken here")
        if options.get("is_causal"):
            raise ArgumentError(must_be("is_causal", "False", True, because="kernels see both sides of a token"))
        return self.tokens(query), None


def _present(mask: Tensor) -> Bool[Tensor, "batch tokens"]:
    """Reads which tokens may be attended to from a mask that is the same for all queries."""
    if mask.ndim != 4:
        raise ArgumentError(must_be("attention_mask", "of the shape (batch, 1, queries, keys)", tuple(mask.shape)))
    allowed = mask if mask.dtype == torch.bool else mask == 0
    rows = allowed[:, 0]
    if not torch.compiler.is_compiling() and not bool((rows == rows[:, :1]).all()):
        raise ArgumentError("attention_mask must be the same for all queries: a kernel sees both sides of a token")
    return rows[:, 0]
