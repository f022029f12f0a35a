"""Products of weights and values, seen while a module computes them, and the proof that the weights are the module's.

Each kernel holds the tensors of one call. Along its first axis images are outermost.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from convattn.functional.reference import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.heads.layout import Layout

_SCORES_AT_ONCE = 2**19
"""Scores that are computed at once, at least those of one entry of the first axis."""


class Proof(NamedTuple):
    """Compares weights × values with what the module computed."""

    error: float  # Largest difference; of a fused kernel, the larger of both sides' differences to float64
    budget: float  # What rounding explains


class Kernel(ABC):
    """One product of weights and values."""

    mask: Tensor | None = None  # What is added to the scores, or which pairs count
    causal: bool | None = False  # Whether a query sees itself and earlier keys only
    rounding: float  # How far a weight may be off, as a share of itself
    made: tuple[Tensor, Proof] | None = None  # The weights and their proof, once they are computed

    def settle(self, images: int) -> "Kernel":
        """Computes weights and proof now, before the module changes its tensors in place."""
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
        """Compares the product and the kernel's result, each, with torch's plain formula in float64.

        Each has roundings of its own, so their difference may be larger than what rounding explains of one.
        """
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
    """Computes softmax(q kᵀ + mask), a few entries of the first axis at a time, so that scores stay in the cache.

    A query whose keys are all masked has weights 0.
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
    """A product of values with a softmax, or with a tensor computed from one; the weights are its left factor."""

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
        """Compares the product in float64 with the module's; sums in another order give the budget."""
        y, values = self._out[:first], self._values[:first]
        hi = weights[:first].double() @ values.double()
        parts = (values, *(rounded_differently(values, seed) for seed in range(LEAST_ROUNDINGS - 1)))
        lows = [(part.mT.contiguous() @ self._weights[:first].mT.contiguous()).mT for part in parts]
        return Proof((hi - y.double()).abs().max().item(), rounding_budget(hi, lows))


def factors_of_einsum(args: tuple[Any, ...], is_weights: Callable[[Any], bool]) -> tuple[Tensor, Tensor] | None:
    """Finds the weights (…, queries, keys) and values (…, keys, width) of a product "… q k, … k d -> … q d".

    Returns None for every other product.
    """
    if len(args) != 3 or not isinstance(args[0], str) or is_weights(args[1]) == is_weights(args[2]):
        return None
    left, right, out = args[0].replace(" ", "").replace("->", ",").split(",")
    weights, values = (args[1], args[2]) if is_weights(args[1]) else (args[2], args[1])
    form = (left, right) if is_weights(args[1]) else (right, left)
    lead = form[0][:-2]
    same = form[1][:-2] == out[:-2] == lead and form[1][-1] == out[-1]
    if not same or out[-2] != form[0][-2] or form[1][-2] != form[0][-1]:
        return None
    return weights, values


def _without_override(function: Any) -> Any:
    """Copies a function of torch so that it runs in Python although a mode sees its operations."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


_TORCH_ATTENTION = _without_override(functional.multi_head_attention_forward)
"""The function behind `nn.MultiheadAttention`, whose products are seen like those of other modules."""

_SOFTMAX = (torch.softmax, Tensor.softmax, functional.softmax, torch.special.softmax)
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
_FUSED_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Operations(TorchFunctionMode):
    """Reports each product of weights and values.

    A softmax is followed through all operations (dropout, a mix of heads, a gate) up to the product with the values.
    """

    def __init__(self, report: Callable[[Kernel], None]) -> None:
        """Takes the function that is called with each product."""
        super().__init__()
        self.paused = False
        self._report = report
        self._weights: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes the operation, and reports it if it is a product."""
        named = dict(kwargs or {})
        if self.paused:
            return func(*args, **named)
        if func is functional.scaled_dot_product_attention:
            out = func(*args, **named)
            given = {**dict(zip(_FUSED_NAMES, args, strict=False)), **named}
            q, k, v = (given.pop(name) for name in _FUSED_NAMES[:3])
            self._report(FusedKernel(out, q, k, v, **given))
            return out
        if func is functional.multi_head_attention_forward:
            with self:
                return _TORCH_ATTENTION(*args, **named)
        product = self._product(func, args)
        out = func(*args, **named)
        if product is not None:
            weights, values, turned = product
            self._report(PlainKernel(out.mT if turned else out, weights, values))
        elif func in _SOFTMAX or (len(self._weights) and any(self._is_made(part) for part in _tensors((args, named)))):
            for made in _tensors(out):
                if made.is_floating_point():
                    self._weights[made] = True
        return out

    def _is_made(self, tensor: Any) -> bool:
        return tensor in self._weights

    def _product(self, func: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor, bool] | None:
        """Returns weights and values of a product, and whether the values stand to the left; None for others."""
        if not len(self._weights):
            return None
        if func is torch.einsum:
            factors = factors_of_einsum(args, self._is_made)
            return None if factors is None else (*factors, False)
        if func not in _PRODUCTS or len(args) < 2:
            return None
        left, right = args[:2]
        if self._is_made(left) and not self._is_made(right):
            return left, right, False
        if self._is_made(right) and not self._is_made(left):
            return right.mT, left.mT, True
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def allowed_pairs(
    kernel: Kernel, given: Tensor | None, layout: Layout, sizes: Sequence[int]
) -> tuple[Layout, Bool[Tensor, "images groups queries keys"] | None]:
    """Adds to a layout without a mask the pairs that the kernel's mask, or the mask `given` to the module, allows.

    `sizes` are images, groups, heads, queries, keys. Masks that differ between images are not added, but returned.
    """
    images, groups, heads, queries, keys = sizes
    if layout.allowed is not None:
        return layout, None
    allowed = torch.ones(1, 1, 1, queries, keys, dtype=torch.bool)
    if kernel.causal:
        allowed = allowed.tril()
    mask = given if kernel.mask is None else kernel.mask
    if mask is not None and _excludes(mask):
        left = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        whole = left.broadcast_to(kernel.shape()).reshape(images, groups, heads, queries, keys)
        allowed = allowed.to(whole.device) & whole.any(2, keepdim=True)
    pairs = allowed.any(2).expand(-1, groups, -1, -1).cpu()
    if bool((pairs == pairs[:1]).all()):
        return layout.with_allowed(pairs[0]), None
    return layout, pairs


def _excludes(mask: Tensor) -> bool:
    """Tells whether a mask, of truth values or added to scores, excludes a pair."""
    if mask.dtype == torch.bool:
        return not bool(mask.all())
    return mask.is_floating_point() and bool(mask.min() <= torch.finfo(mask.dtype).min / 2)
