"""Reads the attention of every layer of a network in one watched pass: layout, weights, and the proof of both.

The products of weights and values are seen while a module computes them, and it is proved that the weights are the
module's. A `Kernel` holds the tensors of one product; along its first axis images are outermost.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate
from operator import mul
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from convattn.convert.surgery import (
    Arguments,
    full_name,
    keep_random_state,
    names_by_module,
    read_arguments,
)
from convattn.encodings import Encoding
from convattn.errors import ArgumentError, UnsupportedModelError, must_be_a, must_fit
from convattn.functional import attend, pad_keys
from convattn.functional.reference import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Axis
from convattn.heads.catalogue import (
    AttentionModule,
    attention_class,
    attention_layers,
    chosen_layers,
    is_own,
    register_attention,
)
from convattn.heads.families.attention_class import CallContext
from convattn.heads.layout import (
    OUTSIDE,
    AttentionCall,
    Layout,
    cells,
    global_layout,
    grouped_layout,
    on_grid,
)
from convattn.layers import RelativeAttention

__all__ = [
    "OUTSIDE",
    "AttentionCall",
    "AttentionModule",
    "CallContext",
    "Layout",
    "attention_layers",
    "global_layout",
    "grouped_layout",
    "register_attention",
    "watch",
]


def watch(
    model: nn.Module,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any],
    callback: Callable[[AttentionCall], None],
    *,
    layers: str | Sequence[str] | None = None,
    without: str | Sequence[str] | None = None,
) -> None:
    """Runs a model in evaluation mode and calls back for every attention layer, in the order in which they run.

    Kernels stay fused. The weights are computed beside them, and it is proved on the first image that weights × values
    is what the module itself computed. Afterwards, and also when something raises, the model is as it was: training
    flags, hooks, random numbers.

    Args:
        model: The network.
        images: What it is called with: a tensor of images or token ids, a tuple of arguments, or named arguments.
        callback: Called with an `AttentionCall`; its tensors are valid during the callback only: copy what you keep.
        layers: Names of the layers to read, or patterns as in `fnmatch`; None reads all that `attention_layers` does
            not refuse, and raises if another module attends.
        without: Names or patterns of layers whose weights are not computed; they run all the same.

    Raises:
        ArgumentError: The images do not fit the network, or no layer has such a name.
        UnsupportedModelError: A layer cannot be read; it says which and why.

    Example:
        >>> import torch
        >>> from convattn.layers import RelativeAttention2d
        >>> layer = RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic")
        >>> watch(layer, torch.zeros(2, 3, 4, 6), lambda call: print(tuple(call.weights.shape)))
        (2, 1, 9, 24, 24)
    """
    _require_watchable(model)
    if not callable(callback):
        raise ArgumentError(must_be_a("callback", "a function of an AttentionCall", callback))
    wanted = chosen_layers(model, layers, without)
    given = read_arguments(model, images)
    with as_it_was(model):
        _Pass(model, wanted, callback, strict=layers is None).run(given)


def _require_watchable(model: nn.Module) -> None:
    """Raises an error if a model cannot run, or its operations cannot be seen."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "an nn.Module", model))
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{name or 'the model'} is scripted, and what it computes is not seen"
            )
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            raise UnsupportedModelError(
                f"{name or 'the model'} is compiled; pass it as it was before `torch.compile`"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter):
            raise UnsupportedModelError(f"{name} has no size yet: run the model once")
        if tensor.is_meta:
            raise UnsupportedModelError(f"{name} is on the meta device and has no values")


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, without gradients and autocast; restores flags and random numbers on leaving."""
    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as settings:
        settings.enter_context(keep_random_state(model))
        settings.enter_context(_without_modes(model))
        try:
            model.eval()
            yield
        finally:
            for module, flag in training:
                module.training = flag


def _without_modes(model: nn.Module) -> ExitStack:
    """Enters a context without gradients and autocast, also inside a model that turns them on."""
    settings = ExitStack()
    settings.enter_context(torch.no_grad())
    for device in {torch.device("cpu"), *(parameter.device for parameter in model.parameters())}:
        settings.enter_context(without_autocast(device))
    return settings


_SCORES_AT_ONCE = 2**19
"""Scores that are computed at once, at least those of one entry of the first axis."""


class Proof(NamedTuple):
    """Compares weights × values with what the module computed."""

    error: float  # Largest difference; of a fused kernel, the larger of both sides' differences to float64
    budget: float  # What rounding explains


class FusedKernel:
    """A call of `scaled_dot_product_attention`; the weights are computed from its queries and keys.

    Attributes:
        shape: Sizes of the weights: leading axes, queries, keys.
        mask: What is added to the scores, or which pairs count.
        causal: Whether a query sees itself and earlier keys only.
        rounding: How far a weight may be off, as a share of itself.
    """

    def __init__(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
        """Takes the result and the arguments."""
        if options.pop("enable_gqa", False) and q.shape[-3] != k.shape[-3]:
            k, v = (part.repeat_interleave(q.shape[-3] // part.shape[-3], -3) for part in (k, v))
        lead = torch.broadcast_shapes(*(part.shape[:-2] for part in (q, k, v)))
        self._q, self._k, self._v = (part.expand(*lead, *part.shape[-2:]) for part in (q, k, v))
        self._out, self.shape = out, (*lead, q.shape[-2], k.shape[-2])
        self.rounding = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps
        self.mask, self.causal, self._scale = (
            options.get("attn_mask"),
            options.get("is_causal"),
            options.get("scale"),
        )

    def weights(self) -> Float[Tensor, "*lead queries keys"]:
        """Computes softmax(q kᵀ · scale + mask)."""
        dtype = torch.promote_types(self._q.dtype, torch.float32)
        scale = self._q.shape[-1] ** -0.5 if self._scale is None else self._scale
        return weights_of(
            self._q.to(dtype) * scale, self._k.to(dtype), self.mask, causal=bool(self.causal)
        )

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Compares the product and the kernel's result, each, with torch's plain formula in float64.

        Only the `first` entries of the first axis are compared. Each has roundings of its own, so their difference may
        be larger than what rounding explains of one.
        """
        y = self._out[:first]
        given = [part[:first] for part in (self._q, self._k, self._v)]
        moved = (
            [rounded_differently(part, 3 * seed + place) for place, part in enumerate(given)]
            for seed in range(LEAST_ROUNDINGS - 1)
        )
        lows = [self._by_torch(parts, y.dtype) for parts in (given, *moved)]
        made, exact = (
            weights[:first].double() @ given[2].double(),
            self._by_torch(given, torch.float64),
        )
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


