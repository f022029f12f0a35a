"""The certificates of single layers, in both directions: a bound, and what was measured on random images."""

import copy
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.convert.certificate.bounds import RoundingBound, attention_rounding, convolution_rounding
from convattn.convert.certificate.trial import (
    SEED,
    describe_attention,
    draw_images,
    in_one_product,
    largest,
    lowest_sharpness,
    smallest_image,
    softmax_copy,
    tap_by_tap,
)
from convattn.convert.classes import AnyConvolution, TransposedConvolution
from convattn.convert.taps import read_taps
from convattn.functional.autocast import without_autocast
from convattn.functional.rounding import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.layers import RelativeAttention
from convattn.records import Certificate, Verdict
from convattn.sealed import weights_digest

_MANY_TAPS = 400
"""Taps beyond which a computation tap by tap takes too long."""


class Promise(NamedTuple):
    """What a conversion promises before anything is measured."""

    leak: float  # share of the attention off the taps, or outside the window
    per_unit: float  # a-priori error bound for inputs of absolute value ≤ 1
    exact: bool  # whether rounding is the only loss
    any_size: bool = True  # whether the bound holds for images of all sizes


def certify_attention(
    conv: AnyConvolution, layer: RelativeAttention, promise: Promise, discarded: tuple[tuple[float, ...], ...]
) -> Certificate:
    """Runs a convolution and the layer made from it on random images, and records how much they differ.

    The layer runs twice: as a real softmax, and by the path that it takes by itself.

    `discarded` holds the singular values left out, per head.
    """
    sizes = [size + 3 + axis for axis, size in enumerate(smallest_image(layer.geometry))]  # all different
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    attention = softmax_copy(layer, x.dtype)
    if attention.content is not None:
        attention.impl = "reference"
    with torch.no_grad(), without_autocast(x.device):
        high = copy.deepcopy(conv).double().cpu()(x.double().cpu())
        made, ran, taps = attention(x), layer(x), read_taps(conv)
        lows = [tap_by_tap(taps, x), in_one_product(taps, x), conv(x), *(conv(other) for other in _moved(x))]
    limit, bound = attention_rounding(layer, conv), promise.per_unit * largest(x)
    measured = max(largest(y.double().cpu() - high) for y in (made, ran))
    rounding = min(rounding_budget(high, lows), limit.on(largest(x)))
    not_covered = []
    if lowest_sharpness(layer) is not None:
        not_covered.append("centres rounded when the layer is cast to a narrower dtype")
    if max(layer.geometry.input_dilation) > 1 or isinstance(conv, TransposedConvolution):
        not_covered.append("the argument output_size of forward: output_padding is used instead")
    return Certificate(
        direction="conv_to_attention",
        source=repr(conv),
        result=describe_attention(layer),
        bound=bound,
        measured_error=measured,
        rounding=rounding,
        discarded=discarded,
        largest=largest(high),
        verdict=_verdict(promise, measured, bound, rounding),
        not_covered=tuple(not_covered),
        weights=weights_digest(layer),
        **_common_fields(layer, x, promise, limit),
    )


def certify_convolution(
    layer: RelativeAttention,
    conv: AnyConvolution,
    kernel: Float[Tensor, "outputs channels *taps"],
    rows: Float[Tensor, "heads outputs"],
    sizes: tuple[int, ...],
    promise: Promise,
) -> Certificate:
    """Runs a layer and the convolution made from it on random images of `sizes`, and records how much they differ.

    Two questions are asked. First, does the convolution compute the layer's function? Both run in float64, where they
    may differ by the bound and by the rounding of the kernel. Second, is its result as good as its dtype allows? It may
    lose what other ways of computing it lose (torch's own convolution on this processor is one of them), but never more
    than the a-priori bound on rounding.

    `kernel` is the kernel before rounding and `rows` is Σ_i |W_h[o, i]|, both in float64.
    """
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    with torch.no_grad(), without_autocast(x.device):
        exact_conv = copy.deepcopy(conv).double()
        high, high_conv = softmax_copy(layer, torch.float64)(x.double()), exact_conv(x.double())
        attention, made = softmax_copy(layer, x.dtype), conv(x)
        lows = [attention(x), *(attention(other) for other in _moved(x))]
        roads = [made, summed_otherwise(conv, x), *(conv(other) for other in _moved(x))]
    unit, limit = largest(x), convolution_rounding(conv, kernel, rows)
    budget = max(rounding_budget(high, lows), rounding_budget(high_conv, roads))
    rounded = largest((kernel - kernel.to(x.dtype).double()).abs().flatten(1).sum(1)) * unit
    measured, moved, bound = largest(made.double() - high), largest(high_conv - high), promise.per_unit * unit
    rounding = min(budget + rounded, limit.on(unit))
    same = moved <= bound + rounded + convolution_rounding(exact_conv, kernel, rows).on(unit)
    not_covered = [] if promise.any_size else [f"images of other sizes than {' x '.join(map(str, sizes))}"]
    if layer.dropout:
        not_covered.append("dropout of attention weights in training, which a convolution does not have")
    return Certificate(
        direction="attention_to_conv",
        source=describe_attention(layer),
        result=repr(conv),
        bound=bound,
        measured_error=measured,
        rounding=rounding,
        discarded=(),
        largest=largest(high),
        verdict=_verdict(promise, measured, bound, rounding) if same else "failed",
        not_covered=tuple(not_covered),
        weights=weights_digest(conv),
        **_common_fields(layer, x, promise, limit),
    )


def _verdict(promise: Promise, measured: float, bound: float, rounding: float) -> Verdict:
    """Judges a layer by its promise; a bound that is hidden by rounding counts as exact."""
    if not measured <= bound + rounding:
        return "failed"
    return "exact" if promise.exact or bound <= rounding else "different"


def _moved(x: Tensor) -> list[Tensor]:
    """Returns images with other last digits, as many as a budget needs beside the image itself."""
    return [rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1)]


def _common_fields(layer: RelativeAttention, x: Tensor, promise: Promise, limit: RoundingBound) -> dict[str, Any]:
    """Returns the fields of a certificate that both directions fill alike."""
    return {
        "dtype": str(x.dtype).removeprefix("torch."),
        "heads": layer.num_heads,
        "sharpness": lowest_sharpness(layer),
        "exact": promise.exact,
        "leak": promise.leak,
        "bound_per_unit": promise.per_unit,
        "rounding_per_unit": limit.per_unit,
        "rounding_at_zero": limit.at_zero,
        "check_shape": tuple(x.shape),
        "check_seed": SEED,
    }


def summed_otherwise(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes a convolution in another order: tap by tap, or for large kernels from an image rounded differently."""
    few = prod(conv.kernel_size) <= _MANY_TAPS
    return tap_by_tap(read_taps(conv), x) if few else conv(rounded_differently(x, SEED))
