"""Products of weights and values, and the proof that the weights are those that a module used.

Along the first axis of every tensor of a product images are outermost.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.budget import budget, roundings

EXCLUDED = -9e3
"""Scores and masks up to this exclude a pair: models add −∞, the lowest number, −1e9 or −1e4."""

_SCORES_AT_ONCE = 2**19
"""Scores that are computed at once, at least those of one query."""

_SCORES_PROVED = 2**20
"""Scores of an image of which a proof is; of more it takes queries that are evenly spaced."""


class Proof(NamedTuple):
    """Compares weights × values, and what the module computed, with float64; both are 0 if that was not asked for."""

    error: float = 0.0  # The larger of both largest differences
    budget: float = 0.0  # What rounding explains


def prove(
    exact: Tensor, lows: list[Tensor], *results: Tensor, floor: Tensor | float = 0.0
) -> Proof:
    """Compares results with what is `exact`; `lows` are honest computations with other roundings.

    An element may be off by its `floor` in any case.
    """
    errors = (torch.stack([result.double() for result in results]) - exact).abs()
    allowed = (torch.zeros_like(errors) + floor).clamp_min(budget(exact, lows))
    worst = (errors - allowed).argmax()
    return Proof(errors.flatten()[worst].item(), allowed.flatten()[worst].item())


@dataclass(frozen=True, eq=False)
class Product:
    """One product of weights and values."""

    out: Tensor  # What the module computed
    by_query: tuple[Tensor, ...]  # What it was computed from, a row for each query
    by_key: tuple[Tensor, ...]  # And for each key; the last are the values
    compute: Callable[..., Tensor]  # Computes the product from all of these, by another road
    weights: Callable[[], Tensor]  # Returns the weights, in at least float32
    mask: Tensor | None  # Which pairs count; None if all
    rounding: float  # How far a weight may be off, as a share of itself
    factor: float | None = None  # s of the scores s q kᵀ; None if it was computed from weights
    by_hand: bool = False  # Whether the weights are made of exponentials, and not of a softmax
    # Gives what stands in the place of `out` the axes in which the module computed it
    restore: Callable[[Tensor], Tensor] = lambda out: out

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the weights: leading axes, queries, keys."""
        return (*self.by_query[0].shape[:-1], self.by_key[-1].shape[-2])

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Proves weights on the `first` entries of the first axis, at evenly spaced queries if there are many.

        Weights × values and the module's result have roundings of their own, so each is compared with float64.
        """
        images = slice(first if weights.ndim > 2 else None)
        step = 1 + weights[images].numel() // _SCORES_PROVED
        rows = (..., slice(None, None, step), slice(None))
        by_query = (self.out, weights, *self.by_query)
        out, weights, q, *mask = (part[images][rows] for part in by_query)
        by_key = [part[images] for part in self.by_key]

        def low(q: Tensor, *by_key: Tensor) -> Tensor:
            return self.compute(*(part.to(out.dtype) for part in (q, *mask, *by_key)))

        doubles = [part.double() for part in (q, *mask, *by_key)]
        exact = self.compute(*doubles)
        product = weights.double() @ doubles[-1]
        lows = roundings(low, q, *by_key)  # the mask as it is: its lowest number would round to −∞
        # A kernel may be off by eps Σ_k A_qk (σ_qk + √keys) |v_k|: other kernels add over keys in other orders. A score
        # is a sum of products t_i = s q_i k_i, of which each and each partial sum is rounded: its error is about
        # eps ‖t‖. σ is four times that.
        scores: Tensor | float = 0.0
        if self.factor is not None:
            scores = 4 * ((self.factor * doubles[0]).square() @ doubles[-2].square().mT).sqrt()
        off = (scores + weights.shape[-1] ** 0.5) * weights.double().abs()
        floor = torch.finfo(weights.dtype).eps * (off @ doubles[-1].abs())
        return prove(exact, lows, product, out, floor=floor)


def fused_product(  # noqa: PLR0913 - the signature of torch
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Product:
    """Describes what came out of `scaled_dot_product_attention`; weights are computed from queries and keys."""
    if enable_gqa:
        share = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(share, -3)
        value = value.repeat_interleave(share, -3)
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (part.expand(*lead, *part.shape[-2:]) for part in (query, key, value))
    if is_causal:  # torch takes no other mask beside it
        attn_mask = q.new_full((q.shape[-2], k.shape[-2]), -torch.inf).triu(1)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf)
    wide = torch.promote_types(q.dtype, torch.float32)
    factor = q.shape[-1] ** -0.5 if scale is None else scale

    mask = () if attn_mask is None else (attn_mask.expand(*q.shape[:-1], k.shape[-2]),)

    def compute(q: Tensor, *others: Tensor) -> Tensor:
        *mask, k, v = others
        return weights_of(q * factor, k, *mask) @ v

    def weights() -> Tensor:
        return weights_of(q.to(wide) * factor, k.to(wide), *mask)

    return Product(
        out=out,
        by_query=(q, *mask),
        by_key=(k, v),
        compute=compute,
        weights=weights,
        mask=None if attn_mask is None else attn_mask > EXCLUDED,
        rounding=torch.finfo(wide).eps,
        factor=factor,
    )


def weights_of(
    q: Float[Tensor, "*lead queries width"],
    k: Float[Tensor, "*lead keys width"],
    mask: Tensor | None = None,
) -> Float[Tensor, "*lead queries keys"]:
    """Computes softmax(q kᵀ + mask) in pieces, so that scores stay in the cache.

    A query whose keys are all masked has weights 0.
    """
    weights = q.new_empty(*q.shape[:-1], k.shape[-2])
    for part in _pieces(weights.shape):
        scores = q[part] @ k[part[: k.ndim - 2]].mT
        if mask is not None:
            scores += mask[part]
        torch.softmax(scores, -1, out=weights[part])
    return weights if mask is None else weights.nan_to_num_()


def _pieces(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yields places of a few scores: entries of the first axis but keys, or parts of one that has too many."""
    size = _SCORES_AT_ONCE // max(prod(shape[1:]), 1)
    step = size or 1
    for first in range(0, shape[0], step):
        for part in [()] if size or len(shape) == 2 else _pieces(shape[1:]):
            yield slice(first, first + step), *part
