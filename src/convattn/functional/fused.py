"""Attention of content: by torch's fused kernel where it is fast and right, by explicit weights elsewhere.

The kernel needs no memory for weights of every query and key, but it has no second derivatives. On a CPU it wants
queries, keys and values of one width, and adds a mask that learns slowly. So there, with a mask, with dropout, and with
values wider than queries, weights are computed explicitly, for some queries and heads at a time, and again for the
gradient if they are many.
On a GPU the kernel wants the numbers of each query, key and value side by side, and as many as a multiple of eight; a
mask that learns is taken by one of its roads, some images at a time where it differs between images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.errors import ShapeError, must_be
from convattn.functional.reference import (
    attention_weights,
    displacement_places,
    displacement_scores,
    normal_weights,
    places_along,
    raised,
    scores_of_features,
)
from convattn.functional.torch_modes import (
    FLASH_WIDTH,
    KEPT_BYTES,
    at_least_float32,
    backward_to_differentiate,
    chunks,
    computed_again,
    fitting,
    is_accelerator,
    missing_channels,
    needs_own_operations,
    without_autocast,
)
from convattn.grid import Axis

_TILES = 3
"""Parts of a piece of which one is scores: 1.3 MiB on a CPU, which its cache holds with their weights."""

_COPIES = 4
"""Tensors of the size of all scores of an image that are in memory with a mask of its own on a GPU."""


@final
@dataclass(frozen=True, eq=False)
class Mask:
    """Scores s_h(δ) + q·r_δ to add to those of content, for some queries at a time; one of the terms may be missing.

    Tables are of each axis's displacements, and their terms are added, or one of all displacements, flattened.
    """

    axes: Sequence[Axis]
    own: Sequence[Float[Tensor, "heads _"]]  # s of displacements
    features: Sequence[Float[Tensor, "heads_or_one _ width"]]  # r of displacements

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """All numbers to which gradients flow."""
        return *self.own, *self.features

    def terms(
        self,
        some: slice,
        query: Float[Tensor, "images heads queries width"],
        *tables: Tensor,
    ) -> list[Float[Tensor, "*images heads queries _"]]:
        """Looks up scores of those queries which the slice is: of the keys along each axis, or of all keys.

        They are of each image if they depend on its queries.
        """
        own = tables[: len(self.own)]
        features = tables[len(self.own) :]
        parts: Sequence[Sequence[Axis]] = [(axis,) for axis in self.axes]
        places = places_along(self.axes, some, query.device)
        if max(len(own), len(features)) == 1:
            parts = [self.axes]
            places = [displacement_places(self.axes, some, query.device)]
        terms = []
        for number, (axes, of_axes) in enumerate(zip(parts, places, strict=True)):
            row = query.new_zeros(())
            if own:
                row = _looked_up(own[number], axes, of_axes)
            if features:
                row = row + scores_of_features(query, features[number], of_axes)
            terms.append(row)
        return terms


def _added(
    terms: Sequence[Float[Tensor, "*batch queries _"]],
) -> Float[Tensor, "*batch queries keys"]:
    """Adds the terms of a mask, for all keys."""
    total = terms[0]
    for term in terms[1:]:
        total = (total[..., None] + term[..., None, :]).flatten(-2)
    return total


def _looked_up(
    table: Float[Tensor, "heads _"], axes: Sequence[Axis], places: Tensor
) -> Float[Tensor, "heads queries keys"]:
    """Looks scores up; those of all queries as windows on a GPU, whose gradient is the same each time."""
    if is_accelerator(table.device):
        return displacement_scores(table.unflatten(1, [axis.span for axis in axes]), axes)
    return table.index_select(1, places.flatten()).unflatten(1, places.shape)


def fused_attention(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    value: Float[Tensor, "images heads_or_one keys inner"],
    mask: Mask | None = None,
    dropout: float = 0.0,
    *,
    scale: float = 1.0,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes softmax(scale q·k + mask) v.

    Args:
        query: Queries.
        key: Keys.
        value: Values, of each head or of all.
        mask: Scores to add, computed for some images and queries at a time, from queries that are scaled; None adds
            none.
        dropout: Probability with which a weight is set to zero.
        scale: Factor of q·k.

    Returns:
        Means of the values. Derivatives of any order flow to everything; above the first they take the memory of all
        weights, and with dropout on a GPU there are none.

    Raises:
        ShapeError: Keys have another width than queries, or there are not as many as values.
    """
    if key.shape[-1] != query.shape[-1]:
        raise ShapeError(must_be("key.shape[-1]", str(query.shape[-1]), key.shape[-1]))
    if value.shape[2] != key.shape[2]:
        raise ShapeError(must_be("value.shape[2]", str(key.shape[2]), value.shape[2]))
    tables = () if mask is None else mask.tables
    own_operations = needs_own_operations(query, key, value, *tables)
    if torch.compiler.is_compiling() or (is_accelerator(query.device) and not own_operations):
        return _by_kernel(mask, dropout, scale, query, key, value)
    # zeros appended to queries and keys would take longer than all weights of some queries
    widened = value.shape[-1] > query.shape[-1]
    if mask is None and not (dropout or widened or own_operations):
        return _by_kernel(mask, dropout, scale, query, key, value)
    given = query.dtype
    wide = at_least_float32(given)
    query, key, value = (tensor.to(wide) for tensor in (query, key, value))
    query = (query * scale).contiguous()
    inputs = (query, key, value, *tables)
    with without_autocast(query.device):  # which would take float32 back
        if own_operations:
            return _explicit(mask, dropout, slice(None), *inputs).to(given)
        return _in_pieces(mask, dropout, *inputs).to(given)


