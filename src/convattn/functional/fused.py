"""Attention of content: by torch's fused kernel where it is fast and right, by explicit weights elsewhere.

The kernel needs no memory for weights of every query and key. It adds a mask that learns in none of its fast roads,
on a CPU it wants queries, keys and values of one width, and it has no second derivatives. So with a mask, and with
values wider than queries, weights are computed explicitly, for some queries at a time, and again for the gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.errors import ShapeError, must_be
from convattn.functional.reference import attention_weights, displacement_places
from convattn.functional.torch_modes import (
    backward_to_differentiate,
    missing_channels,
    needs_own_operations,
)
from convattn.functional.workspace import chunks
from convattn.grid import Axis

PIECE_BYTES = 1 << 22
"""Bytes of scores and weights that are in memory at a time if weights are computed explicitly."""

KEPT_BYTES = 1 << 26
"""Bytes of all weights of a call up to which they are kept for the gradient: a step takes 0.8 to 0.9 of the time."""


class Mask(NamedTuple):
    """Scores to add to those of the content: a sum over axes, or of one axis that holds all keys.

    Attributes:
        rows: Takes the slice that some queries are, these queries, (images, heads, queries, width), and the tables;
            returns (images or one, heads, queries, keys along each axis, side by side).
        keys: Number of keys along each axis.
        tables: What the rows are looked up in.
        numbers: How many products with each query are in memory beside the scores; with 0 queries play no part.
    """

    rows: Callable[..., Tensor]
    keys: tuple[int, ...]
    tables: tuple[Tensor, ...]
    numbers: int

    def scores(
        self, some: slice, query: Tensor, *tables: Tensor
    ) -> Float[Tensor, "images heads queries keys"]:
        """Returns the scores of some queries and every key."""
        total = query.new_zeros(*query.shape[:3], 1)
        for own in self.rows(some, query, *tables).split(self.keys, dim=-1):
            total = (total[..., None] + own[..., None, :]).flatten(-2)
        return total

    def backward(
        self,
        some: slice,
        query: Tensor,
        tables: Sequence[Tensor],
        needed: Sequence[bool],
        upstream: Tensor,
    ) -> list[Tensor | None]:
        """Returns the gradients of some queries and the tables; `needed` tells of query, key, value and tables."""
        wanted = (needed[0] and self.numbers > 0, *needed[3:])
        if not any(wanted):
            return [None] * len(wanted)
        by_axis = upstream.unflatten(-1, self.keys)
        sums = []
        for axis in range(len(self.keys)):
            others = [3 + other for other in range(len(self.keys)) if other != axis]
            sums.append(by_axis.sum(others) if others else by_axis)
        rows = partial(self.rows, some)
        along = torch.cat(sums, dim=-1)
        return backward_to_differentiate(rows, (query, *tables), wanted, along)


def displacement_mask(
    axes: Sequence[Axis],
    scores: Sequence[Float[Tensor, "heads _"]],
    features: Sequence[Float[Tensor, "heads_or_one _ width"]],
) -> Mask:
    """Returns the mask s_h(δ) + q·r_δ, of which one may be missing.

    Tables are of each axis's displacements, and their terms are added, or one of all displacements, flattened.
    """
    device = (*scores, *features)[0].device
    numbers = sum(table.shape[1] for table in features)
    if max(len(scores), len(features)) == len(axes) > 1:
        places = [axis.index(device) for axis in axes]
        windows = [table[:, index] for table, index in zip(scores, places, strict=False)]
        rows = partial(_rows_of_axes, axes, places, len(windows))
        return Mask(rows, tuple(axis.keys for axis in axes), (*windows, *features), numbers)
    rows = partial(_rows_of_all, axes, len(scores))
    return Mask(rows, (prod(axis.keys for axis in axes),), (*scores, *features), numbers)


def _rows_of_axes(
    axes: Sequence[Axis],
    places: Sequence[Tensor],
    scored: int,
    some: slice,
    query: Tensor,
    *tables: Tensor,
) -> Float[Tensor, "images heads queries _"]:
    """Looks up the scores of an axis in (heads, queries along it, keys along it), those of features by displacement."""
    sizes = [len(axis.queries) for axis in axes]
    numbers = torch.arange(prod(sizes), device=query.device)[some]
    rows = []
    for axis, along in enumerate(torch.unravel_index(numbers, sizes)):
        own = query.new_zeros(*query.shape[:3], 1)
        if scored:
            own = own + tables[axis].index_select(1, along)
        if len(tables) > scored:
            own = own + _looked_up(query, tables[scored + axis], places[axis][along])
        rows.append(own)
    return torch.cat(rows, dim=-1)


def _rows_of_all(
    axes: Sequence[Axis], scored: int, some: slice, query: Tensor, *tables: Tensor
) -> Float[Tensor, "images heads queries keys"]:
    """Looks up scores of all axes at once, by displacement."""
    queries = prod(len(axis.queries) for axis in axes)
    places = displacement_places(axes, torch.arange(queries, device=query.device)[some])
    total = query.new_zeros(*query.shape[:3], 1)
    for table in tables[:scored]:
        total = total + table[:, places]
    for table in tables[scored:]:
        total = total + _looked_up(query, table, places)
    return total


def _looked_up(
    query: Tensor, features: Tensor, places: Tensor
) -> Float[Tensor, "images heads queries keys"]:
    """Computes q·r_δ for every displacement, and looks those of each query up."""
    seen = query @ features.mT
    return seen.gather(-1, places.expand(*seen.shape[:2], -1, -1))


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

    Raises:
        ShapeError: Keys have another width than queries, or there are not as many as values.
    """
    if key.shape[-1] != query.shape[-1]:
        raise ShapeError(must_be("key.shape[-1]", str(query.shape[-1]), key.shape[-1]))
    if value.shape[2] != key.shape[2]:
        raise ShapeError(must_be("value.shape[2]", str(key.shape[2]), value.shape[2]))
    inner = value.shape[-1]
    tables = () if mask is None else mask.tables
    # zeros appended to queries and keys would take longer than all weights of some queries
    widened = query.device.type == "cpu" and inner > query.shape[-1]
    if torch.compiler.is_compiling():
        bias = None if mask is None else mask.scores(slice(None), query, *tables)
        query, key, value = _one_width(query, key, value)
        return _of_kernel(query, key, value, bias, dropout)[..., :inner]
    own_operations = needs_own_operations(query, key, value, *tables)
    if mask is None and not (dropout or widened or own_operations):
        query, key, value = _one_width(query, key, value)
        compute = _Fused.apply if torch.is_grad_enabled() else _of_kernel
        return compute(query, key, value)[..., :inner]
    given, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
    query, key, value = (tensor.to(wide) for tensor in (query, key, value))
    if dropout or own_operations:
        y = _explicit(mask, dropout, query, key, value, *tables)
    else:
        weights = query.shape[:3].numel() * key.shape[2] * query.element_size()
        keeps = torch.is_grad_enabled() and weights <= KEPT_BYTES
        y = _InPieces.apply(mask, keeps, query, key, value, *tables)
    return y.to(given)


