"""Measuring the conversion of an attention layer to a convolution against float64."""

import copy
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.certificate.attention import largest
from convattn.convert.certificate.rounding_bound import convolution_rounding
from convattn.convert.certificate.summation import tap_by_tap
from convattn.convert.classes import AnyConvolution
from convattn.convert.taps import read_taps
from convattn.encodings import Quadratic
from convattn.functional.rounding import rounded_differently
from convattn.layers import RelativeAttention
from convattn.records import Certificate

__all__ = ["Promise", "attend", "certify_conv", "independent", "noise"]

_SEED = 0

_MANY_TAPS = 400
"""Taps beyond which a computation tap by tap takes too long."""


class Promise(NamedTuple):
    """What a convolution promises before anything is measured.

    Attributes:
        leak: Share of attention outside the window.
        per_unit: A-priori error bound for inputs of absolute value ≤ 1.
        exact: Whether nothing but rounding is lost.
        any_size: Whether the bound holds for images of all sizes.
    """

    leak: float
    per_unit: float
    exact: bool
    any_size: bool


def certify_conv(
    layer: RelativeAttention,
    conv: AnyConvolution,
    kernel: Float[Tensor, "outputs channels *taps"],
    rows: Float[Tensor, "heads outputs"],
    sizes: tuple[int, ...],
    promise: Promise,
) -> Certificate:
    """Runs layer and convolution on a random image and writes down how far they are apart.

    Two questions are asked. Is the convolution's function that of the layer? Both are computed in float64, where they
    may differ by the bound and the rounding of the kernel. Is its result as good as its dtype allows? It may lose what
    other roads lose, torch's own convolution on this processor among them, and never more than rounding can take at
    all.

    Args:
        layer: The layer converted.
        conv: The convolution made from it.
        kernel: Its kernel before rounding, in float64.
        rows: Σ_i |W_h[o, i]|, in float64.
        sizes: Sizes of the image.
        promise: What it is to promise.

    Returns:
        The certificate.
    """
    parameter = next(layer.values.parameters())
    x, eps = noise(layer, sizes, parameter.dtype), torch.finfo(parameter.dtype).eps
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        exact_conv = copy.deepcopy(conv).double()
        high, high_conv = attend(layer, torch.float64)(x.double()), exact_conv(x.double())
        low, made = attend(layer, x.dtype)(x), conv(x)
        roads = [made, independent(conv, x)]
    unit, limit = largest(x), convolution_rounding(conv, kernel, rows)
    spread = max(largest(low.double() - high), *(largest(road.double() - high_conv) for road in roads))
    rounded = largest((kernel - kernel.to(parameter.dtype).double()).abs().flatten(1).sum(1)) * unit
    measured, moved, bound = largest(made.double() - high), largest(high_conv - high), promise.per_unit * unit
    rounding = min(2 * (spread + eps * largest(high)) + rounded, limit.on(unit))
    same = moved <= bound + rounded + convolution_rounding(exact_conv, kernel, rows).on(unit)
    return Certificate(
        direction="attention_to_conv",
        source=f"{type(layer).__name__}({layer.extra_repr()}, encoding={layer.encoding})",
        result=repr(conv),
        dtype=str(x.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        sharpness=_sharpness(layer.encoding),
        exact=promise.exact,
        leak=promise.leak,
        bound_per_unit=promise.per_unit,
        rounding_per_unit=limit.per_unit,
        rounding_at_zero=limit.at_zero,
        check_shape=tuple(x.shape),
        check_seed=_SEED,
        bound=bound,
        measured_error=measured,
        rounding=rounding,
        discarded=(),
        passed=same and measured <= bound + rounding,
        not_covered=_not_covered(layer, sizes, any_size=promise.any_size),
    )


def independent(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes a convolution in its own dtype another way: tap by tap, or with many taps from digits moved.

    Args:
        conv: The convolution.
        x: Images.

    Returns:
        What it returns, up to rounding.
    """
    few = prod(conv.kernel_size) <= _MANY_TAPS
    return tap_by_tap(read_taps(conv), x) if few else conv(rounded_differently(x, _SEED))


def noise(layer: RelativeAttention, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Draws two standard normal images for a layer."""
    shape = (2, layer.in_channels, *sizes)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64, device="cpu")
    return x.to(device=next(layer.values.parameters()).device, dtype=dtype)


def attend(layer: RelativeAttention, dtype: torch.dtype) -> RelativeAttention:
    """Copies a layer, in its own dtype or in float64, so that it computes real softmax attention, in inference.

    Args:
        layer: The layer.
        dtype: float64, or the layer's own.

    Returns:
        A copy that does not take the path by which hard heads are a convolution, which would prove nothing.
    """
    copied = copy.deepcopy(layer).eval()
    copied.dropout = 0.0  # plays no part in inference, and not every path has it
    if dtype == torch.float64:
        copied = copied.double()
    if copied.content is None:
        copied.impl = "separable" if copied.encoding.axis_additive else "dense"
    return copied


def _sharpness(encoding: nn.Module) -> float | None:
    """Returns the smallest α of quadratic heads."""
    return encoding.sharpness.double().min().item() if isinstance(encoding, Quadratic) else None


def _not_covered(layer: RelativeAttention, sizes: tuple[int, ...], *, any_size: bool) -> tuple[str, ...]:
    items = [] if any_size else [f"images of other sizes than {' x '.join(map(str, sizes))}"]
    if layer.dropout:
        items.append("dropout of attention weights in training, which a convolution does not have")
    return tuple(items)