def _by_kernel(
    mask: Mask | None,
    dropout: float,
    scale: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes by torch's kernel; with a mask of each image for as many as fit the memory."""
    compiling = torch.compiler.is_compiling()
    pieces = [(query, key, value)]  # whole where a graph must not fix the number of images
    if mask is not None and mask.features and not compiling:
        scores = query.shape[1:3].numel() * key.shape[2]
        images = fitting(query.device, _COPIES * 4 * scores)
        pieces = zip(*(tensor.split(images) for tensor in pieces[0]), strict=True)
    compute = partial(_of_kernel, dropout=dropout)
    if torch.is_grad_enabled() and not dropout and not compiling:
        compute = _Fused.apply
    means = []
    for own in pieces:
        inputs = _fitting_widths(*own)
        if mask is not None:
            scaled = own[0].to(at_least_float32(query.dtype)) * scale
            terms = mask.terms(slice(None), scaled, *mask.tables)
            scores = _added(terms)
            if query.dtype == torch.float16:
                scores = raised(scores)
            inputs.append(scores.to(query.dtype))
        means.append(compute(scale, *inputs))
    y = torch.cat(means) if len(means) > 1 else means[0]
    return y[..., : value.shape[-1]]


def _fitting_widths(*tensors: Tensor) -> list[Tensor]:
    """Appends zeros to queries, keys and values up to widths at which the kernel is fast.

    On a CPU, and for the flash kernel of a GPU, that is one width; without it another kernel of the GPU takes values of
    another width. There numbers of a query, key or value lie side by side.
    """
    device = tensors[0].device
    widths = [tensor.shape[-1] for tensor in tensors]
    flash = tensors[0].dtype.itemsize < 4 and max(widths) <= FLASH_WIDTH
    if flash or not is_accelerator(device):
        widths = [max(widths)] * len(widths)
    padded = []
    for tensor, width in zip(tensors, widths, strict=True):
        missing = width + missing_channels(width, device) - tensor.shape[-1]
        if missing:
            tensor = functional.pad(tensor, (0, missing))  # noqa: PLW2901 - the same numbers
        elif is_accelerator(device) and tensor.stride(-1) != 1:
            tensor = tensor.contiguous()  # noqa: PLW2901
        padded.append(tensor)
    return padded


def _of_kernel(
    scale: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "images heads queries inner"]:
    value = value.expand(-1, query.shape[1], -1, -1)
    if bias is not None:
        bias = bias.expand(len(query), -1, -1, -1)
    return functional.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale)


