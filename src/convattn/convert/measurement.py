"""A layer and what was made from it, run on the same random images: the certificate of one conversion."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from convattn.budget import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.convert.bounds import RoundingBound, largest, lowest_sharpness, weight_of
from convattn.convert.certificate import Certificate, Verdict
from convattn.convert.taps import SEED, TransposedConvolution
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Geometry
from convattn.layers import RelativeAttention
from convattn.sealed import weights_digest


@dataclass(frozen=True)
class Promise:
    """What a conversion between a convolution and attention promises before anything is measured."""

    conv: Any  # The convolution, of torch or normalised
    layer: RelativeAttention  # The attention
    to_attention: bool  # Which of the two is the result
    kernel_size: tuple[int, ...]  # Taps of the convolution
    exact: bool  # Whether only rounding is lost
    leak: float  # Bound on the attention off the taps, or outside the window
    per_unit: float  # Bound on the output error for inputs of absolute value ≤ 1
    rounding: RoundingBound  # What rounding adds to that
    # The same in float64, in which both are compared, too; None: they are not, and what other ways
    # of computing the result lose does not count
    exact_rounding: RoundingBound | None = None
    # Singular values that each head discards
    discarded: tuple[tuple[float, ...], ...] = ()
    any_size: bool = True  # Whether it holds for images of any size
    normalised: bool = False  # Whether the convolution is a `NormalisedConv`
    # What rounding of the convolution's weights moves in the outputs of an image
    stored: Callable[[Tensor], float] = lambda _: 0.0
    # The convolution of an image, in further orders of summation
    in_other_orders: Callable[[Tensor], list[Tensor]] = lambda _: []


def certify_layer(promise: Promise, sizes: Sequence[int]) -> Certificate:
    """Runs a convolution and attention on random images of given sizes, and judges the conversion.

    Two questions are asked. First, does the result compute the source's function? In float64 they may differ by the
    bound and by the rounding of the result's weights. Second, is the result as good as its dtype allows? It may lose
    what other ways of computing it lose, but never more than the a-priori bound on rounding. Attention runs as a real
    softmax, and where it is the result also by the path that it takes by itself.
    """
    conv = promise.conv
    layer = promise.layer
    x = draw_images(layer, sizes, weight_of(layer).dtype)
    attention = softmax_copy(layer, x.dtype)
    exact_attention = softmax_copy(layer, torch.float64)
    if promise.to_attention and layer.content is not None:
        attention.impl = "reference"
    exact_conv = copy.deepcopy(conv).double()
    moved = [rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1)]
    images = [x, *moved]
    compared_exactly = promise.exact_rounding is not None
    with torch.no_grad(), without_autocast(x.device):
        of_conv = exact_conv(x.double())
        of_attention = exact_attention(x.double())
        convolved = [conv(one) for one in images]
        attended = [attention(one) for one in (images if compared_exactly else images[:1])]
        other_orders = promise.in_other_orders(x)
        stored = promise.stored(x)
        by_itself = [layer(x)] if promise.to_attention else []
    of_source = (of_conv, [*convolved, *other_orders])
    of_result = (of_attention, attended)
    results = [attended[0], *by_itself]
    if not promise.to_attention:
        of_source, of_result = of_result, of_source
        results = convolved[:1]
    reference = of_source[0]
    unit = largest(x)
    bound = promise.per_unit * unit
    spread = rounding_budget(*of_source)
    kept = True
    if promise.exact_rounding is not None:
        spread = max(spread, rounding_budget(*of_result))
        allowed = bound + promise.exact_rounding.at(unit) + stored
        kept = largest(of_result[0] - reference) <= allowed
    rounding = min(spread + stored, promise.rounding.at(unit))
    error = max(largest(result.double() - reference) for result in results)
    verdict: Verdict = "failed"
    if kept and error <= bound + rounding:
        verdict = "exact" if promise.exact or bound <= rounding else "different"
    source, result = (conv, layer) if promise.to_attention else (layer, conv)
    return Certificate(
        verdict=verdict,
        direction="conv_to_attention" if promise.to_attention else "attention_to_conv",
        source=_in_one_line(source),
        result=_in_one_line(result),
        dtype=str(x.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        kernel_size=promise.kernel_size,
        exact=promise.exact,
        leak=promise.leak,
        sharpness=lowest_sharpness(layer),
        discarded=promise.discarded,
        bound_per_unit=promise.per_unit,
        rounding_per_unit=promise.rounding.per_unit,
        rounding_at_zero=promise.rounding.at_zero,
        check_shape=tuple(x.shape),
        check_seed=SEED,
        bound=bound,
        measured_error=error,
        rounding=rounding,
        largest=largest(reference),
        weights=weights_digest(result),
        normalised=promise.normalised,
        any_size=promise.any_size,
        has_dropout=not promise.to_attention and layer.dropout > 0,
        has_output_size=isinstance(source, TransposedConvolution),
    )


def _in_one_line(layer: nn.Module) -> str:
    """Returns a layer in one line, as a certificate prints it."""
    encoding = f", encoding={layer.encoding}" if isinstance(layer, RelativeAttention) else ""
    return f"{type(layer).__name__}({layer.extra_repr()}{encoding})"


def draw_images(layer: RelativeAttention, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws two standard normal images of given sizes for a layer, in float64, and rounds them."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (2, layer.in_channels, *sizes)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(device=weight_of(layer).device, dtype=dtype)


def smallest_image(geometry: Geometry) -> list[int]:
    """Returns the smallest sizes for which the padded image holds the window."""
    slack = {"reflect": 1, "circular": 0}.get(geometry.padding_mode)
    sizes = []
    for axis, (before, after) in enumerate(geometry.padding):
        repeated = 1 if slack is None else max(before, after) + slack
        window = geometry.dilation[axis] * (geometry.kernel_size[axis] - 1)
        beyond = window - before - after
        steps = -(-beyond // geometry.input_dilation[axis])
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
        copied.impl = "separable" if copied.encoding.axis_additive else "dense"
    return copied
