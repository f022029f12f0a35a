"""Reads the attention of every layer of a network in one watched pass: layout, weights, and the proof of both."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from convattn.budget import references
from convattn.convert.network_runs import devices_of, read_arguments, without_modes
from convattn.convert.surgery import require_network
from convattn.errors import ArgumentError, UnsupportedModelError, must_be_a, must_fit, sorts
from convattn.functional import attend, pad_keys
from convattn.heads.call_stack import CallStack
from convattn.heads.catalogue import (
    AttentionModule,
    attention_class,
    attention_layers,
    is_own,
    layers_to_read,
    register_attention,
    survey,
)
from convattn.heads.families.attention_class import CallContext, how_to_register
from convattn.heads.families.window_attention import window_layout
from convattn.heads.layout import (
    OUTSIDE,
    WHOLE,
    AttentionCall,
    Layout,
    global_layout,
    grouped_layout,
    lattice,
    on_grid,
    times,
)
from convattn.heads.operations import Operations
from convattn.heads.products import Product, Proof, prove
from convattn.layers import RelativeAttention
from convattn.random_numbers import keep_random_state
from convattn.structure import find_empty, full_name
from convattn.wording import ITSELF

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
    "window_layout",
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
    if not callable(callback):
        raise ArgumentError(must_be_a("callback", "a function of an AttentionCall", callback))
    Watcher(model, layers, without).run(images, callback)


def _require_watchable(model: nn.Module) -> None:
    """Raises an error if a model cannot run, or its operations cannot be seen."""
    require_network("model", model)
    for name, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        kernel = getattr(getattr(module, "config", None), "_attn_implementation", None)
        reason = None
        if isinstance(module, torch.jit.ScriptModule):
            reason = "scripted, and what it computes is not seen"
        elif compiled or hasattr(module, "_orig_mod"):
            reason = "compiled; pass it as it was before `torch.compile`"
        elif any(hiding in str(kernel) for hiding in _HIDING):
            reason = f'run by {kernel}, which hides its weights; call `set_attn_implementation("sdpa")` on the network'
        if reason is not None:
            raise UnsupportedModelError(f"{name or 'the model'} is {reason}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UnsupportedModelError(f"{name} has no size yet: run the model once")
    if (empty := find_empty(model)) is not None:
        raise UnsupportedModelError(f"{empty} is on the meta device and has no values")


_HIDING = ("flex_attention", "flash_attention")
"""Kernels of transformers by which weights are not seen: they are compiled, or foreign."""


def _parts_by_input(model: nn.Module) -> list[str]:
    """Lists the parts of a network of transformers that are given inputs of their own; empty unless there are two."""
    parts = []
    for name, part in model.named_children():
        if isinstance(taken := getattr(part, "main_input_name", None), str):
            parts.append(f"{name} ({taken})")
    return parts if len(parts) > 1 else []


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, without gradients and autocast; restores flags and random numbers on leaving."""
    training = {module: module.training for module in model.modules()}
    with keep_random_state(model), without_modes(devices_of(model)):
        try:
            model.eval()
            yield
        finally:
            for module, flag in training.items():
                module.training = flag


_Seen: TypeAlias = tuple[Product, Tensor, Proof]
"""A product that a module computed, with its weights and their proof."""


