"""Attention by torch's fused kernel, `scaled_dot_product_attention`, right wherever the kernel is not.

The kernel needs no memory for weights of every query and key. On a CPU it is taken only if queries, keys and values
have one width, and a mask no gradient; it has no second derivatives, and with dropout none of its speed. For these the
weights are computed explicitly: some images or some queries at a time, and again in the backward pass.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from convattn.functional.reference import attention_weights
from convattn.functional.torch_modes import backward_to_differentiate, needs_own_operations
from convattn.functional.workspace import chunks

PIECE_BYTES = 1 << 22
"""Bytes of scores and weights that are in memory at a time if weights are computed explicitly: a step of six heads of
width 32 takes 1.2 to 1.3 times as long with 32 MiB and 1.7 to 2 times with 1 MiB (14 x 14 to 38 x 38, one core)."""


class Mask(NamedTuple):
    """Scores to add to those of the content."""

    # some images, some queries → scores, (images or one, heads, queries, keys)
    scores: Callable[[slice, slice], Tensor]
    numbers: int  # that are in memory for each head and query while they are computed


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
    value = value.expand(-1, query.shape[1], -1, -1)
    inner = value.shape[-1]
    if torch.compiler.is_compiling():
        every = slice(None)
        bias = None if mask is None else mask.scores(every, every)
        return _of_kernel(*_one_width(query, key, value), bias, dropout)[..., :inner]
    if needs_own_operations(query, key, value):
        return _in_pieces(query, key, value, mask, dropout, again=False)
    if mask is not None or dropout:
        return _in_pieces(query, key, value, mask, dropout, again=torch.is_grad_enabled())
    equal = _one_width(query, key, value)
    if not torch.is_grad_enabled():
        return _of_kernel(*equal)[..., :inner]
    return _Fused.apply(*equal)[..., :inner]


def _one_width(*tensors: Tensor) -> list[Tensor]:
    """Appends zeros to queries, keys and values on a CPU, so that all have the width that torch's kernel asks for."""
    if tensors[0].device.type != "cpu":
        return list(tensors)
    width = max(tensor.shape[-1] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = width - tensor.shape[-1]
        padded.append(functional.pad(tensor, (0, missing)) if missing else tensor)
    return padded


def _of_kernel(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, dropout: float = 0.0
) -> Float[Tensor, "images heads queries inner"]:
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
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        return leaves, _of_kernel(*leaves)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Callable[[], Tensor] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes by weights of every query and key."""
    scores = query @ key.mT
    if mask is not None:
        scores = scores + mask()
    weights = attention_weights(scores)
    return functional.dropout(weights, dropout, training=dropout > 0) @ value


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
    images, heads, queries, _ = query.shape
    numbers = 2 * key.shape[2]
    if mask is not None:
        numbers += mask.numbers
    of_query = max(1, heads * numbers * query.element_size())
    rows = max(1, PIECE_BYTES // of_query)
    at_once = max(1, rows // max(1, queries))
    parts = []
    for some_images in chunks(max(images, 1), at_once):
        own_key, own_value = key[some_images], value[some_images]
        columns = []
        for some in chunks(queries, rows):
            added = None if mask is None else partial(mask.scores, some_images, some)
            arguments = (query[some_images, :, some], own_key, own_value, added, dropout)
            if again:
                mixed = checkpoint(
                    _explicit, *arguments, use_reentrant=False, preserve_rng_state=dropout > 0
                )
            else:
                mixed = _explicit(*arguments)
            columns.append(mixed)
        parts.append(torch.cat(columns, dim=2))
    return torch.cat(parts)