class PlainKernel:
    """A product of values with a softmax, or with a tensor computed from one; the weights are its left factor.

    It has the attributes of `FusedKernel`.
    """

    def __init__(self, out: Tensor, weights: Tensor, values: Tensor, mask: Tensor | None) -> None:
        """Takes the result, the factors, and which pairs no mask excludes if that is known."""
        lead = torch.broadcast_shapes(weights.shape[:-2], values.shape[:-2])
        self._weights, self._values = (
            part.expand(*lead, *part.shape[-2:]) for part in (weights, values)
        )
        self._out, self.shape, self.mask, self.causal = out, tuple(self._weights.shape), mask, False
        self.rounding = torch.finfo(weights.dtype).eps

    def weights(self) -> Float[Tensor, "*lead queries keys"]:
        """Copies the left factor."""
        return self._weights.detach().to(
            torch.promote_types(self._weights.dtype, torch.float32), copy=True
        )

    def proof(self, weights: Float[Tensor, "*lead queries keys"], first: int) -> Proof:
        """Compares the product in float64 with the module's; sums in another order give the budget."""
        y, values = self._out[:first], self._values[:first]
        hi = weights[:first].double() @ values.double()
        parts = (
            values,
            *(rounded_differently(values, seed) for seed in range(LEAST_ROUNDINGS - 1)),
        )
        lows = [(part.mT.contiguous() @ self._weights[:first].mT.contiguous()).mT for part in parts]
        return Proof((hi - y.double()).abs().max().item(), rounding_budget(hi, lows))


Kernel: TypeAlias = FusedKernel | PlainKernel


