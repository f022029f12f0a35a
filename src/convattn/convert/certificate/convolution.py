"""The certificate of a convolution that was made from an attention layer."""

import copy
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.convert.certificate.rounding_bound import convolution_rounding
from convattn.convert.certificate.summation import tap_by_tap
from convattn.convert.certificate.trial import (
    SEED,
    describe_attention,
    draw_images,
    largest,
    lowest_sharpness,
    softmax_copy,
)
from convattn.convert.classes import AnyConvolution
from convattn.convert.taps import read_taps
from convattn.functional.rounding import rounded_differently, rounding_budget
from convattn.layers import RelativeAttention
from convattn.records import Certificate

__all__ = ["Promise", "certify_convolution", "summed_otherwise"]

_MANY_TAPS = 400
"""Taps beyond which a computation tap by tap takes too long."""


class Promise(NamedTuple):
    """What a convolution promises before anything is measured.

    Attributes:
        leak: Share of attention outside the window.
        per_unit: A-priori error bound for inputs of absolute value ≤ 1.
        exact: Whether rounding is the only loss.
        any_size: Whether the bound holds for images of all sizes.
    """

    leak: float
    per_unit: float
    exact: bool
    any_size: bool


def certify_convolution(
    layer: RelativeAttention,
    conv: AnyConvolution,
    kernel: Float[Tensor, "outputs channels *taps"],
    rows: Float[Tensor, "heads outputs"],
    sizes: tuple[int, ...],
    promise: Promise,
) -> Certificate:
    """Runs the layer and the convolution on random images and records how much they differ.

    Two questions are asked. First, does the convolution compute the layer's function? Both run in float64, where they
    may differ by the bound and by the rounding of the kernel. Second, is its result as good as its dtype allows? It may
    lose what other ways of computing it lose (torch's own convolution on this processor is one of them), but never more
    than the a-priori bound on rounding.

    Args:
        layer: The layer converted.
        conv: The convolution made from it.
        kernel: Its kernel before rounding, in float64.
        rows: Σ_i |W_h[o, i]|, in float64.
        sizes: Sizes of the image.
        promise: What the convolution promises.

    Returns:
        The certificate.
    """
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        exact_conv = copy.deepcopy(conv).double()
        high, high_conv = softmax_copy(layer, torch.float64)(x.double()), exact_conv(x.double())
        low, made = softmax_copy(layer, x.dtype)(x), conv(x)
        roads = [made, summed_otherwise(conv, x)]
    unit, limit = largest(x), convolution_rounding(conv, kernel, rows)
    budget = max(rounding_budget(high, [low]), rounding_budget(high_conv, roads))
    rounded = largest((kernel - kernel.to(x.dtype).double()).abs().flatten(1).sum(1)) * unit
    measured, moved, bound = largest(made.double() - high), largest(high_conv - high), promise.per_unit * unit
    rounding = min(budget + rounded, limit.on(unit))
    same = moved <= bound + rounded + convolution_rounding(exact_conv, kernel, rows).on(unit)
    return Certificate(
        direction="attention_to_conv",
        source=describe_attention(layer),
        result=repr(conv),
        dtype=str(x.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        sharpness=lowest_sharpness(layer),
        exact=promise.exact,
        leak=promise.leak,
        bound_per_unit=promise.per_unit,
        rounding_per_unit=limit.per_unit,
        rounding_at_zero=limit.at_zero,
        check_shape=tuple(x.shape),
        check_seed=SEED,
        bound=bound,
        measured_error=measured,
        rounding=rounding,
        discarded=(),
        passed=same and measured <= bound + rounding,
        not_covered=_not_covered(layer, sizes, any_size=promise.any_size),
    )


def summed_otherwise(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes a convolution in another order: tap by tap, or for large kernels from an image rounded differently."""
    few = prod(conv.kernel_size) <= _MANY_TAPS
    return tap_by_tap(read_taps(conv), x) if few else conv(rounded_differently(x, SEED))


def _not_covered(layer: RelativeAttention, sizes: tuple[int, ...], *, any_size: bool) -> tuple[str, ...]:
    items = [] if any_size else [f"images of other sizes than {' x '.join(map(str, sizes))}"]
    if layer.dropout:
        items.append("dropout of attention weights in training, which a convolution does not have")
    return tuple(items)
