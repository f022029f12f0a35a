"""Sees each product of weights and values while a module computes it, whatever function of torch does."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from convattn.heads.contractions import Contraction, read_contraction, read_sum
from convattn.heads.products import EXCLUDED, Product, fused_product


def _without_override(function: Any) -> Any:
    """Copies a function of torch so that it runs in Python although a mode sees its operations."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


_TORCH_ATTENTION = _without_override(functional.multi_head_attention_forward)
"""The function behind `nn.MultiheadAttention`, whose products are seen like those of other modules."""

_SOFTMAX = ("softmax", "special_softmax")
_POWERS = ("exp", "exp_")
_TIMES = ("mul", "__mul__", "__rmul__")
_ADDING = ("baddbmm", "addmm")
"""Names of functions of torch, which those of its modules and the methods of tensors share."""


class _Trace(NamedTuple):
    """What is known of a tensor that is made of a softmax, or of exponentials."""

    axis: int | None  # That of the keys, counted from the last; None of exponentials
    allowed: Tensor | None  # Which pairs no mask excludes; None if not known
    factors: tuple[Tensor, ...] = ()  # The two of which it is the product element by element


class Operations(TorchFunctionMode):
    """Reports each product of weights and values.

    Weights are what a softmax makes, with its axis as that of the keys, or exponentials. They are followed through all
    operations (a division, dropout, a mix of heads, a gate). A product with what is no parameter, summed over the keys,
    is attention.
    """

    def __init__(self, report: Callable[[Product], Tensor | None]) -> None:
        """Takes the function that is called with each product; what it returns, but None, stands in its place."""
        super().__init__()
        self._report = report
        self._traces: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Computes the operation, and reports it if it is a product."""
        named = dict(kwargs or {})
        if func is functional.multi_head_attention_forward:
            with self:
                return _TORCH_ATTENTION(*args, **named)
        name = getattr(func, "__name__", "")
        tensors = _tensors((args, named))
        sources = [part for part in tensors if part in self._traces]
        if sources and name in _ADDING and sources[0] is not args[0]:
            with self:
                return _add_product(*args, **named)
        nonzero = sources[0] != 0 if sources and len(tensors) > 1 else None
        out = func(*args, **named)
        if func is functional.scaled_dot_product_attention:
            changed = self._report(fused_product(out, *args, **named))
            return out if changed is None else changed
        if name in _SOFTMAX + _POWERS and isinstance(out, Tensor):
            scores = tensors[0]
            allowed = scores > EXCLUDED if scores.is_floating_point() else None
            axis = None if name in _POWERS else _given_axis(scores, args, named)
            self._traces[out] = _Trace(axis, allowed)
        elif sources:
            source = min(sources, key=lambda part: self._traces[part].axis is None)
            return self._follow(func, name, args, named, out, source, nonzero)
        return out

    def _follow(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        named: Mapping[str, Any],
        out: Any,
        source: Tensor,
        nonzero: Tensor | None,
    ) -> Any:
        """Notes what is made of weights, or reports it; returns it, or what stands in its place.

        Weights that an operation with another tensor makes zero are masked; `nonzero` were not before.
        """
        tensors = _tensors((args, named))
        axis = _given_axis(source, args, named)
        trace = self._traces[source]
        contraction = read_contraction(name, args, tensors)
        if name == "sum" and trace.factors and axis is not None:
            contraction = read_sum(trace.factors, axis)
            if contraction is not None and out.ndim == source.ndim:
                return self._contract(contraction, out.squeeze(axis)).unsqueeze(axis)
        if contraction is not None:
            return self._contract(contraction, out)
        results = [part for part in _tensors(out) if part.is_floating_point()]
        masks = [trace.allowed if part.shape == source.shape else None for part in results]
        if masks and masks[0] is not None and nonzero is not None and nonzero.shape == source.shape:
            masks[0] = masks[0] & ~(nonzero & (results[0] == 0))
        moves = all(_is_rearranged(part, source) for part in results)
        if results and moves and trace.allowed is not None and len(tensors) == 1:
            with suppress(RuntimeError):  # of `view`, where the mask lies otherwise in memory
                masks = [*_tensors(func(trace.allowed, *args[1:], **named))]
        factors: tuple[Tensor, ...] = ()
        if name in _TIMES and out.numel() > source.numel():
            factors = tuple(tensors)
        for part, allowed in zip(results, masks, strict=True):
            if trace.axis is None:
                keys = None
                kept = part.numel() == source.numel()
            else:
                keys = _axis_after(part, source, trace.axis, axis)
                kept = keys is not None
            if kept:
                self._traces[part] = _Trace(keys, allowed, factors)
        return out

    def _contract(self, contraction: Contraction, out: Tensor) -> Tensor:
        """Reports a product summed over keys; follows weights of which another axis is summed."""
        traces = [self._traces.get(operand) for operand in contraction.operands]
        both = all(trace is not None and trace.axis is not None for trace in traces)
        for place, trace in enumerate(traces):
            if trace is None:
                continue
            keys = contraction.keys(place, trace.axis)
            values = contraction.operands[1 - place]
            if keys and keys in contraction.result:
                axis = contraction.result.index(keys) - len(contraction.result)
                self._traces[out] = _Trace(axis, None)
            elif both or not keys or isinstance(values, nn.Parameter):
                continue
            elif keys in contraction.names[1 - place]:
                by_hand = trace.axis is None
                product = contraction.product(place, keys, out, trace.allowed, by_hand=by_hand)
                changed = self._report(product)
                if changed is not None:
                    out = product.restore(changed)
        return out


def _given_axis(tensor: Tensor, args: tuple[Any, ...], named: Mapping[str, Any]) -> int | None:
    """Returns the axis that a call is given after a tensor, counted from the last; None for none or several."""
    axis = named.get("dim", args[1] if len(args) > 1 else None)
    if isinstance(axis, list | tuple) and len(axis) == 1:
        (axis,) = axis
    if not isinstance(axis, int) or not tensor.ndim:
        return None
    return axis % tensor.ndim - tensor.ndim


def _is_view(out: Tensor, source: Tensor) -> bool:
    return torch._C._is_alias_of(out, source)  # type: ignore[attr-defined]


def _is_rearranged(out: Tensor, source: Tensor) -> bool:
    """Tells whether a tensor holds numbers of another in another order."""
    if out.shape == source.shape:
        return _is_view(out, source) and out.stride() != source.stride()
    return _is_view(out, source) or out.numel() == source.numel()


def _axis_after(out: Tensor, source: Tensor, keys: int, reduced: int | None) -> int | None:
    """Returns which axis of what is made of a tensor is its axis of keys; None if none is.

    `reduced` is the axis that the operation was given.
    """
    if _is_view(out, source):
        step = source.stride(keys)
        axes = [axis for axis in range(-out.ndim, 0) if out.stride(axis) == step]
        whole = [axis for axis in axes if out.shape[axis] == source.shape[keys]]
        longer = [axis for axis in axes if out.shape[axis] > 1]
        return (whole or longer or [None])[-1]
    if out.ndim == source.ndim - 1 and reduced is not None:
        return None if reduced == keys else keys + (reduced > keys)
    in_place = out.ndim == source.ndim or out.numel() == source.numel()
    if in_place and -keys <= out.ndim and not out.shape[keys] == 1 < source.shape[keys]:
        return keys
    return None


def _add_product(
    added: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Computes what `baddbmm` and `addmm` do in two steps, of which the product is seen."""
    y = alpha * torch.matmul(left, right)
    if beta:  # else what is added may be anything
        y = beta * added + y
    return y if out is None else out.copy_(y)


def _tensors(value: Any) -> list[Tensor]:
    return [part for part in tree_leaves(value) if isinstance(part, Tensor)]