def factors_of_einsum(
    args: tuple[Any, ...], is_weights: Callable[[Any], bool]
) -> tuple[Tensor, Tensor] | None:
    """Finds the weights (…, queries, keys) and values (…, keys, width) of a product "… q k, … k d -> … q d".

    Returns None for every other product.
    """
    if len(args) != 3 or not isinstance(args[0], str) or is_weights(args[1]) == is_weights(args[2]):
        return None
    operands, _, out = args[0].replace(" ", "").partition("->")
    left, _, right = operands.partition(",")
    turned = is_weights(args[2])
    equation = f"{right},{left}->{out}" if turned else f"{operands}->{out}"
    weights, values = args[:0:-1] if turned else args[1:]
    return (weights, values) if re.fullmatch(r"(.*)(\w)(\w),\1\3(\w)->\1\2\4", equation) else None


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
_EXCLUDED = -9e3
"""Scores and masks up to this exclude a pair: models add −∞, the lowest number, −1e9 or −1e4."""
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
        self._is_made = self._weights.__contains__

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
            mask = None if turned else self._weights[weights]
            self._report(PlainKernel(out.mT if turned else out, weights, values, mask))
        elif func in _SOFTMAX:
            scores = _tensors((args, named))[0]
            self._follow(out, scores > _EXCLUDED if scores.is_floating_point() else None)
        elif len(self._weights):
            source = next((part for part in _tensors((args, named)) if self._is_made(part)), None)
            if source is not None:
                self._follow(out, self._weights[source], of=source)
        return out

    def _follow(self, out: Any, allowed: Tensor | None, of: Tensor | None = None) -> None:
        """Notes what is made of weights, with the pairs that no mask excludes if it is laid out as `of` is."""
        for made in _tensors(out):
            if made.is_floating_point():
                same = of is None or (made.shape, made.stride()) == (of.shape, of.stride())
                self._weights[made] = allowed if same else None

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


def _tensors(value: Any) -> list[Tensor]:
    return [part for part in tree_leaves(value) if isinstance(part, Tensor)]


def allowed_pairs(
    kernel: Kernel, layout: Layout, sizes: Sequence[int], *, heads_first: bool = False
) -> tuple[Layout, Bool[Tensor, "images groups queries keys"] | None]:
    """Adds to a layout without a mask the pairs that the kernel's mask allows.

    `sizes` are images, groups, heads, queries, keys; the kernel itself may have heads before groups. Masks that differ
    between images are not added, but returned.
    """
    images, groups, heads, queries, keys = sizes
    if layout.allowed is not None:
        return layout, None
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if kernel.causal:
        allowed = allowed.tril()
    mask = kernel.mask
    if mask is not None:
        left = mask if mask.dtype == torch.bool else mask > _EXCLUDED
        if not bool(left.all()):
            middle = (heads, groups) if heads_first else (groups, heads)
            whole = left.broadcast_to(kernel.shape).reshape(images, *middle, queries, keys)
            allowed = allowed.to(whole.device) & whole.any(1 if heads_first else 2)
    pairs = allowed.expand(-1, groups, -1, -1).cpu()
    if bool((pairs == pairs[:1]).all()):
        return layout.with_allowed(pairs[0]), None
    return layout, pairs


_Product: TypeAlias = tuple[Kernel, Tensor, Proof]
"""A product that a module computed, with its weights and their proof."""


