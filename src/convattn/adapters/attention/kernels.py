"""What an attention module hands to its kernel, the weights that this makes, and the proof that they are the module's.

Each kernel holds the tensors of one call, and its first axis has images outermost.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from convattn.functional.rounding import LEAST_ROUNDINGS, rounded_differently, rounding_budget

_SCORES_AT_ONCE = 2**19
"""Scores that are computed at once, at least those of one entry of the first axis."""


class Proof(NamedTuple):
    """Weights × values against what the module computed."""

    error: float  # Largest difference; where the kernel made weights of its own, that of either side to float64
    budget: float  # What rounding explains


class Kernel(ABC):
    """One product of weights and values, seen while it was computed."""

    mask: Tensor | None = None  # What is added to the scores, or which pairs count
    causal: bool | None = False  # Whether a query sees itself and earlier keys only
    rounding: float  # How far a weight may be off, as a share of itself

    made: tuple[Tensor, Proof] | None = None  # The weights and their proof, once they are computed

    def settle(self, images: int) -> "Kernel":
        """Computes weights and proof at once, before anything is changed in place; images are outermost."""
        weights = self.weights()
        self.made = weights, self.proof(weights, max(1, self.shape()[0] // max(1, images)))
        return self

    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Returns the sizes of the weights: leading axes, queries, keys."""

    @abstractmethod
    def weights(self) -> Float[Tensor, "*lead queries keys"]:
        """Computes the weights in at least float32."""

    @abstractmethod
    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Proves the weights on the first entries of the first axis."""


class FusedKernel(Kernel):
    """A call of `scaled_dot_product_attention`; the weights are computed from its queries and keys."""

    def __init__(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
        """Takes the result and the arguments."""
        if options.pop("enable_gqa", False) and q.shape[-3] != k.shape[-3]:
            k, v = (part.repeat_interleave(q.shape[-3] // part.shape[-3], -3) for part in (k, v))
        self._out, self._q, self._k, self._v = out, q, k, v
        self.rounding = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps
        self.mask, self.causal, self._scale = options.get("attn_mask"), options.get("is_causal"), options.get("scale")

    def shape(self) -> tuple[int, ...]:
        """Returns the sizes of the weights."""
        return (*torch.broadcast_shapes(self._q.shape[:-2], self._k.shape[:-2]), self._q.shape[-2], self._k.shape[-2])

    def weights(self) -> Float[Tensor, "*lead queries keys"]:
        """Computes softmax(q kᵀ · scale + mask)."""
        dtype = torch.promote_types(self._q.dtype, torch.float32)
        scale = self._q.shape[-1] ** -0.5 if self._scale is None else self._scale
        return weights_of(self._q.to(dtype) * scale, self._k.to(dtype), self.mask, causal=bool(self.causal))

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Holds the product and the kernel's result, each, against torch's plain formula in float64."""
        # Each has roundings of its own, so their difference may be larger than what rounding explains of one.
        y = self._out[:first]
        given = [part[:first] for part in (self._q, self._k, self._v)]
        moved = (
            [rounded_differently(part, 3 * seed + place) for place, part in enumerate(given)]
            for seed in range(LEAST_ROUNDINGS - 1)
        )
        lows = [self._by_torch(parts, y.dtype) for parts in (given, *moved)]
        made, exact = weights[:first].double() @ given[2].double(), self._by_torch(given, torch.float64)
        error = (torch.stack([made, y.double()]) - exact).abs().max().item()
        return Proof(error, rounding_budget(exact, lows))

    def _by_torch(self, given: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Computes the result again by torch's plain formula."""
        q, k, v = (part.to(dtype) for part in given)
        mask = self.mask
        if mask is not None:
            mask = mask[: len(q)] if mask.ndim == q.ndim and mask.shape[0] > 1 else mask
            mask = mask if mask.dtype == torch.bool else mask.to(dtype)
        with sdpa_kernel(SDPBackend.MATH):
            made = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=bool(self.causal), scale=self._scale
            )
        return made.nan_to_num(0.0)


def weights_of(
    q: Float[Tensor, "*images queries width"],
    k: Float[Tensor, "*others keys width"],
    mask: Tensor | None,
    *,
    causal: bool,
) -> Float[Tensor, "*lead queries keys"]:
    """Computes softmax(q kᵀ + mask), a few entries of the first axis at a time: their scores stay in a cache.

    A query that may see nothing has weights 0.
    """
    if q.ndim == k.ndim == 2:
        return weights_of(q[None], k[None], mask, causal=causal)[0]
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    made = q.new_empty(*lead, q.shape[-2], k.shape[-2])
    if causal:  # torch takes no other mask beside it
        mask = torch.ones(made.shape[-2:], dtype=torch.bool, device=q.device).tril()
    q, k = (part.expand(*lead, *part.shape[-2:]) for part in (q, k))
    mask = None if mask is None else mask.expand(made.shape)
    size = max(1, _SCORES_AT_ONCE // max(made[:1].numel(), 1))
    for first in range(0, len(made), size):
        part = slice(first, first + size)
        scores = q[part] @ k[part].mT
        if mask is not None and mask.dtype == torch.bool:
            scores.masked_fill_(~mask[part], -torch.inf)
        elif mask is not None:
            scores += mask[part]
        torch.softmax(scores, -1, out=made[part])
    return made if mask is None else made.nan_to_num_(0.0)


class PlainKernel(Kernel):
    """A product of a softmax, or of what was made of it, with values; the weights are its left factor."""

    def __init__(self, out: Tensor, weights: Tensor, values: Tensor) -> None:
        """Takes the result and the factors."""
        self._out, self._weights, self._values = out, weights, values
        self.rounding = torch.finfo(weights.dtype).eps

    def shape(self) -> tuple[int, ...]:
        """Returns the sizes of the weights."""
        return tuple(self._weights.shape)

    def weights(self) -> Float[Tensor, "*lead queries keys"]:
        """Returns the left factor."""
        return self._weights.to(torch.promote_types(self._weights.dtype, torch.float32))

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Takes the product in float64 against the module's; one summed in another order gives the budget."""
        y, values = self._out[:first], self._values[:first]
        hi = weights[:first].double() @ values.double()
        parts = (values, *(rounded_differently(values, seed) for seed in range(LEAST_ROUNDINGS - 1)))
        lows = [(part.mT.contiguous() @ self._weights[:first].mT.contiguous()).mT for part in parts]
        return Proof((hi - y.double()).abs().max().item(), rounding_budget(hi, lows))
