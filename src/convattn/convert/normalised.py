"""Normalised convolutions, made from attention whose borders count."""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.convert.attention_map import AttentionMap, highest, score_tables, sum_over_keys
from convattn.convert.hard_heads import unit_steps
from convattn.convert.layer_check import STEPS, Promise, RoundingBound, largest, rounding_bound
from convattn.encodings import AxisAdditiveEncoding
from convattn.errors import ConversionError
from convattn.functional.torch_modes import at_least_float32
from convattn.grid import Axis
from convattn.layers import NormalisedConv, RelativeAttention

_DEEPEST = {torch.float32: 80, torch.float64: 600}
"""How many powers of e below its maximum a kernel may be at displacement 0."""


def _rounding(
    conv: NormalisedConv, dtype: torch.dtype, moved: float, rows: Float[Tensor, "heads outputs"]
) -> RoundingBound:
    """Bounds rounding; sums over taps are both divided and divisor, of kernels that an exponential rounds."""
    sums = rows.sum(0).max().item()
    taps = sum(conv.taps) if conv.separable else math.prod(conv.taps)
    bound = rounding_bound(
        dtype,
        conv.bias,
        weights=sums,
        source=sums,
        terms=2 * taps + 4 * conv.dims + conv.num_heads * conv.in_channels + STEPS,
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
    weight = layer.like
    kind = at_least_float32(weight.dtype)
    axes = unit_steps(layer.geometry, sizes)
    # scores of 0 at most
    parts = [(table - highest(table), part) for table, part in score_tables(layer, axes)]
    _require_weight_at_home(layer, parts, kind)
    kernels = [_cut(table, part, mass / len(parts), kind) for table, part in parts]
    conv = NormalisedConv(
        layer.in_channels,
        layer.out_channels,
        layer.num_heads,
        box=[pair for kernel in kernels for pair in kernel.box],
        separable=isinstance(layer.encoding, AxisAdditiveEncoding),
        head_width=layer.head_width,
        groups=layer.groups,
        bias=False,
        device=weight.device,
        dtype=weight.dtype,
        **asdict(layer.geometry),
    )
    factors = [factor for factor in layer.values.factors()[:2] if factor is not None]
    sources = zip(factors, layer.values.parameters(), strict=True)
    with torch.no_grad():
        for value, (factor, own) in zip(conv.values.parameters(), sources, strict=True):
            value.copy_(factor).requires_grad_(own.requires_grad)
        for scores, kernel in zip(conv.scores, kernels, strict=True):
            scores.copy_(kernel.scores)
    conv.bias = copy.deepcopy(layer.bias)
    learns = any(parameter.requires_grad for parameter in layer.encoding.parameters())
    conv.scores.requires_grad_(learns)
    missed = 2 * torch.stack([kernel.missed for kernel in kernels]).sum(0) + 2 * content_share
    moved_scores = 2.01 * torch.stack([kernel.moved for kernel in kernels]).sum(0)
    moved = moved_scores @ rows
    return Promise(
        conv=conv.train(layer.training),
        layer=layer,
        exact=missed.max().item() <= torch.finfo(weight.dtype).eps,
        leak=sum(kernel.missed.max().item() for kernel in kernels) + content_share,
        per_unit=missed @ rows,
        rounding=lambda dtype: _rounding(conv, dtype, largest(moved), rows),
        any_size=False,
        stored=lambda x: moved * largest(x) + _least_rounding(conv, x),
    )


def _require_weight_at_home(
    layer: RelativeAttention,
    parts: Sequence[tuple[Tensor, tuple[Axis, ...]]],
    kind: torch.dtype,
) -> None:
    """Raises unless the dtype holds the weight of every head at displacement 0, which every query sees."""
    scores: Any = 0.0
    for table, part in parts:
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
    kept = replace(attention, weights=attention.shares()).trimmed(mass)
    box = []
    sides = []
    for along, axis in zip(kept, part, strict=True):
        reach = max(-along[0], along[-1], 0)
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
