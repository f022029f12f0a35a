"""torch's own attention module, `nn.MultiheadAttention`, seen as one call from its tokens to its output."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.adapters.attention.kernels import Kernel, Proof, weights_of
from convattn.errors import UnsupportedModelError
from convattn.functional.rounding import LEAST_ROUNDINGS, rounded_differently, rounding_budget

_SIGNATURE = inspect.signature(functional.multi_head_attention_forward)
_LATER = ("out_proj_weight", "out_proj_bias")


class TorchKernel(Kernel):
    """A call of `multi_head_attention_forward`; queries, keys and values are projected again from its tokens."""

    def __init__(self, out: Tensor, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Takes the output and the arguments."""
        bound = _SIGNATURE.bind(*args, **named)
        bound.apply_defaults()
        self._given, self._out = bound.arguments, out
        self.rounding = torch.finfo(torch.promote_types(out.dtype, torch.float32)).eps
        self.mask = self._mask()

    def shape(self) -> tuple[int, ...]:
        """Returns the sizes of the weights: images, heads, queries, keys."""
        query, key = self._given["query"], self._given["key"]
        return (query.shape[1], self._given["num_heads"], query.shape[0], key.shape[0])

    def weights(self) -> Float[Tensor, "*lead queries keys"]:
        """Computes the weights in at least float32."""
        given = self._given
        if given["bias_k"] is not None or given["add_zero_attn"] or given["static_k"] is not None:
            raise UnsupportedModelError("it adds keys that are no tokens")
        dtype = torch.promote_types(self._out.dtype, torch.float32)
        q, k = self._projected(0, dtype), self._projected(1, dtype)
        return weights_of(q * q.shape[-1] ** -0.5, k, self.mask, causal=False)

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Proves the weights on the first images, after the output's projection."""
        mean = weights[:first].double() @ self._projected(2, torch.float64)[:first]
        weight, bias = (None if self._given[name] is None else self._given[name].double() for name in _LATER)
        assert weight is not None
        made = functional.linear(mean.transpose(1, 2).flatten(2), weight, bias)
        y = self._out[:, :first].transpose(0, 1)
        hi = self._by_torch(first, torch.float64).transpose(0, 1)
        lows = [self._by_torch(first, y.dtype, seed).transpose(0, 1) for seed in (None, *range(LEAST_ROUNDINGS - 1))]
        return Proof((made - y.double()).abs().max().item(), rounding_budget(hi, lows))

    def _projected(self, number: int, dtype: torch.dtype) -> Float[Tensor, "images heads tokens width"]:
        """Projects queries (0), keys (1) or values (2)."""
        given = self._given
        if given["use_separate_proj_weight"]:
            weight = given[("q_proj_weight", "k_proj_weight", "v_proj_weight")[number]]
        else:
            weight = given["in_proj_weight"].chunk(3)[number]
        bias = None if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)[number].to(dtype)
        tokens = functional.linear(given[("query", "key", "value")[number]].to(dtype), weight.to(dtype), bias)
        return tokens.unflatten(-1, (given["num_heads"], -1)).permute(1, 2, 0, 3)

    def _mask(self) -> Tensor | None:
        """Sums the masks as what is added to the scores."""
        found: Tensor | None = None
        images, heads, queries, keys = self.shape()
        for mask in (self._given["attn_mask"], self._given["key_padding_mask"]):
            if mask is None:
                continue
            added = mask
            if mask.dtype == torch.bool:
                added = torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, -torch.inf)
            if mask is self._given["key_padding_mask"]:
                added = added.view(images, 1, 1, keys)
            elif mask.ndim == 3:
                added = added.view(images, heads, queries, keys)
            found = added if found is None else found + added
        return found

    def _by_torch(self, first: int, dtype: torch.dtype, seed: int | None = None) -> Tensor:
        """Computes the output again by torch's plain formula, from tokens as they are or rounded differently."""

        def changed(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if name in ("query", "key", "value"):
                value = value[:, :first] if seed is None else rounded_differently(value[:, :first], seed)
            elif name == "key_padding_mask":
                value = value[:first]
            elif name == "attn_mask" and value.ndim == 3:
                value = value[: first * self._given["num_heads"]]
            return value.to(dtype) if value.is_floating_point() else value

        given = {name: changed(name, value) for name, value in self._given.items()}
        given.update(need_weights=True, is_causal=False)
        return functional.multi_head_attention_forward(**given)[0]
