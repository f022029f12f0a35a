"""Normalised convolutions: made from attention whose borders count, and made attention again.

Nothing else in this room tells a `NormalisedConv` from a convolution of torch.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.attention_map import (
    AttentionMap,
    highest,
    score_tables,
    sum_over_keys,
    with_axes,
)
from convattn.convert.certificate import Certificate
from convattn.convert.hard_heads import unit_steps
from convattn.convert.promise import (
    STEPS,
    Promise,
    RoundingBound,
    attention_rounding,
    certify_layer,
    largest,
    rounding_bound,
    smallest_image,
    weight_of,
)
from convattn.convert.surgery import keep_random_state
from convattn.convert.taps import why_not_numbers
from convattn.encodings import AxisAdditiveEncoding, LearnedAxial, LearnedTable
from convattn.encodings.learned_table import table_extent
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.grid import Axis, PerAxis, axis_lists
from convattn.layers import (
    NormalisedConv,
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

ATTENTION_LAYERS: tuple[type[RelativeAttention], ...] = (
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
"""The attention layers of this library. Subclasses may compute something else."""

_OUTSIDE = 800.0
"""How far the scores outside a kernel are below those inside: e^-800 is 0 in float64, too."""

_DEEPEST = {torch.float32: 80, torch.float64: 600}
"""How many powers of e below its maximum a kernel may be at displacement 0."""


def is_normalised(module: nn.Module) -> TypeGuard[NormalisedConv]:
    """Tells whether a module is a normalised convolution."""
    return isinstance(module, NormalisedConv)


# --- To attention -----------------------------------------------------------------------------------------------------


def attention_of_normalised(
    conv: NormalisedConv, spatial: PerAxis | None, impl: str
) -> tuple[RelativeAttention, Certificate]:
    """Makes the attention whose scores are those of a normalised convolution, and so low outside that they count 0."""
    for name, parameter in conv.named_parameters():
        reason = why_not_numbers(name, parameter)
        if reason is not None:
            raise UnsupportedModelError(f"cannot convert NormalisedConv: {reason}")
    sizes = conv.frozen_size
    if spatial is not None:
        sizes = axis_lists("spatial", spatial, conv.dims, least=1)
    compared = []  # sizes with pixels that see the whole box, and others
    for size, (low, high) in zip(smallest_image(conv.geometry), conv.box, strict=True):
        compared.append(max(size, high - low + 3))
    unfrozen = copy.deepcopy(conv)
    unfrozen.divisors = unfrozen.frozen_size = None
    options = conv.options()
    del options["separable"], options["box"]
    with keep_random_state(conv):
        encoding = _tables(conv, _extent(conv, sizes, compared))
        layer = ATTENTION_LAYERS[conv.dims - 1](encoding=encoding, impl=impl, **options)
    layer.values = unfrozen.values
    layer.bias = unfrozen.bias
    layer.encoding = encoding.requires_grad_(conv.scores[0].requires_grad)
    layer.train(conv.training)
    if sizes is not None:
        compared = [min(pair) for pair in zip(compared, sizes, strict=True)]
    return layer, _certify_attention(unfrozen, layer, compared)


def _extent(
    conv: NormalisedConv, sizes: Sequence[int] | None, compared: Sequence[int]
) -> list[int]:
    """Returns how far a table must reach along each axis to hold images of given sizes, and the kernel."""
    common: Sequence[int] = (1,) * conv.dims
    if sizes is None:
        common = table_extent(None, conv.dims)
    extent = []
    axes = conv.geometry.axes(sizes or compared)
    for axis, least, (low, high) in zip(axes, common, conv.box, strict=True):
        extent.append(max(least, 1 - axis.lowest, 1 + axis.highest, 1 - low, 1 + high))
    return extent


def _tables(conv: NormalisedConv, extent: Sequence[int]) -> LearnedAxial | LearnedTable:
    """Makes the encoding whose tables hold the scores of a kernel, and low ones around them."""
    heads = conv.num_heads
    dims = conv.dims
    scores = [table.detach() for table in conv.scores]
    spread = torch.zeros_like(scores[0].flatten(1)[:, 0])  # of all scores that a head sees
    for table in scores:
        flat = table.flatten(1)
        spread = spread + flat.amax(1) - flat.amin(1)
    parts = [tuple(range(dims))]
    if conv.separable:
        parts = [(axis,) for axis in range(dims)]
    tables = []
    for table, part in zip(scores, parts, strict=True):
        low = highest(table) - with_axes(spread, len(part)) - _OUTSIDE
        sizes = [2 * extent[axis] - 1 for axis in part]
        whole = low.repeat(1, *sizes)
        inside = []
        for axis in part:
            first, last = conv.box[axis]
            middle = extent[axis] - 1
            inside.append(slice(middle + first, middle + last + 1))
        whole[(slice(None), *inside)] = table
        tables.append(whole)
    if not conv.separable:
        encoding = LearnedTable(heads, dims, extent=extent)
        encoding.scores = nn.Parameter(tables[0])
        return encoding
    axial = LearnedAxial(heads, dims, extent=extent, width=heads)
    axial.tables = nn.ParameterList(table.T.contiguous() for table in tables)
    one_of_each = torch.eye(heads).to(scores[0])
    axial.head_vectors = nn.Parameter(one_of_each.repeat(dims, 1, 1))
    return axial


def _certify_attention(
    conv: NormalisedConv, layer: RelativeAttention, sizes: Sequence[int]
) -> Certificate:
    """Compares a normalised convolution with the attention made from it, on images of given sizes."""
    scores = {
        "keys": _summed_taps(conv),
        "largest_score": max(largest(table) for table in conv.scores),
    }
    exact = copy.deepcopy(layer).double()
    promise = Promise(
        conv=conv,
        layer=layer,
        to_attention=True,
        kernel_size=conv.taps,
        exact=True,
        leak=0.0,
        per_unit=torch.zeros(conv.out_channels),
        rounding=attention_rounding(layer, **scores),
        exact_rounding=attention_rounding(exact, **scores),
        normalised=True,
    )
    return certify_layer(promise, sizes)


def _summed_taps(conv: NormalisedConv) -> int:
    """Returns how many taps a head sums, one axis after the other or all together."""
    return sum(conv.taps) if conv.separable else math.prod(conv.taps)


# --- From attention ---------------------------------------------------------------------------------------------------


def _rounding(
    conv: NormalisedConv, dtype: torch.dtype, moved: float, rows: Float[Tensor, "heads outputs"]
) -> RoundingBound:
    """Bounds rounding; sums over taps are both divided and divisor, of kernels that an exponential rounds."""
    sums = rows.sum(0).max().item()
    bound = rounding_bound(
        dtype,
        conv.bias,
        weights=sums,
        source=sums,
        terms=2 * _summed_taps(conv) + 4 * conv.dims + conv.num_heads * conv.in_channels + STEPS,
        writes=conv.num_heads + STEPS,
    )
    return bound._replace(per_unit=bound.per_unit + moved)


def _least_rounding(conv: NormalisedConv, x: Tensor) -> Float[Tensor, " outputs"]:
    """Returns eps √n Σ|terms| of the largest output of each channel, a sum of n terms, one per head and channel."""
    absolute = copy.deepcopy(conv).double()
    for parameter in (*absolute.values.parameters(), absolute.bias):
        if parameter is not None:
            parameter.abs_()
    terms = absolute.num_heads * absolute.in_channels // absolute.groups
    sums = absolute(x.double().abs()).transpose(0, 1).flatten(1).amax(1)
    return torch.finfo(x.dtype).eps * math.sqrt(terms) * sums


class _CutKernel(NamedTuple):
    """The scores of heads along some axes, cut to a box."""

    box: list[tuple[int, int]]  # Lowest and highest displacement of each axis
    scores: Float[Tensor, "heads *taps"]  # In the convolution's dtype
    missed: Float[Tensor, " heads"]  # Largest share of a query's attention outside the box
    moved: Float[Tensor, " heads"]  # Largest share that rounding of the scores moves


def normalise(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    mass: float,
    rows: Float[Tensor, "heads outputs"],
    content_share: float,
) -> Promise:
    """Makes the normalised convolution of heads that need not be hard.

    The box of the kernels leaves at most `mass` of the attention of any query outside. A query at the border may see
    only the tail of a kernel, of which the displacement 0 is the highest part that it sees in any case; numbers that
    are too small there for the dtype raise ConversionError.
    """
    weight = weight_of(layer)
    kind = torch.promote_types(weight.dtype, torch.float32)
    axes = unit_steps(layer.geometry, sizes)
    tables, parts = score_tables(layer.encoding, axes, weight.device)
    tables = [table - highest(table) for table in tables]  # 0 at most
    _require_weight_at_home(layer, tables, parts, kind)
    kernels = []
    for table, part in zip(tables, parts, strict=True):
        kernels.append(_cut(table, part, mass / len(parts), kind))
    conv = NormalisedConv(
        layer.in_channels,
        layer.out_channels,
        layer.num_heads,
        box=[pair for kernel in kernels for pair in kernel.box],
        separable=isinstance(layer.encoding, AxisAdditiveEncoding),
        head_width=layer.head_width,
        groups=layer.groups,
        bias=layer.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
        **asdict(layer.geometry),
    )
    _copy_weights(layer, conv)
    with torch.no_grad():
        for scores, kernel in zip(conv.scores, kernels, strict=True):
            scores.copy_(kernel.scores)
    learns = any(parameter.requires_grad for parameter in layer.encoding.parameters())
    conv.scores.requires_grad_(learns)
    missed = 2 * torch.stack([kernel.missed for kernel in kernels]).sum(0) + 2 * content_share
    moved_scores = 2.01 * torch.stack([kernel.moved for kernel in kernels]).sum(0)
    moved = moved_scores @ rows
    return Promise(
        conv=conv.train(layer.training),
        layer=layer,
        to_attention=False,
        kernel_size=conv.taps,
        exact=missed.max().item() <= torch.finfo(weight.dtype).eps,
        leak=sum(kernel.missed.max().item() for kernel in kernels) + content_share,
        per_unit=missed @ rows,
        rounding=_rounding(conv, weight.dtype, largest(moved), rows),
        exact_rounding=_rounding(conv, torch.float64, largest(moved), rows),
        any_size=False,
        normalised=True,
        stored=lambda x: moved * largest(x) + _least_rounding(conv, x),
    )


def _copy_weights(layer: RelativeAttention, conv: NormalisedConv) -> None:
    factors = [factor for factor in layer.values.factors()[:2] if factor is not None]
    sources = zip(factors, layer.values.parameters(), strict=True)
    with torch.no_grad():
        for value, (factor, own) in zip(conv.values.parameters(), sources, strict=True):
            value.copy_(factor).requires_grad_(own.requires_grad)
        if conv.bias is not None and layer.bias is not None:
            conv.bias.copy_(layer.bias).requires_grad_(layer.bias.requires_grad)


def _require_weight_at_home(
    layer: RelativeAttention,
    tables: Sequence[Tensor],
    parts: Sequence[tuple[Axis, ...]],
    kind: torch.dtype,
) -> None:
    """Raises unless the dtype holds the weight of every head at displacement 0, which every query sees."""
    scores: Any = 0.0
    for table, part in zip(tables, parts, strict=True):
        middle = [-axis.lowest for axis in part]
        scores = scores + table[(..., *middle)]
    depth = -scores.min().item()
    if not depth <= _DEEPEST[kind]:
        raise ConversionError(
            f"cannot convert {type(layer).__name__} exactly at borders: there a head looks so far beyond the image that"
            f" what it sees has e^-{depth:.4g} of its weight, and {kind} holds e^-{_DEEPEST[kind]} at least"
        )


def _cut(table: Tensor, part: tuple[Axis, ...], mass: float, kind: torch.dtype) -> _CutKernel:
    """Cuts scores to a box that leaves at most `mass` of any query's attention outside."""
    attention = AttentionMap.of_scores(table, part)
    low, high = replace(attention, weights=attention.shares()).trimmed(mass)
    box = []
    sides = []
    for first, last, axis in zip(low, high, part, strict=True):
        reach = max(-first, last, 0)
        start = max(-reach, axis.lowest)
        stop = min(reach, axis.highest)
        box.append((start, stop))
        sides.append(slice(start - axis.lowest, stop - axis.lowest + 1))
    inside = (slice(None), *sides)
    scores = table[inside].to(kind)
    rounded = torch.zeros_like(table)
    rounded[inside] = (scores.double() - table[inside]).abs().nan_to_num()
    outside = attention.weights.clone()
    outside[inside] = 0
    shares = []
    for weights in (outside, attention.weights * rounded):
        share = sum_over_keys(weights, part) / attention.totals
        shares.append(share.flatten(1).amax(1))
    return _CutKernel(box, scores, *shares)
