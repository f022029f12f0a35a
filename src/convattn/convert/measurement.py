"""A layer and what was made from it, run on the same random images: the certificate of one conversion."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.budget import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.convert.bounds import RoundingBound, largest, lowest_sharpness
from convattn.convert.certificate import Certificate, Verdict
from convattn.convert.taps import SEED, TransposedConvolution
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Geometry
from convattn.layers import RelativeAttention
from convattn.sealed import weights_digest


@dataclass(frozen=True)
class Promise:
    """What a conversion promises before anything is measured."""

    source: nn.Module
    result: nn.Module
    layer: RelativeAttention  # The one of the two that attends
    kernel_size: tuple[int, ...]  # Taps of the other one
    exact: bool  # Whether only rounding is lost
    leak: float  # Bound on the attention off the taps, or outside the window
    per_unit: float  # Bound on the output error for inputs of absolute value ≤ 1
    rounding: RoundingBound  # What rounding adds to that
    discarded: tuple[tuple[float, ...], ...] = ()  # Singular values of each head
    any_size: bool = True  # Whether it holds for images of any size
    normalised: bool = False  # Whether the convolution is a `NormalisedConv`


@dataclass(frozen=True)
class Outputs:
    """Outputs of a source and of its result on the same images."""

    images: Tensor
    reference: Tensor  # The source's, in float64
    results: Sequence[Tensor]  # The result's in its own dtype, by each path that it takes
    # Outputs in float64, each with honest computations of the same in the tested dtype
    roundings: Sequence[tuple[Tensor, Sequence[Tensor]]]
    # The result's in float64, and what rounding explains of its difference to the reference
    in_float64: tuple[Tensor, RoundingBound] | None = None
    stored: float = 0.0  # What rounding of the result's weights moves


def certify_layer(promise: Promise, outputs: Outputs) -> Certificate:
    """Judges a conversion by its promise and by what was measured.

    Two questions are asked. First, does the result compute the source's function? In float64 they may differ by the
    bound and by the rounding of the result's weights. Second, is the result as good as its dtype allows? It may lose
    what other ways of computing it lose, but never more than the a-priori bound on rounding.
    """
    unit = largest(outputs.images)
    bound = promise.per_unit * unit
    spreads = [rounding_budget(exact, runs) for exact, runs in outputs.roundings]
    rounding = min(max(spreads) + outputs.stored, promise.rounding.at(unit))
    errors = [_distance(result, outputs.reference) for result in outputs.results]
    kept = max(errors) <= bound + rounding
    if outputs.in_float64 is not None:
        result, exact_rounding = outputs.in_float64
        allowed = bound + exact_rounding.at(unit) + outputs.stored
        kept = kept and _distance(result, outputs.reference) <= allowed
    verdict: Verdict = "failed"
    if kept:
        verdict = "exact" if promise.exact or bound <= rounding else "different"
    layer, source = promise.layer, promise.source
    attends = promise.result is layer
    return Certificate(
        verdict=verdict,
        direction="conv_to_attention" if attends else "attention_to_conv",
        source=_in_one_line(source),
        result=_in_one_line(promise.result),
        dtype=str(outputs.images.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        kernel_size=promise.kernel_size,
        exact=promise.exact,
        leak=promise.leak,
        sharpness=lowest_sharpness(layer),
        discarded=promise.discarded,
        bound_per_unit=promise.per_unit,
        rounding_per_unit=promise.rounding.per_unit,
        rounding_at_zero=promise.rounding.at_zero,
        check_shape=tuple(outputs.images.shape),
        check_seed=SEED,
        bound=bound,
        measured_error=max(errors),
        rounding=rounding,
        largest=largest(outputs.reference),
        weights=weights_digest(promise.result),
        normalised=promise.normalised,
        any_size=promise.any_size,
        has_dropout=not attends and layer.dropout > 0,
        has_output_size=isinstance(source, TransposedConvolution),
    )


def _distance(y: Tensor, reference: Tensor) -> float:
    return largest(y.double().cpu() - reference.cpu())


def _in_one_line(layer: nn.Module) -> str:
    """Returns a layer in one line, as a certificate prints it."""
    encoding = f", encoding={layer.encoding}" if isinstance(layer, RelativeAttention) else ""
    return f"{type(layer).__name__}({layer.extra_repr()}{encoding})"


def draw_images(layer: RelativeAttention, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws two standard normal images of given sizes for a layer, in float64, and rounds them."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (2, layer.in_channels, *sizes)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(device=next(layer.values.parameters()).device, dtype=dtype)


def with_other_digits(x: Tensor) -> list[Tensor]:
    """Returns images, and as many copies with other last digits as a budget needs beside them."""
    return [x, *(rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1))]


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


@dataclass(frozen=True)
class Replacement(ABC):
    """A convolution that replaces an attention layer, and what it misses."""

    conv: Any  # The convolution
    kernel_size: tuple[int, ...]  # Its taps along each axis
    # Bound on Σ_k |A_h[q, k] − Ã_h[q, k]|; one for all queries where it is the same
    errors: Float[Tensor, "heads queries"]
    leak: float  # Largest share of attention outside the window, of any head and query
    any_size: bool  # Whether this holds for images of any size

    normalised: ClassVar[bool] = False  # Whether it is a `NormalisedConv`

    @abstractmethod
    def rounding(self, conv: Any, rows: Float[Tensor, "heads outputs"]) -> RoundingBound:
        """Bounds the rounding of the convolution or of a copy in float64; `rows` are Σ_i |W_h[o, i]|."""

    @abstractmethod
    def stored(self, x: Tensor, rows: Float[Tensor, "heads outputs"]) -> float:
        """Bounds what rounding of the stored weights moves in the outputs of an image."""

    @abstractmethod
    def in_other_orders(self, x: Tensor) -> list[Tensor]:
        """Computes the convolution in further orders of summation."""


def certify_replacement(
    layer: RelativeAttention,
    made: Replacement,
    maps: Float[Tensor, "heads outputs channels"],
    sizes: tuple[int, ...],
    content_share: float,
) -> Certificate:
    """Certifies the convolution that replaces a layer, on images of `sizes`.

    `maps` are the heads' matrices in float64, `content_share` is what a closed gate leaves to content.
    """
    rows = reduce(maps.abs(), "heads outputs channels -> heads outputs", "sum")
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    exact_conv = copy.deepcopy(made.conv).double()
    attention, exact_attention = softmax_copy(layer, x.dtype), softmax_copy(layer, torch.float64)
    with torch.no_grad(), without_autocast(x.device):
        reference = exact_attention(x.double())
        high = exact_conv(x.double())
        results = [made.conv(images) for images in with_other_digits(x)]
        attended = [attention(images) for images in with_other_digits(x)]
        reordered = [*results, *made.in_other_orders(x)]
        stored = made.stored(x, rows)
    outputs = Outputs(
        images=x,
        reference=reference,
        results=results[:1],
        roundings=[(reference, attended), (high, reordered)],
        in_float64=(high, made.rounding(exact_conv, rows)),
        stored=stored,
    )
    errors = made.errors + 2 * content_share
    promise = Promise(
        source=layer,
        result=made.conv,
        layer=layer,
        kernel_size=made.kernel_size,
        exact=errors.max().item() <= torch.finfo(x.dtype).eps,
        leak=made.leak + content_share,
        per_unit=(errors.mT @ rows).max().item(),
        rounding=made.rounding(made.conv, rows),
        any_size=made.any_size,
        normalised=made.normalised,
    )
    return certify_layer(promise, outputs)
