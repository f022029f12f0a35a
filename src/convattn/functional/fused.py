"""Attention by torch's fused kernel, `scaled_dot_product_attention`, right wherever the kernel is not.

The kernel needs no memory for weights of every query and key. On a CPU it wants queries, keys and values of one width,
and a mask without gradient; it has no second derivatives, and with dropout none of its speed. For these, and for values
wider than queries, weights are computed explicitly: for some images or queries at a time, and again in the backward
pass if all of them would take much memory.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from convattn.functional.positions import FAST_WIDTHS
from convattn.functional.reference import attention_weights, displacement_places
from convattn.functional.torch_modes import backward_to_differentiate, needs_own_operations
from convattn.grid import Axis

PIECE_BYTES = 1 << 22
"""Bytes of scores and weights that are in memory at a time if weights are computed explicitly."""

KEPT_BYTES = 1 << 25
"""Bytes of all weights of a call up to which they are kept for the backward pass: computing them again takes longer."""


class Mask(NamedTuple):
    """Scores to add to those of the content."""

    # some images, some queries → scores, (images, heads, queries, keys)
    scores: Callable[[slice, slice], Tensor]
    numbers: int  # that are in memory for each head and query while they are computed


def displacement_mask(
    query: Float[Tensor, "images heads queries width"],
    axes: Sequence[Axis],
    scores: Sequence[Float[Tensor, "heads _"]],
    features: Sequence[Float[Tensor, "heads_or_one _ width"]],
) -> Mask:
    """Returns the mask s_h(δ) + q·r_δ, of which one may be missing, from tables of all displacements, flattened."""

    def added(images: slice, queries: slice) -> Tensor:
        some = query[images, :, queries]
        numbers = torch.arange(query.shape[2], device=query.device)[queries]
        places = displacement_places(axes, numbers)
        total = some.new_zeros(*some.shape[:3], 1)
        for table in scores:
            total = total + table[:, places]
        for table in features:
            seen = some @ table.mT
            total = total + seen.gather(-1, places.expand(*seen.shape[:2], -1, -1))
        return total

    return Mask(added, sum(table.shape[1] for table in features))


def axes_mask(
    query: Float[Tensor, "images heads queries width"],
    axes: Sequence[Axis],
    scores: Sequence[Float[Tensor, "heads _"]],
    features: Sequence[Float[Tensor, "heads_or_one _ width"]],
) -> Mask:
    """Returns the mask s_h(δ) + q·r_δ, of which one may be missing, from one table of each axis's displacements."""
    numbers = torch.arange(query.shape[2], device=query.device)
    along = torch.unravel_index(numbers, [len(axis.queries) for axis in axes])
    places = [axis.index(query.device) for axis in axes]
    windows = [table[:, index] for table, index in zip(scores, places, strict=False)]

    def added(images: slice, queries: slice) -> Tensor:
        some = query[images, :, queries]
        total = some.new_zeros(*some.shape[:3], 1)
        for number, positions in enumerate(along):
            own = total.new_zeros(())
            if scores:
                own = own + windows[number].index_select(1, positions[queries])
            if features:
                seen = some @ features[number].mT
                index = places[number][positions[queries]]
                own = own + seen.gather(-1, index.expand(*seen.shape[:2], -1, -1))
            total = (total[..., None] + own[..., None, :]).flatten(-2)
        return total

    return Mask(added, sum(table.shape[1] for table in features))