class Watcher:
    """Watches calls of a model, whose modules are looked up once. Hooks are set before a call and removed after it."""

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | None = None,
        without: str | Sequence[str] | None = None,
        *,
        prove: bool = True,
    ) -> None:
        """Finds the layers to read; raises if the model cannot be watched, or has no such layers.

        Weights that are not to be proved have a proof of zeros.
        """
        _require_watchable(model)
        self.model = model
        self._devices = devices_of(model)
        self._layers = set(layers_to_read(model, layers, without).values())
        # Attention is theirs, or that of a class that is not known; what torch itself made is named by its holder
        self._followed = {"", *(layer.name for layer in survey(model))}
        for name, module in model.named_modules():
            if not type(module).__module__.startswith("torch.nn."):
                self._followed.add(name)
        self._prove = prove
        self._strict = layers is None  # Whether attention in modules that are not known is refused
        self._paused = False  # While a layer is read, which may run modules again
        self._operations = Operations(self._note)

    def __deepcopy__(self, _: object) -> "Watcher":
        """Stays itself where a layer is copied with its hooks, or the whole network would be copied with each layer."""
        return self

    def run(self, images: Any, callback: Callable[[AttentionCall], None]) -> None:
        """Runs the model once, as `watch` does; if it raises, ArgumentError says on what."""
        arguments = read_arguments(self.model, images)
        tensors = [x for x in arguments.tensors() if x.ndim]
        self._images = len(tensors[0]) if tensors else 0
        self._callback = callback
        self._raised: BaseException | None = None
        self._calls = CallStack({})
        self._products = defaultdict[CallContext, list[_Seen]](list)
        with as_it_was(self.model), ExitStack() as watching:
            for layer in self._layers:
                watching.enter_context(layer.register_forward_hook(self._attended))
            watching.enter_context(self._calls.follow(self.model, self._followed))
            watching.enter_context(self._operations)
            try:
                self.model(*arguments.positional, **arguments.named)
            except Exception as error:
                if error is self._raised:
                    raise
                message = must_fit(sorts(tensors), error)
                parts = _parts_by_input(self.model)
                if len(tensors) == 1 and parts:
                    message += (
                        f"; if {type(self.model).__name__} takes several inputs at once, pass all by their names, or"
                        f" the part that takes this one: {' or '.join(parts)}"
                    )
                raise ArgumentError(message) from error
        if self._raised is not None:  # and the network went on
            raise self._raised
        if not self._layers and not survey(self.model):
            kind = type(self.model).__name__
            raise UnsupportedModelError(
                f"no attention of {kind} can be read: nothing in it attended"
            )
        if not self._layers:
            attention_layers(self.model)  # which says why none can be read

    def _attended(self, _module: nn.Module, _arguments: tuple[Any, ...], out: Any) -> None:
        """Reads the layer that has computed an output, and calls back."""
        if self._paused:
            return
        self._paused = True
        try:
            with torch._C.DisableTorchFunction(), without_modes(self._devices):
                y = out[0] if isinstance(out, tuple) else out
                self._callback(self._read(self._calls.running[-1], y))
        except BaseException as error:
            self._raised = error
            raise
        finally:
            self._paused = False

    def _note(self, product: Product) -> None:
        """Notes a product for the attention module that is running."""
        running = [*reversed(self._calls.running)]
        for call in running:
            if is_own(call.module):  # which says itself what it computes
                return
            if call.module in self._layers:
                # Now, because the module may change its tensors in place afterwards.
                try:
                    with without_modes(self._devices):
                        weights = product.weights()
                except Exception as error:
                    self._raised = error  # which is no mistake of the images
                    raise
                first = max(1, product.shape[0] // max(1, self._images))
                proof = product.proof(weights, first) if self._prove else Proof()
                self._products[call].append((product, weights, proof))
                return
            if attention_class(type(call.module)) is not None:
                return
        if self._strict:
            call = running[0]
            cls = type(call.module)
            self._raised = UnsupportedModelError(
                f"{call.name or 'the model'} ({full_name(cls)}) attends with weights of"
                f" {times(product.shape)}, and its class is not known; {how_to_register(cls)}"
            )
            raise self._raised

    def _read(self, call: CallContext, out: Tensor) -> AttentionCall:
        """Reads one layer; UnsupportedModelError names it."""
        try:
            if is_own(call.module):
                return _read_own(call, out, needs_proof=self._prove)
            return self._read_foreign(call, self._products.pop(call, []), out)
        except UnsupportedModelError as error:
            kind = type(call.module).__name__
            raise UnsupportedModelError(f"{call.name or ITSELF} ({kind}): {error}") from error

    def _read_foreign(self, call: CallContext, products: list[_Seen], out: Tensor) -> AttentionCall:
        """Reads a layer of the catalogue; a registered `read` that returns no layout raises ArgumentError."""
        images = self._images
        if len(products) != 1:
            count = f"{len(products)} products" if products else "no product"
            raise UnsupportedModelError(
                f"{count} of weights and values was seen in it, where there must be one"
            )
        product, weights, proof = products[0]
        known = attention_class(type(call.module))
        assert known is not None
        try:
            layout = known.read(self._calls.attending(product.shape))
        except UnsupportedModelError as error:
            if known.pattern == "registered":
                raise
            hint = how_to_register(type(call.module))
            raise UnsupportedModelError(f"{error}; {hint}") from None
        in_order = global_layout(layout.grid, layout.prefix)
        if layout.pattern in WHOLE and not layout.lies_like(in_order):
            layout = replace(layout, pattern=f"{layout.pattern}, in another order")
        heads = _heads(product.shape, layout, images, heads_first=known.heads_first)
        by_group = partial(known.by_group, groups=layout.groups, heads=heads)
        layout, allowed = _with_mask(product, layout, by_group)
        arguments = [*call.args, *call.kwargs.values()]
        inputs = [x for x in arguments if isinstance(x, Tensor)]
        read = _proved(
            call,
            proof,
            by_group(weights),
            product.rounding,
            layout=layout,
            inputs=on_grid(inputs[0], layout, images) if inputs else None,
            outputs=on_grid(out, layout, images),
            allowed=allowed,
            grid_source=self._calls.source(layout.grid),
        )
        if product.by_hand and not read.normalised:
            raise UnsupportedModelError(
                "its exponentials are not divided by their sum before the product with values; divide them there"
            )
        return read


def _heads(shape: tuple[int, ...], layout: Layout, images: int, *, heads_first: bool) -> int:
    """Returns the number of heads of weights of some shape; raises unless they fit the layout.

    Images, groups and heads may be one axis, but none of them is cut: of more images, heads would be too many.
    """
    groups = layout.groups
    heads = prod(shape[:-2]) // max(images * groups, 1)
    lead = (images, heads, groups) if heads_first else (images, groups, heads)
    *cuts, count = [*accumulate(shape[:-2], mul)] or [1]
    *cuts_of_lead, expected = accumulate(lead, mul)
    if count != expected or not set(cuts) <= set(cuts_of_lead):
        queries, keys = shape[-2:]
        raise UnsupportedModelError(
            f"weights of {times(shape)} for {images} images are not those of {groups} groups of"
            f" {queries} queries and {keys} keys"
        )
    return heads


def _with_mask(
    product: Product, layout: Layout, by_group: Callable[[Tensor], Tensor]
) -> tuple[Layout, Bool[Tensor, "images groups queries keys"] | None]:
    """Adds to a layout without a mask the pairs that the product's mask allows.

    `by_group` gives pairs of the product the axes images, groups, heads, queries and keys. Masks that differ between
    images are not added, but returned.
    """
    mask = product.mask
    if layout.allowed is not None or mask is None or mask.all():
        return layout, None
    pairs = by_group(mask.broadcast_to(product.shape)).any(2).cpu()
    if (pairs == pairs[:1]).all():
        return layout.with_allowed(pairs[0]), None
    return layout, pairs


def _proved(
    call: CallContext, proof: Proof, weights: Tensor, rounding: float, **facts: Any
) -> AttentionCall:
    """Describes a call, of which weights are off by `rounding` of themselves, unless the proof fails."""
    if not proof.error <= proof.budget:
        raise UnsupportedModelError(
            f"weights × values is {proof.error:.3g} off what it computed, and rounding explains {proof.budget:.3g}"
        )
    return AttentionCall(
        name=call.name,
        kind=full_name(type(call.module)),
        weights=weights,
        normalised=rows_sum_to_one(weights, rounding),
        error=proof.error,
        budget=proof.budget,
        **facts,
    )


def rows_sum_to_one(weights: Tensor, rounding: float) -> bool:
    """Tells whether rows sum to one, if every weight is off by `rounding` of itself.

    Two sums of n terms are rounded as well, that by which softmax divided and the one here. Each may be off by n · u,
    u = eps / 2, in any order of summation.
    """
    off = weights.sum(-1) - 1
    largest = off.abs().max().item()
    return largest <= rounding + weights.shape[-1] * torch.finfo(weights.dtype).eps


def _read_own(call: CallContext, out: Tensor, *, needs_proof: bool) -> AttentionCall:
    """Reads a layer of this library, which computes its weights itself."""
    layer = call.module
    x = layer.batch_of(*call.args, **call.kwargs)
    y = out if out.ndim == x.ndim else out[None]
    sizes = tuple(x.shape[2:])
    axes = layer.geometry.axes(sizes)
    places = []  # of the padded image's pixels, in steps of the queries
    for axis in axes:
        keys = torch.arange(axis.keys, dtype=torch.float64)
        places.append((keys - axis.queries.start) / axis.queries.step)
    grid = tuple(len(axis.queries) for axis in axes)
    weights = own_weights(layer, x)
    proof = prove_own(layer, x[:1], y[:1], weights[:1]) if needs_proof else Proof()
    return _proved(
        call,
        proof,
        weights[:, None],
        torch.finfo(weights.dtype).eps,
        layout=global_layout(grid, keys=lattice(places)),
        inputs=x.flatten(2).mT if sizes == grid else None,  # channels are first
        outputs=y.flatten(2).mT,
    )


def own_weights(layer: RelativeAttention, x: Tensor) -> Float[Tensor, "images heads queries keys"]:
    """Computes the weights of images; without content all images have the same."""
    dims = x.ndim - 2
    images_or_sizes = x if layer.content is not None else x.shape[2:]
    weights = layer.attention(images_or_sizes)
    weights = weights.flatten(-dims).flatten(-1 - dims, -2)
    return weights.expand(len(x), *weights.shape[-3:])


_ROUNDINGS = 8
"""Roundings of input and parameters: a layer computes its scores in other steps than the weights are computed in."""


def prove_own(layer: RelativeAttention, x: Tensor, y: Tensor, weights: Tensor) -> Proof:
    """Compares the definition with these weights, and the layer's output y on one of its paths, with float64.

    Rounding explains what changes if input and parameters are rounded differently.
    """

    def defined(by: RelativeAttention, x: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        keys = pad_keys(x, by.geometry).to(dtype)
        maps = by.values.maps().to(dtype)
        y = attend(weights.to(dtype), keys, maps, by.groups).mT
        return y if by.bias is None else y + by.bias.to(dtype)

    def low(layer: RelativeAttention, x: Tensor) -> Tensor:
        return defined(layer, x, own_weights(layer, x), x.dtype)

    from_weights = defined(layer, x, weights, torch.float64)
    exact, lows = references(low, layer, x, count=_ROUNDINGS)
    return prove(exact, lows, from_weights, y.flatten(2).mT)