def _by_definition(
    scale: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes what the kernel does, in operations that torch can differentiate to any order."""
    scores = scale * (query @ key.mT)
    if bias is not None:
        scores = scores + bias
    return attention_weights(scores).to(value.dtype) @ value


class _Fused(torch.autograd.Function):
    """The kernel, whose gradient can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, scale: float, *inputs: Tensor) -> Tensor:
        leaves, y = _with_graph(scale, inputs, ctx.needs_input_grad[1:])
        # y brings its own graph along, which goes when the tensors saved here go
        ctx.save_for_backward(*inputs, *leaves, y)
        ctx.scale = scale
        return y.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *saved, y = ctx.saved_tensors
        inputs = saved[: len(saved) // 2]
        leaves = saved[len(saved) // 2 :]
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            compute = partial(_by_definition, ctx.scale)
            return None, *backward_to_differentiate(compute, inputs, needed, gradient)
        if y.grad_fn is None:  # a hook for saved tensors, as of a checkpoint, took the graph away
            leaves, y = _with_graph(ctx.scale, inputs, needed)
        learning = [leaf for leaf, need in zip(leaves, needed, strict=True) if need]
        found = iter(torch.autograd.grad(y, learning, gradient, retain_graph=True))
        return None, *(next(found) if need else None for need in needed)


def _with_graph(
    scale: float, inputs: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[list[Tensor], Tensor]:
    """Computes by the kernel, with a graph from copies of the inputs that share their memory."""
    leaves = []
    for tensor, need in zip(inputs, needed, strict=True):
        leaves.append(tensor.detach().requires_grad_(need))
    with torch.enable_grad():
        return leaves, _of_kernel(scale, *leaves)


def _in_pieces(
    mask: Mask | None,
    dropout: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *tables: Tensor,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes by weights of as many images, or queries of one image, as fit the memory.

    The gradient computes them again if they are many. With dropout pieces depend on sizes alone, so that a checkpoint
    drops the same weights twice.
    """
    heads, queries = query.shape[1:3]
    keys = key.shape[2]
    again = dropout or torch.is_grad_enabled()
    again = again and query.shape[:3].numel() * keys * query.element_size() > KEPT_BYTES
    # where the gradient computes them again, scores of all heads are in memory: two pieces, beside as many weights
    weights = keys // 2 if again else 0
    # along an axis there are half as many keys as displacements
    looked_up = sum(table.shape[1] for table in tables) // 2
    rows = fitting(query.device, heads * max(weights, looked_up) * query.element_size())
    at_once = max(1, rows // max(1, queries))
    means = []
    images = (tensor.split(at_once) for tensor in (query, key, value))
    for own, *others in zip(*images, strict=True):
        parts = []
        for some in chunks(queries, rows):
            compute = partial(_explicit, mask, dropout, some)
            if again:
                compute = computed_again(compute, draws=dropout > 0)
            parts.append(compute(own[:, :, some], *others, *tables))
        means.append(torch.cat(parts, 2))
    return torch.cat(means)


def _explicit(
    mask: Mask | None,
    dropout: float,
    some: slice,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *tables: Tensor,
) -> Float[Tensor, "images heads queries inner"]:
    """Computes by the weights of those queries which the slice is, of as many at a time as fit the cache."""
    images, heads, queries = query.shape[:3]
    terms = [] if mask is None else mask.terms(some, query, *tables)
    rows = fitting(query.device, _TILES * key.shape[2] * query.element_size())
    at_once = max(1, rows // max(1, queries))
    flat = [
        tensor.expand(images, heads, -1, -1).flatten(0, 1)
        for tensor in (key.mT, value, query, *terms)
    ]
    means = []
    for keys, values, *others in zip(*(tensor.split(at_once) for tensor in flat), strict=True):
        for tile in zip(*(tensor.split(rows, 1) for tensor in others), strict=True):
            of_tile = _of_tile(dropout, keys, values, *tile)
            means.append(of_tile.flatten(0, 1))
    return torch.cat(means).unflatten(0, (images, heads, queries))


def _of_tile(
    dropout: float,
    key: Tensor,
    value: Tensor,
    query: Tensor,
    *terms: Tensor,
) -> Float[Tensor, "sequences queries inner"]:
    """Computes by the weights of all that is given."""
    if terms:
        scores = _added(terms).contiguous()  # images may share the term of a single head
        is_kept = torch.is_grad_enabled() or needs_own_operations(scores, query, key)
        scores = torch.baddbmm(scores, query, key, out=None if is_kept else scores)
    else:
        scores = torch.bmm(query, key)
    weights = normal_weights(scores, owned=True)
    return functional.dropout(weights, dropout, training=dropout > 0) @ value
