"""Products of weights and values, seen while a module computes them, and the proof that the weights are the module's.

Along the first axis of every tensor of a product images are outermost.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from convattn.budget import rounding_budget, roundings

EXCLUDED = -9e3
"""Scores and masks up to this exclude a pair: models add −∞, the lowest number, −1e9 or −1e4."""

_SCORES_AT_ONCE = 2**19
"""Scores that are computed at once, at least those of one entry of the first axis."""


class Proof(NamedTuple):
    """Compares weights × values, and what the module computed, with the same in float64."""

    error: float  # The larger of both largest differences
    budget: float  # What rounding explains


def prove(
    exact: Tensor, lows: list[Tensor], *results: Tensor, floor: Tensor | None = None
) -> Proof:
    """Compares results with what is `exact`; `lows` are honest computations with other roundings.

    An element may be off by its `floor` in any case.
    """
    errors = (torch.stack([result.double() for result in results]) - exact).abs()
    budget = rounding_budget(exact, lows)
    if floor is None:
        return Proof(errors.max().item(), budget)
    allowed = floor.clamp_min(budget).expand_as(errors)
    worst = (errors - allowed).argmax()
    return Proof(errors.flatten()[worst].item(), allowed.flatten()[worst].item())


def _score_roundings(
    weights: Float[Tensor, "*lead queries keys"], q: Tensor, k: Tensor, v: Tensor, factor: float
) -> Tensor:
    """Returns what rounding in a kernel may do to each output: Σ_k A_qk (σ_qk + eps √keys) |v_k|.

    A score is a sum of products t_i = s q_i k_i, of which each and each partial sum is rounded: its error is about
    eps ‖t‖. σ is four times that, because kernels add in other orders. The rest is that of the sum over keys.
    """
    squares = (factor * q).square() @ k.square().mT
    relative = 4 * squares.sqrt() + weights.shape[-1] ** 0.5
    return torch.finfo(weights.dtype).eps * (weights * relative) @ v.abs()


@dataclass(frozen=True, eq=False)
class Product:
    """One product of weights and values."""

    out: Tensor  # What the module computed
    inputs: tuple[Tensor, ...]  # What it was computed from; the last are the values
    compute: Callable[..., Tensor]  # Computes the product from inputs, by another road
    weights: Callable[[], Tensor]  # Returns the weights, in at least float32
    shape: tuple[int, ...]  # Sizes of the weights: leading axes, queries, keys
    mask: Tensor | None  # What is added to the scores, or which pairs count
    causal: bool  # Whether a query sees itself and earlier keys only
    rounding: float  # How far a weight may be off, as a share of itself
    factor: float | None = None  # s of the scores s q kᵀ; None if the weights are inputs

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Proves weights on the `first` entries of the first axis.

        Weights × values and the module's result have roundings of their own, so each is compared with float64.
        """
        out = self.out[:first]
        inputs = [part[:first] for part in self.inputs]

        def low(*parts: Tensor) -> Tensor:
            return self.compute(*(part.to(out.dtype) for part in parts))

        exact = self.compute(*(part.double() for part in inputs))
        product = weights[:first].double() @ inputs[-1].double()
        lows = roundings(low, *inputs)
        floor = None
        if self.factor is not None:
            q, k, v = (part.double() for part in inputs)
            floor = _score_roundings(weights[:first], q, k, v, self.factor)
        return prove(exact, lows, product, out, floor=floor)


