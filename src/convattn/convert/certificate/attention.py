"""Measuring a conversion against float64."""

import copy
from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor, nn

from convattn.convert.certificate.rounding_bound import attention_rounding
from convattn.convert.certificate.summation import in_one_product, tap_by_tap
from convattn.convert.classes import AnyConvolution
from convattn.convert.taps import read_taps
from convattn.errors import ShapeError
from convattn.functional.rounding import rounding_budget
from convattn.grid import Geometry
from convattn.layers import RelativeAttention
from convattn.records import Certificate

__all__ = ["certify", "largest", "smallest_image"]

_SEED = 0


def certify(
    conv: AnyConvolution,
    layer: RelativeAttention,
    *,
    sharpness: float | None,
    leak: float,
    per_unit: float,
    exact: bool,
    discarded: tuple[tuple[float, ...], ...],
) -> Certificate:
    """Runs convolution and layer on a random image and writes down how far they are apart.

    Args:
        conv: The convolution converted.
        layer: The layer made from it.
        sharpness: Smallest α of the heads; None of hard heads.
        leak: Bound on the attention off the taps.
        per_unit: A-priori error bound for inputs of absolute value ≤ 1.
        exact: Whether nothing but rounding is lost.
        discarded: Singular values left out, per head.

    Returns:
        The certificate.
    """
    x = _check_image(layer)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        high = _in_float64(conv, x)
        taps, made = read_taps(conv), _inference(layer, x)
        lows = [conv(x), tap_by_tap(taps, x), in_one_product(taps, x)]
    measured = largest(made.double().cpu() - high)
    limit = attention_rounding(layer, conv)
    rounding = min(rounding_budget(high, lows), limit.on(largest(x)))
    bound = per_unit * largest(x)
    not_covered = [] if sharpness is None else ["centres rounded when the layer is cast to a narrower dtype"]
    if max(layer.geometry.input_dilation) > 1 or isinstance(conv, nn.modules.conv._ConvTransposeNd):
        not_covered.append("the argument output_size of forward: output_padding is used instead")
    return Certificate(
        direction="conv_to_attention",
        source=repr(conv),
        result=f"{type(layer).__name__}({layer.extra_repr()}, encoding={layer.encoding})",
        dtype=str(x.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        sharpness=sharpness,
        exact=exact,
        leak=leak,
        bound_per_unit=per_unit,
        rounding_per_unit=limit.per_unit,
        rounding_at_zero=limit.at_zero,
        check_shape=tuple(x.shape),
        check_seed=_SEED,
        bound=bound,
        measured_error=measured,
        rounding=rounding,
        discarded=discarded,
        passed=measured <= bound + rounding,
        not_covered=tuple(not_covered),
    )


def _check_image(layer: RelativeAttention) -> Tensor:
    """Draws a standard normal batch with a few queries along each axis, all sizes different."""
    sizes = smallest_image(layer.geometry)
    weight = next(layer.values.parameters())
    shape = (2, layer.in_channels, *(size + 3 + axis for axis, size in enumerate(sizes)))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64, device="cpu")
    return x.to(device=weight.device, dtype=weight.dtype)


def smallest_image(geometry: Geometry) -> Sequence[int]:
    """Returns the smallest sizes for which the padded image holds the window."""
    slack = {"reflect": 1, "circular": 0}.get(geometry.padding_mode)
    sizes = []
    for axis, pads in enumerate(geometry.padding):
        for size in count(1 if slack is None else max(1, max(pads) + slack)):
            spatial = [10**9] * len(geometry.padding)
            spatial[axis] = size
            try:
                geometry.axes(spatial)
            except ShapeError:
                continue
            sizes.append(size)
            break
    return sizes


def _in_float64(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes the convolution's function in float64 on the CPU."""
    return copy.deepcopy(conv).double().cpu()(x.double().cpu())


def _inference(layer: RelativeAttention, x: Tensor) -> Tensor:
    """Runs the layer as real softmax attention: the path by which hard heads are a convolution would prove nothing."""
    attention = copy.deepcopy(layer).eval()
    attention.impl = "separable" if attention.content is None else "reference"
    return attention(x)


def largest(x: Tensor) -> float:
    """Returns the largest absolute value, 0 where there are none."""
    return x.abs().max().item() if x.numel() else 0.0
