"""The certificate of an attention layer that was made from a convolution."""

import copy

import torch
from torch import nn

from convattn.convert.certificate.rounding_bound import attention_rounding
from convattn.convert.certificate.summation import in_one_product, tap_by_tap
from convattn.convert.certificate.trial import (
    SEED,
    describe_attention,
    draw_images,
    largest,
    lowest_sharpness,
    smallest_image,
    softmax_copy,
)
from convattn.convert.classes import AnyConvolution
from convattn.convert.taps import read_taps
from convattn.functional.rounding import rounding_budget
from convattn.layers import RelativeAttention
from convattn.records import Certificate

__all__ = ["certify_attention"]


def certify_attention(
    conv: AnyConvolution,
    layer: RelativeAttention,
    *,
    leak: float,
    per_unit: float,
    exact: bool,
    discarded: tuple[tuple[float, ...], ...],
) -> Certificate:
    """Runs the convolution and the layer on random images and records how much they differ.

    Args:
        conv: The convolution that was converted.
        layer: The layer made from it.
        leak: Bound on the attention off the taps.
        per_unit: A-priori error bound for inputs of absolute value ≤ 1.
        exact: Whether rounding is the only loss.
        discarded: Singular values left out, per head.

    Returns:
        The certificate.
    """
    sizes = [size + 3 + axis for axis, size in enumerate(smallest_image(layer.geometry))]  # all different
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    attention = softmax_copy(layer, x.dtype)
    if attention.content is not None:
        attention.impl = "reference"
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        high = copy.deepcopy(conv).double().cpu()(x.double().cpu())
        made, taps = attention(x), read_taps(conv)
        lows = [conv(x), tap_by_tap(taps, x), in_one_product(taps, x)]
    measured, unit, limit = largest(made.double().cpu() - high), largest(x), attention_rounding(layer, conv)
    rounding, bound = min(rounding_budget(high, lows), limit.on(unit)), per_unit * unit
    sharpness = lowest_sharpness(layer)
    not_covered = [] if sharpness is None else ["centres rounded when the layer is cast to a narrower dtype"]
    if max(layer.geometry.input_dilation) > 1 or isinstance(conv, nn.modules.conv._ConvTransposeNd):
        not_covered.append("the argument output_size of forward: output_padding is used instead")
    return Certificate(
        direction="conv_to_attention",
        source=repr(conv),
        result=describe_attention(layer),
        dtype=str(x.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        sharpness=sharpness,
        exact=exact,
        leak=leak,
        bound_per_unit=per_unit,
        rounding_per_unit=limit.per_unit,
        rounding_at_zero=limit.at_zero,
        check_shape=tuple(x.shape),
        check_seed=SEED,
        bound=bound,
        measured_error=measured,
        rounding=rounding,
        discarded=discarded,
        passed=measured <= bound + rounding,
        not_covered=tuple(not_covered),
    )