def fused_product(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Product:
    """Describes a call of `scaled_dot_product_attention`; its weights are computed from queries and keys."""
    if enable_gqa:
        share = q.shape[-3] // k.shape[-3]
        k = k.repeat_interleave(share, -3)
        v = v.repeat_interleave(share, -3)
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q = _expand(q, lead)
    k = _expand(k, lead)
    v = _expand(v, lead)
    wide = torch.promote_types(q.dtype, torch.float32)
    factor = q.shape[-1] ** -0.5 if scale is None else scale

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = attn_mask
        if mask is not None and mask.ndim == q.ndim and len(mask) > 1:
            mask = mask[: len(q)]
        return weights_of(q * factor, k, mask, causal=is_causal) @ v

    def weights() -> Tensor:
        return weights_of(q.to(wide) * factor, k.to(wide), attn_mask, causal=is_causal)

    return Product(
        out=out,
        inputs=(q, k, v),
        compute=compute,
        weights=weights,
        shape=(*lead, q.shape[-2], k.shape[-2]),
        mask=attn_mask,
        causal=is_causal,
        rounding=torch.finfo(wide).eps,
        factor=factor,
    )


def _expand(matrices: Tensor, lead: Sequence[int]) -> Tensor:
    """Repeats matrices along leading axes."""
    return matrices.expand(*lead, *matrices.shape[-2:])


def weights_of(
    q: Float[Tensor, "*one queries width"],
    k: Float[Tensor, "*two keys width"],
    mask: Tensor | None,
    *,
    causal: bool,
) -> Float[Tensor, "*lead queries keys"]:
    """Computes softmax(q kᵀ + mask), a few entries of the first axis at a time, so that scores stay in the cache.

    A query whose keys are all masked has weights 0.
    """
    if q.ndim == k.ndim == 2:
        return weights_of(q[None], k[None], mask, causal=causal)[0]
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    weights = q.new_empty(*lead, q.shape[-2], k.shape[-2])
    if causal:  # torch takes no other mask beside it
        mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=q.device)
        mask = mask.tril()
    q = _expand(q, lead)
    k = _expand(k, lead)
    if mask is not None:
        mask = mask.expand(weights.shape)
    size = max(1, _SCORES_AT_ONCE // max(weights[:1].numel(), 1))
    for first in range(0, len(weights), size):
        part = slice(first, first + size)
        scores = q[part] @ k[part].mT
        if mask is not None and mask.dtype == torch.bool:
            scores.masked_fill_(~mask[part], -torch.inf)
        elif mask is not None:
            scores += mask[part]
        torch.softmax(scores, -1, out=weights[part])
    return weights if mask is None else weights.nan_to_num_(0.0)


def plain_product(out: Tensor, weights: Tensor, values: Tensor, mask: Tensor | None) -> Product:
    """Describes a product whose left factor is made of a softmax; `mask` says which pairs are left, if known."""
    lead = torch.broadcast_shapes(weights.shape[:-2], values.shape[:-2])
    weights = _expand(weights, lead)
    values = _expand(values, lead)
    wide = torch.promote_types(weights.dtype, torch.float32)
    return Product(
        out=out,
        inputs=(weights, values),
        compute=lambda weights, values: (values.mT.contiguous() @ weights.mT.contiguous()).mT,
        weights=lambda: weights.detach().to(wide, copy=True),
        shape=tuple(weights.shape),
        mask=mask,
        causal=False,
        rounding=torch.finfo(weights.dtype).eps,
    )


def is_product(args: tuple[Any, ...]) -> bool:
    """Tells whether an einsum of two tensors is their product "… q k, … k d -> … q d"."""
    if len(args) != 3 or not isinstance(args[0], str):
        return False
    equation = args[0].replace(" ", "")
    return re.fullmatch(r"(.*)(\w)(\w),\1\3(\w)->\1\2\4", equation) is not None


def _without_override(function: Any) -> Any:
    """Copies a function of torch so that it runs in Python although a mode sees its operations."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


_TORCH_ATTENTION = _without_override(functional.multi_head_attention_forward)
"""The function behind `nn.MultiheadAttention`, whose products are seen like those of other modules."""

_SOFTMAX = (torch.softmax, Tensor.softmax, functional.softmax, torch.special.softmax)
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
_FUSED_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Operations(TorchFunctionMode):
    """Reports each product of weights and values.

    A softmax is followed through all operations (dropout, a mix of heads, a gate) up to the product with the values.
    """

    def __init__(self, report: Callable[[Product], None]) -> None:
        """Takes the function that is called with each product."""
        super().__init__()
        self.paused = False
        self._report = report
        self._masks: WeakIdKeyDictionary = WeakIdKeyDictionary()  # Of weights; None if not known

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Computes the operation, and reports it if it is a product."""
        named = dict(kwargs or {})
        if self.paused:
            return func(*args, **named)
        if func is functional.multi_head_attention_forward:
            with self:
                return _TORCH_ATTENTION(*args, **named)
        factors = None
        if len(self._masks):
            factors = self._factors(func, args)
        out = func(*args, **named)
        if func is functional.scaled_dot_product_attention:
            named = {**dict(zip(_FUSED_NAMES, args, strict=False)), **named}
            q, k, v = (named.pop(name) for name in _FUSED_NAMES[:3])
            self._report(fused_product(out, q, k, v, **named))
        elif factors is not None:
            weights, values, turned = factors
            if turned:
                self._report(plain_product(out.mT, weights.mT, values.mT, None))
            else:
                self._report(plain_product(out, weights, values, self._masks[weights]))
        elif func in _SOFTMAX:
            scores = _tensors((args, named))[0]
            allowed = scores > EXCLUDED if scores.is_floating_point() else None
            self._follow(out, allowed)
        elif len(self._masks):
            sources = [part for part in _tensors((args, named)) if part in self._masks]
            if sources:
                self._follow(out, self._masks[sources[0]], of=sources[0])
        return out

    def _follow(self, out: Any, allowed: Tensor | None, of: Tensor | None = None) -> None:
        """Notes what is made of weights, with the pairs that no mask excludes if it is laid out as `of` is."""
        for tensor in _tensors(out):
            if not tensor.is_floating_point():
                continue
            same = True
            if of is not None:
                same = tensor.shape == of.shape and tensor.stride() == of.stride()
            self._masks[tensor] = allowed if same else None

    def _factors(self, func: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor, bool] | None:
        """Returns weights and values of a product, and whether the values stand to the left; None for others."""
        of_einsum = func is torch.einsum and is_product(args)
        if not of_einsum and (func not in _PRODUCTS or len(args) < 2):
            return None
        left, right = args[1:] if of_einsum else args[:2]
        left_is_weights = left in self._masks
        right_is_weights = right in self._masks
        if left_is_weights == right_is_weights:
            return None
        if left_is_weights:
            return left, right, False
        return right, left, True


def _tensors(value: Any) -> list[Tensor]:
    return [part for part in tree_leaves(value) if isinstance(part, Tensor)]