def fused_attention(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    value: Float[Tensor, "images heads_or_one keys inner"],
    mask: Mask | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes softmax(q·k + mask) v.

    Args:
        query: Queries, already scaled.
        key: Keys.
        value: Values, of each head or of all.
        mask: Scores to add to q·k, computed for some images and queries at a time; None adds none.
        dropout: Probability with which a weight is set to zero.

    Returns:
        Means of the values. Derivatives of any order flow to everything; above the first they take the memory of all
        weights.
    """
    inner = value.shape[-1]
    # zeros appended to queries and keys would take longer than all weights of some queries
    widened = query.device.type == "cpu" and inner > query.shape[-1]
    if torch.compiler.is_compiling():
        every = slice(None)
        bias = None if mask is None else mask.scores(every, every)
        query, key, value = _one_width(query, key, value)
        return _of_kernel(query, key, value, bias, dropout)[..., :inner]
    if needs_own_operations(query, key, value):
        return _in_pieces(query, key, value, mask, dropout, again=False)
    if mask is not None or dropout or widened:
        weights = query.shape[:3].numel() * key.shape[2] * query.element_size()
        again = torch.is_grad_enabled() and weights > KEPT_BYTES
        return _in_pieces(query, key, value, mask, dropout, again=again)
    query, key, value = _one_width(query, key, value)
    compute = _Fused.apply if torch.is_grad_enabled() else _of_kernel
    return compute(query, key, value)[..., :inner]


def _one_width(*tensors: Tensor) -> list[Tensor]:
    """Appends zeros to queries, keys and values on a CPU, so that they have one width, at which its kernel is fast."""
    if tensors[0].device.type != "cpu":
        return list(tensors)
    width = max(tensor.shape[-1] for tensor in tensors)
    width += -width % FAST_WIDTHS
    padded = []
    for tensor in tensors:
        missing = width - tensor.shape[-1]
        padded.append(functional.pad(tensor, (0, missing)) if missing else tensor)
    return padded


def _of_kernel(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, dropout: float = 0.0
) -> Float[Tensor, "images heads queries inner"]:
    value = value.expand(-1, query.shape[1], -1, -1)
    return functional.scaled_dot_product_attention(query, key, value, bias, dropout, scale=1.0)


class _Fused(torch.autograd.Function):
    """The kernel, whose gradient can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        leaves, y = _with_graph(inputs)
        # y brings its own graph along, which goes when the tensors saved here go
        ctx.save_for_backward(*inputs, *leaves, y)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = ctx.saved_tensors
        inputs, leaves, y = saved[:3], saved[3:6], saved[6]
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            return tuple(backward_to_differentiate(_explicit, inputs, needed, gradient))
        if y.grad_fn is None:  # a hook for saved tensors, as of a checkpoint, took the graph away
            leaves, y = _with_graph(inputs)
        gradients = torch.autograd.grad(y, leaves, gradient, retain_graph=True)
        return tuple(gradients)


def _with_graph(inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Computes by the kernel, with a graph from copies of the inputs that share their memory."""
    with torch.enable_grad():
        query, key, value = [tensor.detach().requires_grad_() for tensor in inputs]
        return [query, key, value], _of_kernel(query, key, value)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Callable[[], Tensor] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes by weights of every query and key."""
    if mask is None:
        scores = query @ key.mT
    else:
        scores = mask()
        add = torch.baddbmm if needs_own_operations(query, key, scores) else Tensor.baddbmm_
        images = scores.shape[:2]
        scores = add(scores.flatten(0, 1), query.flatten(0, 1), key.mT.flatten(0, 1))
        scores = scores.unflatten(0, images)
    weights = attention_weights(scores)
    weights = functional.dropout(weights, dropout, training=dropout > 0).to(value.dtype)
    if value.shape[1] > 1:
        return weights @ value
    return (weights.flatten(1, 2) @ value[:, 0]).unflatten(1, weights.shape[1:3])


def _in_pieces(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    dropout: float,
    *,
    again: bool,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes explicitly, for as many images, or queries of one image, as fit the memory."""
    heads, queries = query.shape[1:3]
    numbers = 2 * key.shape[2]
    if mask is not None:
        numbers += mask.numbers
    of_query = max(1, heads * numbers * query.element_size())
    rows = max(1, PIECE_BYTES // of_query)
    at_once = max(1, rows // max(1, queries))
    parts = []
    # split, unlike a slice, has a gradient that is not filled with zeros
    batches = zip(*(tensor.split(at_once) for tensor in (query, key, value)), strict=True)
    for number, (own_query, own_key, own_value) in enumerate(batches):
        columns = []
        some_images = slice(number * at_once, (number + 1) * at_once)
        for place, some_queries in enumerate(own_query.split(rows, dim=2)):
            added = None
            if mask is not None:
                some = slice(place * rows, (place + 1) * rows)
                added = partial(mask.scores, some_images, some)
            arguments = (some_queries, own_key, own_value, added, dropout)
            if again:
                mixed = checkpoint(
                    _explicit, *arguments, use_reentrant=False, preserve_rng_state=dropout > 0
                )
            else:
                mixed = _explicit(*arguments)
            columns.append(mixed)
        parts.append(torch.cat(columns, dim=2))
    return torch.cat(parts)
