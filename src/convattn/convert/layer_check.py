"""What the conversion of a layer promises, and whether it keeps it: bounds for any input, and runs on random images."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.budget import LEAST_ROUNDINGS, rounded_differently
from convattn.convert.certificate import Certificate, Verdict
from convattn.convert.rounding import Roundings, errors_of, scales
from convattn.convert.taps import TransposedConvolution
from convattn.encodings import AxisAdditiveEncoding, Quadratic, off_centre_mass
from convattn.functional.torch_modes import at_least_float32, plain_float32, without_autocast
from convattn.grid import Geometry, least_pixels
from convattn.layers import NormalisedConv, RelativeAttention
from convattn.random_numbers import SEED, standard_normal
from convattn.structure import dtype_name, network_digest

STEPS = 8
"""Roundings on the way to one output (weight, score, product, sum with the bias), generously counted."""

_EXPONENT = {torch.float64: 745.2}
"""x beyond which e^−x is zero; elsewhere softmax is in float32, and it is 104."""


def lowest_sharpness(layer: RelativeAttention) -> float | None:
    """Returns the smallest α of quadratic heads; None for other encodings."""
    if not isinstance(layer.encoding, Quadratic):
        return None
    return layer.encoding.sharpness.detach().double().min().item()


def largest(x: Tensor) -> float:
    """Returns the largest absolute value, or 0 for an empty tensor."""
    return x.abs().max().item() if x.numel() else 0.0


class RoundingBound(NamedTuple):
    """A-priori bound on the rounding error of a result plus that of its source in float64, without overflow."""

    per_unit: float  # For images of largest absolute value 1
    at_zero: float  # What an image of zeros adds: rounding of the bias, and underflow

    def at(self, unit: float) -> float:
        """Returns the bound for images of a largest absolute value."""
        return self.per_unit * unit + self.at_zero


def rounding_bound(
    dtype: torch.dtype,
    bias: Tensor | None,
    *,
    weights: float,
    source: float,
    terms: int,
    writes: int,
) -> RoundingBound:
    """Bounds rounding where sums of `terms` products are stored `writes` times.

    The error of a sum of n terms, in any order, is at most `(1 + u)ⁿ − 1 ≤ e^{nu} − 1` times the sum of their absolute
    values, with u = ½ eps. Numbers narrower than float32 are summed in float32 and rounded when they are stored.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.1 and §4.2.

    `weights` and `source` are the largest sums of absolute weights of one output, of the result and of its source.
    `terms` counts the terms and further roundings in the dtype of the sum, `writes` the roundings to a narrower dtype.
    """
    own = torch.finfo(dtype)
    sums = torch.finfo(at_least_float32(dtype))
    double = torch.finfo(torch.float64)
    if own.eps == sums.eps:
        writes = 0
    lost = math.expm1((terms * sums.eps + writes * own.eps) / 2)
    lost_by_source = math.expm1(terms * double.eps / 2)
    underflow = terms * sums.tiny + writes * own.smallest_normal * own.eps
    at_zero = underflow * max(1.0, weights)
    if bias is not None:
        at_zero += largest(bias.detach()) * (lost + lost_by_source)
    return RoundingBound(weights * lost + source * lost_by_source, at_zero)


def attention_leak(layer: RelativeAttention) -> float:
    """Bounds the share of attention that a head gives to pixels off its tap."""
    alpha = lowest_sharpness(layer)
    if alpha is None:
        return 0.0
    # zero off the centre if it underflows in the softmax, which runs in at least float32
    kind = at_least_float32(layer.like.dtype)
    beside = torch.exp(torch.tensor(-alpha, dtype=kind)).item()
    return min(1.0, off_centre_mass(alpha, layer.dims)) if beside else 0.0


def attention_rounding(layer: RelativeAttention, rows: Float[Tensor, " outputs"]) -> RoundingBound:
    """Bounds the rounding of attention that replaces a convolution, compared with the convolution in float64.

    At most `2 √(E/α) + 1` weights of a quadratic head along an axis are not zero, where E is the exponent at which they
    underflow. So the bound holds for images of any size. `rows` holds the sums Σ_{h,i} |W_h[o, i]|.
    """
    weight = layer.like
    products = layer.num_heads * (layer.in_channels // layer.groups + weight.shape[1])
    alpha = lowest_sharpness(layer)
    keys = 1  # whose weights are not zero along an axis, of hard heads
    if alpha is not None:
        keys = 3 + 2 * math.isqrt(math.ceil(_EXPONENT.get(weight.dtype, 104.0) / alpha))
    largest_row = rows.max().item()
    return rounding_bound(
        weight.dtype,
        layer.bias,
        weights=largest_row,
        source=largest_row,
        terms=products + 2 * layer.dims * keys + STEPS,
        writes=layer.num_heads + layer.dims + STEPS,
    )


# --- Measured on random images ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Promise:
    """What a conversion between a convolution and attention promises before anything is measured."""

    conv: Any  # The convolution, of torch or normalised
    layer: RelativeAttention  # The attention
    exact: bool  # Whether only rounding is lost
    leak: float  # Bound on the attention off the taps, or outside the window
    # Bound on the error of each output channel for inputs of absolute value ≤ 1
    per_unit: Float[Tensor, " outputs"]
    # What rounding adds to that, where the result computes in a dtype
    rounding: Callable[[torch.dtype], RoundingBound]
    to_attention: bool = (
        False  # Whether the attention is the result, which is not judged in float64
    )
    any_size: bool = True  # Whether it holds for images of any size
    # What rounding of the convolution's weights moves in each output channel of an image
    stored: Callable[[Tensor], Tensor | float] = lambda _: 0.0
    # The convolution of an image, in further orders of summation
    in_other_orders: Callable[[Tensor], list[Tensor]] = lambda _: []


def certify_layer(promise: Promise, sizes: Sequence[int] | None = None) -> Certificate:
    """Runs a convolution and attention on random images of given sizes, and judges the conversion.

    Without sizes the images are a little larger than the window.

    Two questions are asked. First, does the result compute the source's function? In float64 they may differ by the
    bound and by the rounding of the result's weights. Second, is the result as good as its dtype allows? It may lose
    what other ways of computing it lose, but never more than the a-priori bound on rounding. Attention runs as a real
    softmax, and where it is the result also by the path that it takes by itself.
    """
    layer = promise.layer
    if sizes is None:
        least = smallest_image(layer.geometry)
        sizes = [size + 3 + axis for axis, size in enumerate(least)]
    x = draw_images(layer, sizes, layer.like.dtype)
    with torch.no_grad(), without_autocast(x.device), plain_float32():
        exact, exact_result, judged, roundings = _run(promise, x)
        stored = _by_channel(promise.stored(x), x)
    unit = largest(x)
    bound = _by_channel(promise.per_unit, x) * unit
    broken = torch.zeros_like(exact, dtype=torch.bool)
    if not promise.to_attention:
        allowed = bound + promise.rounding(torch.float64).at(unit) + stored
        broken = ~(errors_of(exact_result, exact) <= allowed)
    eps = torch.finfo(x.dtype).eps
    any_input = promise.rounding(x.dtype)
    rounding = (roundings.allowed(eps) + stored).clamp(max=any_input.at(unit))
    error = torch.stack([errors_of(result, exact) for result in judged]).amax(0)
    broken |= ~(error <= bound + rounding)
    verdict: Verdict = "failed"
    if not broken.any():
        hidden = bool((bound <= rounding).all())
        verdict = "exact" if promise.exact or hidden else "different"
    share = torch.where(error == 0, 0.0, error / (bound + rounding)).nan_to_num(math.inf)
    worst = share.argmax()
    bound, error, rounding, scale = [
        values.expand(exact.shape).flatten()[worst].item()
        for values in (bound, error, rounding, scales(exact))
    ]
    conv = promise.conv
    source, result = (conv, layer) if promise.to_attention else (layer, conv)
    normalised = isinstance(conv, NormalisedConv)
    is_transposed = isinstance(source, TransposedConvolution)
    notes = ()
    if is_transposed and set(source.stride) == {1}:
        notes = ("of stride 1, a transposed convolution comes back as a plain one",)
    return Certificate(
        verdict=verdict,
        direction="conv_to_attention" if promise.to_attention else "attention_to_conv",
        source=_in_one_line(source),
        result=_in_one_line(result),
        dtype=dtype_name(x.dtype),
        heads=layer.num_heads,
        kernel_size=conv.taps if normalised else conv.kernel_size,
        exact=promise.exact,
        leak=promise.leak,
        sharpness=lowest_sharpness(layer),
        bound_per_unit=largest(promise.per_unit),
        rounding_per_unit=any_input.per_unit,
        rounding_at_zero=any_input.at_zero,
        check_shape=tuple(x.shape),
        check_seed=SEED,
        bound=bound,
        measured_error=error,
        rounding=rounding,
        largest=scale,
        weights=network_digest(result),
        normalised=normalised,
        any_size=promise.any_size,
        has_dropout=not promise.to_attention and layer.dropout > 0,
        has_output_size=is_transposed,
        notes=notes,
    )


def _run(promise: Promise, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor], Roundings]:
    """Runs a convolution and attention; attention as a real softmax, and where it is the result, also by itself.

    Returns the source and the result in float64, the result in its dtype by each of its paths, and what rounding moves.
    """
    layer = promise.layer
    attention = softmax_copy(layer, x.dtype)
    if promise.to_attention and layer.content is not None:
        attention.impl = "reference"
    images = [x, *(rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1))]
    of_conv = copy.deepcopy(promise.conv).double()(x.double())
    of_attention = softmax_copy(layer, torch.float64)(x.double())
    convolved = [promise.conv(one) for one in images] + promise.in_other_orders(x)
    if promise.to_attention:
        roundings = Roundings(of_conv)
        for run in convolved:
            roundings.add(run)
        return of_conv, of_attention, [attention(x), layer(x)], roundings
    roundings = Roundings(of_attention)
    for one in images:
        roundings.add(attention(one))
    for run in convolved:
        roundings.add(run, of_conv)
    return of_attention, of_conv, convolved[:1], roundings


def _by_channel(numbers: Tensor | float, x: Tensor) -> Tensor:
    """Returns a number for each channel, or one for all, with the axes of a batch of images."""
    every = torch.as_tensor(numbers).double().to(x.device)
    return every.view(1, -1, *[1] * (x.ndim - 2))


def _in_one_line(layer: nn.Module) -> str:
    """Returns a layer in one line, as a certificate prints it."""
    encoding = f", encoding={layer.encoding}" if isinstance(layer, RelativeAttention) else ""
    return f"{type(layer).__name__}({layer.extra_repr()}{encoding})"


def draw_images(layer: RelativeAttention, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws two standard normal images of given sizes for a layer, in float64, and rounds them."""
    x = standard_normal((2, layer.in_channels, *sizes))
    return x.to(device=layer.like.device, dtype=dtype)


def smallest_image(geometry: Geometry) -> list[int]:
    """Returns the smallest sizes for which the padded image holds the window."""
    sizes = []
    along = zip(geometry.window, geometry.padding, geometry.input_dilation, strict=True)
    for taps, pads, gap in along:
        repeated = least_pixels(geometry.padding_mode, max(pads))
        beyond = taps[-1] - taps[0] - sum(pads)
        steps = -(-beyond // gap)
        sizes.append(max(1, repeated, steps + 1))
    return sizes


def softmax_copy(layer: RelativeAttention, dtype: torch.dtype) -> RelativeAttention:
    """Copies a layer for inference so that it computes a real softmax; a layer with content keeps its own path.

    Hard heads would otherwise run as a convolution, and comparing that with a convolution proves nothing.
    """
    copied = copy.deepcopy(layer).eval()
    copied.dropout = 0.0  # plays no part in inference, and not every path has it
    if dtype == torch.float64:
        copied = copied.double()
    if copied.content is None:
        additive = isinstance(copied.encoding, AxisAdditiveEncoding)
        copied.impl = "separable" if additive else "dense"
    return copied