def _one_width(*tensors: Tensor) -> list[Tensor]:
    """Appends zeros to queries, keys and values on a CPU, so that they have one width, at which its kernel is fast."""
    device = tensors[0].device
    if device.type != "cpu":
        return list(tensors)
    width = max(tensor.shape[-1] for tensor in tensors)
    width += missing_channels(width, device)
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
            compute = partial(_explicit, None, 0.0)
            return tuple(backward_to_differentiate(compute, inputs, needed, gradient))
        if y.grad_fn is None:  # a hook for saved tensors, as of a checkpoint, took the graph away
            leaves, y = _with_graph(inputs)
        gradients = torch.autograd.grad(y, leaves, gradient, retain_graph=True)
        return tuple(gradients)


def _with_graph(inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Computes by the kernel, with a graph from copies of the inputs that share their memory."""
    with torch.enable_grad():
        query, key, value = [tensor.detach().requires_grad_() for tensor in inputs]
        return [query, key, value], _of_kernel(query, key, value)


class _InPieces(torch.autograd.Function):
    """Attention by explicit weights of some queries at a time, kept or computed again for the gradient."""

    @staticmethod
    def forward(ctx: Any, mask: Mask | None, keeps: bool, *inputs: Tensor) -> Tensor:
        query, _, value, *_ = inputs
        y = query.new_empty(*query.shape[:3], value.shape[-1])
        kept = []
        for some, places in _pieces(mask, inputs):
            parts = [tensor[place] for tensor, place in zip(inputs, places, strict=True)]
            weights = _weights(mask, some, parts[0], parts[1], *parts[3:])
            y[places[0]] = _mixed(weights, parts[2])
            if keeps:
                kept.append(weights)
        ctx.mask = mask
        ctx.save_for_backward(*inputs, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        mask, saved, needed = ctx.mask, ctx.saved_tensors, ctx.needs_input_grad[2:]
        inputs, kept = saved[: len(needed)], saved[len(needed) :]
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            compute = partial(_explicit, mask, 0.0)
            return None, None, *backward_to_differentiate(compute, inputs, needed, gradient)
        sums = [torch.zeros_like(tensor) for tensor in inputs]
        for number, (some, places) in enumerate(_pieces(mask, inputs)):
            parts = [tensor[place] for tensor, place in zip(inputs, places, strict=True)]
            query, key, value, *tables = parts
            weights = kept[number] if kept else _weights(mask, some, query, key, *tables)
            upstream = gradient[places[0]]
            by_scores = _by_weights(upstream, value)
            # the softmax's gradient, exactly 0 where weights are exactly 0 and 1
            by_scores *= weights
            by_scores.addcmul_(weights, by_scores.sum(-1, keepdim=True), value=-1)
            # of narrow queries and keys these products take a quarter of the time of by_scores @ key
            by_query, by_key = (key.mT @ by_scores.mT).mT, (query.mT @ by_scores).mT
            found = [by_query, by_key, _by_value(weights, upstream, value)]
            if mask is not None:
                seen, *by_tables = mask.backward(some, query, tables, needed, by_scores)
                found += by_tables
                if seen is not None:
                    found[0] += seen
            for total, place, own in zip(sums, places, found, strict=True):
                if own is not None:
                    total[place] += own
        return None, None, *sums


def _pieces(mask: Mask | None, inputs: Sequence[Tensor]) -> Iterator[tuple[slice, list[Any]]]:
    """Cuts a call into as many images, or queries of one image, as fit the memory.

    Yields the queries, and where they, their keys, their values and all tables are in the inputs.
    """
    query, key, _, *tables = inputs
    heads, queries = query.shape[1:3]
    numbers = 2 * key.shape[2]
    if mask is not None:
        numbers += mask.numbers
    rows = max(1, PIECE_BYTES // max(1, heads * numbers * query.element_size()))
    at_once = max(1, rows // max(1, queries))
    for images, some in product(chunks(len(query), at_once), chunks(queries, rows)):
        yield some, [(images, slice(None), some), images, images, *[...] * len(tables)]


def _explicit(
    mask: Mask | None, dropout: float, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor
) -> Float[Tensor, "images heads queries inner"]:
    """Computes by all weights at once."""
    weights = _weights(mask, slice(None), query, key, *tables)
    return _mixed(functional.dropout(weights, dropout, training=dropout > 0), value)


def _weights(
    mask: Mask | None, some: slice, query: Tensor, key: Tensor, *tables: Tensor
) -> Float[Tensor, "images heads queries keys"]:
    """Computes the weights of every key and of those queries which the slice is."""
    if mask is None:
        return attention_weights(query @ key.mT)
    added = mask.scores(some, query, *tables)
    add = torch.baddbmm if needs_own_operations(query, key, added) else Tensor.baddbmm_
    scores = add(added.flatten(0, 1), query.flatten(0, 1), key.mT.flatten(0, 1))
    return attention_weights(scores).unflatten(0, added.shape[:2])


def _mixed(
    weights: Float[Tensor, "images heads queries keys"], value: Tensor
) -> Float[Tensor, "images heads queries inner"]:
    """Takes the means of values, of each head or of all."""
    if value.shape[1] > 1:
        return weights @ value
    return (weights.flatten(1, 2) @ value[:, 0]).unflatten(1, weights.shape[1:3])


def _by_value(
    weights: Float[Tensor, "images heads queries keys"], upstream: Tensor, value: Tensor
) -> Float[Tensor, "images heads_or_one keys inner"]:
    """Returns the gradient of `_mixed` with respect to the values."""
    if value.shape[1] > 1:
        return weights.mT @ upstream
    return (weights.flatten(1, 2).mT @ upstream.flatten(1, 2))[:, None]


def _by_weights(
    upstream: Float[Tensor, "images heads queries inner"], value: Tensor
) -> Float[Tensor, "images heads queries keys"]:
    """Returns the gradient of `_mixed` with respect to the weights."""
    if value.shape[1] > 1:
        return upstream @ value.mT
    return (upstream.flatten(1, 2) @ value[:, 0].mT).unflatten(1, upstream.shape[1:3])