class _Pass:
    """Watches one call of a model. Hooks are set before it and removed after it."""

    def __init__(
        self,
        model: nn.Module,
        wanted: Mapping[nn.Module, str],
        callback: Callable[[AttentionCall], None],
        *,
        strict: bool,
    ) -> None:
        """Prepares to read the layers `wanted`; `strict` refuses attention in modules that are not known."""
        self._model, self._wanted, self._callback, self._strict = model, wanted, callback, strict
        self._images = 0
        self._stack: list[
            tuple[CallContext, list[_Product]]
        ] = []  # The modules that run, with their products
        self._features: dict[nn.Module, tuple[int, ...]] = {}
        self._operations = Operations(self._note)
        self._raised: BaseException | None = None

    def __deepcopy__(self, _: object) -> "_Pass":
        """Stays itself where a layer is copied with its hooks, or the whole network would be copied with each layer."""
        return self

    def run(self, given: Arguments) -> None:
        """Runs the model; if it raises, ArgumentError says on what."""
        tensors = [
            x
            for x in (*given.positional, *given.named.values())
            if isinstance(x, Tensor) and x.ndim
        ]
        self._images = tensors[0].shape[0] if tensors else 0
        with ExitStack() as watching:
            every = names_by_module(self._model)
            uncalled = {
                part
                for layer in every
                if is_own(layer)
                for part in layer.modules()
                if part is not layer
            }
            uncalled |= {
                part
                for module in every
                if isinstance(module, Encoding)
                for part in module.modules()
            }
            for module, names in every.items():
                if module not in uncalled:
                    enter = module.register_forward_pre_hook(
                        self._enter(names[0]), prepend=True, with_kwargs=True
                    )
                    watching.callback(enter.remove)
                    watching.callback(module.register_forward_hook(self._leave).remove)
            watching.enter_context(self._operations)
            try:
                self._model(*given.positional, **given.named)
            except Exception as error:
                if error is self._raised:
                    raise
                shapes = [tuple(tensor.shape) for tensor in tensors]
                words = f"those of shape {shapes[0] if len(shapes) == 1 else shapes}"
                raise ArgumentError(must_fit(words, error)) from error

    def _enter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._operations.paused:
                around = self._stack[-1][0] if self._stack else None
                parents = () if around is None else (around, *around.parents)
                self._stack.append((CallContext(name, module, args, kwargs, parents), []))

        return hook

    def _leave(self, module: nn.Module, _: tuple[Any, ...], out: Any) -> None:
        if self._operations.paused:
            return
        while self._stack[-1][0].module is not module:  # a module that raised, and was caught
            self._stack.pop()
        call, products = self._stack.pop()
        if isinstance(module, nn.Conv2d) or (
            is_own(module) and module.dims == 2
        ):  # it may stand for a convolution
            self._features.pop(module, None)
            self._features[module] = tuple(out.shape)
        if module in self._wanted:
            self._operations.paused = True
            try:
                with torch._C.DisableTorchFunction(), _without_modes(self._model):
                    self._callback(
                        self._read(call, products, out[0] if isinstance(out, tuple) else out)
                    )
            except BaseException as error:
                self._raised = error
                raise
            finally:
                self._operations.paused = False

    def _note(self, kernel: Kernel) -> None:
        """Notes a product for the attention module that is running."""
        for call, products in reversed(self._stack):
            if call.module in self._wanted:
                # Now, because the module may change its tensors in place afterwards.
                with _without_modes(self._model):
                    weights = kernel.weights()
                proof = kernel.proof(weights, max(1, kernel.shape[0] // max(1, self._images)))
                products.append((kernel, weights, proof))
                return
            if is_own(call.module) or attention_class(call.module) is not None:
                return
        if self._strict:
            running = [call for call, _ in reversed(self._stack)]
            call = next((call for call in running if list(call.module.children())), running[0])
            sizes, kind = " × ".join(map(str, kernel.shape)), full_name(type(call.module))
            self._raised = UnsupportedModelError(
                f"{call.name or 'the model'} ({kind}) attends with weights of {sizes}, but where its tokens lie is not"
                " known; say so by register_attention, or name the layers to read"
            )
            raise self._raised

    def _read(self, call: CallContext, products: list[_Product], out: Tensor) -> AttentionCall:
        """Reads one layer; UnsupportedModelError names it."""
        try:
            if is_own(call.module):
                return _read_own(call, out)
            return self._read_foreign(call, products, out)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{call.name} ({type(call.module).__name__}): {error}"
            ) from error

    def _read_foreign(
        self, call: CallContext, products: list[_Product], out: Tensor
    ) -> AttentionCall:
        """Reads a layer of the catalogue; a registered `read` that returns no layout raises ArgumentError."""
        known, images = attention_class(call.module), self._images
        if len(products) != 1:
            count = f"{len(products)} products" if products else "no product"
            raise UnsupportedModelError(
                f"{count} of weights and values was seen in it, where there must be one"
            )
        ((kernel, weights, proof),) = products
        shape = kernel.shape
        assert known is not None
        assert known.layout is not None
        context = replace(
            call, images=images, shape=shape, mask=kernel.mask, features=self._features
        )
        layout = known.layout(context)
        if not isinstance(layout, Layout):
            raise ArgumentError(
                must_be_a(
                    f"what `read` of {type(call.module).__name__} returns", "a Layout", layout
                )
            )
        groups, queries, keys = layout.groups, layout.queries.shape[1], layout.keys.shape[1]
        heads = torch.Size(shape[:-2]).numel() // max(images * groups, 1)
        sizes = (images, heads, groups) if known.heads_first else (images, groups, heads)
        # Images, groups and heads may be one axis, but none of them is cut: of more images, heads would be too many.
        if (queries, keys) != shape[-2:] or not {*accumulate(shape[:-2], mul)} <= {
            *accumulate(sizes, mul)
        }:
            raise UnsupportedModelError(
                f"weights of {' × '.join(map(str, shape))} for {images} images are not those of {groups} groups of"
                f" {queries} queries and {keys} keys"
            )
        weights = weights.reshape(*sizes, queries, keys)
        weights = weights.transpose(1, 2) if known.heads_first else weights
        layout, allowed = allowed_pairs(
            kernel, layout, weights.shape, heads_first=known.heads_first
        )
        given = next(
            (part for part in (*call.args, *call.kwargs.values()) if isinstance(part, Tensor)), None
        )
        ends = on_grid(given, layout, images), on_grid(out, layout, images)
        return _proved(
            call, layout, weights, proof, ends, rounding=kernel.rounding, allowed=allowed
        )


def _proved(
    call: CallContext,
    layout: Layout,
    weights: Tensor,
    proof: Proof,
    ends: tuple[Tensor | None, Tensor | None],
    *,
    rounding: float,
    allowed: Tensor | None = None,
) -> AttentionCall:
    """Describes a call with its inputs and outputs on the grid, unless the proof fails."""
    if not proof.error <= proof.budget:
        raise UnsupportedModelError(
            f"weights × values is {proof.error:.3g} off what it computed, and rounding explains {proof.budget:.3g}"
        )
    return AttentionCall(
        name=call.name,
        kind=full_name(type(call.module)),
        layout=layout,
        weights=weights,
        inputs=ends[0],
        outputs=ends[1],
        normalised=rows_sum_to_one(weights, rounding),
        error=proof.error,
        budget=proof.budget,
        allowed=allowed,
    )


def rows_sum_to_one(weights: Tensor, rounding: float) -> bool:
    """Tells whether rows sum to one, if every weight is off by `rounding` of itself.

    Two sums of n terms are rounded as well, that by which softmax divided and the one here. Each may be off by n · u,
    u = eps / 2, in any order of summation.
    """
    off = (weights.sum(-1) - 1).abs().max().item()
    return off <= rounding + weights.shape[-1] * torch.finfo(weights.dtype).eps


_ROUNDINGS = 8
"""Further roundings for the proof of a layer of this library whose scores are computed in other steps."""


def _read_own(call: CallContext, out: Tensor) -> AttentionCall:
    """Reads a layer of this library, which computes its weights itself."""
    layer = call.module
    assert isinstance(layer, RelativeAttention)
    x = layer.batch_of(*call.args, **call.kwargs)
    y = out if out.ndim == x.ndim else out[None]
    layout = _own_layout(list(layer.geometry.axes(x.shape[2:])))
    weights = own_weights(layer, x)
    given = (
        x.flatten(2).mT if tuple(x.shape[2:]) == layout.grid else None
    )  # channels are first, however many
    ends = given, y.flatten(2).mT
    proof = prove_own(layer, x[:1], y[:1], weights[:1])
    return _proved(
        call, layout, weights[:, None], proof, ends, rounding=torch.finfo(weights.dtype).eps
    )


def _own_layout(axes: list[Axis]) -> Layout:
    """Makes the layout of a layer; keys are the pixels of the padded image, seen in steps of the queries."""
    start = torch.tensor([axis.queries.start for axis in axes])
    step = torch.tensor([axis.queries.step for axis in axes])
    keys = (cells(tuple(axis.keys for axis in axes)) - start) / step
    return global_layout(
        tuple(len(axis.queries) for axis in axes), keys=keys, source="the layer's own grid"
    )


def own_weights(layer: RelativeAttention, x: Tensor) -> Float[Tensor, "images heads queries keys"]:
    """Computes the weights of images; without content all images have the same."""
    dims = x.ndim - 2
    weights = layer.attention(x if layer.content is not None else x.shape[2:])
    weights = weights.flatten(-dims).flatten(-1 - dims, -2)
    return weights if weights.ndim == 4 else weights.expand(len(x), *weights.shape)


def prove_own(layer: RelativeAttention, x: Tensor, y: Tensor, weights: Tensor) -> Proof:
    """Compares the definition with these weights, in float64, with the layer's output y on one of its paths.

    Where that is not enough, each of the two is compared with the definition with weights computed in float64. Rounding
    then explains what changes if input and parameters are rounded differently: the layer computes its scores in other
    steps than the weights were computed in.
    """

    def computed(by: RelativeAttention, x: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        keys, maps = pad_keys(x, by.geometry).to(dtype), by.values.maps().to(dtype)
        made = attend(weights.to(dtype), keys, maps, by.groups).mT
        return made if by.bias is None else made + by.bias.to(dtype)

    made, given = computed(layer, x, weights, torch.float64), y.flatten(2).mT.double()
    parts = (x, *(rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1)))
    lows = [computed(layer, part, weights, y.dtype) for part in parts]
    proof = Proof((made - given).abs().max().item(), rounding_budget(made, lows))
    if proof.error <= proof.budget:
        return proof
    double = copy.deepcopy(layer).double()
    exact = computed(double, x.double(), own_weights(double, x.double()), torch.float64)
    for seed in range(_ROUNDINGS):
        other, moved = copy.deepcopy(layer), rounded_differently(x, seed)
        for parameter in other.parameters():
            parameter.data = rounded_differently(parameter.data, seed)
        lows.append(computed(other, moved, own_weights(other, moved), y.dtype))
    return Proof(
        (torch.stack([made, given]) - exact).abs().max().item(), rounding_budget(exact, lows)
    )
