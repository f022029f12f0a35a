"""Certificates: bounds on the error of a conversion, and the error that was measured."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from convattn.convert.taps import (
    SEED,
    AnyConvolution,
    TransposedConvolution,
    read_taps,
    summed_otherwise,
    tap_by_tap,
    term_by_term,
)
from convattn.encodings import Quadratic
from convattn.errors import ArgumentError, must_be
from convattn.functional.reference import LEAST_ROUNDINGS, rounded_differently, rounding_budget
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Geometry
from convattn.layers import NormalisedConv, RelativeAttention
from convattn.record import Record
from convattn.sealed import weights_digest
from convattn.wording import ITSELF, counted, some

CLOSE = 0.01
"""Largest difference that is called close, as a share of the largest output, where the caller does not say.

A decision can change only where its two largest scores are nearer than twice this share.
"""

_STEPS = 8
"""Roundings on the way to one output (weight, score, product, sum with the bias), generously counted."""

_EXPONENT = {torch.float64: 745.2}
"""x beyond which e^−x is zero; elsewhere softmax is in float32, and it is 104."""

Verdict = Literal["exact", "close", "different", "failed"]
"""The same up to rounding; within a stated limit, with no decision changed; neither; a promise was broken."""


@dataclass(frozen=True)
class VerdictRecord(Record):
    """A record of a check, with one of four verdicts."""

    schema_version: ClassVar[int] = 3

    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether the verdict is "exact" or "close"."""
        return self.verdict in ("exact", "close")


@dataclass(frozen=True)
class LayerMeasurement(VerdictRecord):
    """What is promised for one layer, and what was measured of it on a random input."""

    source: str  # The converted module, as `print` shows it
    result: str  # The module that replaces it, as `print` shows it
    heads: int  # Number of attention heads, of the source or of the result
    exact: bool  # Whether only rounding is lost: no attention off the taps, no singular value discarded
    leak: float  # Bound on the attention outside a head's own pixel (towards a convolution, outside the window)
    bound_per_unit: float  # A-priori bound on the output error for inputs of absolute value ≤ 1, without rounding
    rounding_per_unit: (
        float  # A-priori bound on what rounding adds to that, in full precision (not TF32)
    )
    rounding_at_zero: float  # The same for an input of zeros: rounding of the bias, and numbers too small for the dtype
    bound: float  # The a-priori bound for the input on which the layer was measured
    measured_error: (
        float  # Largest output difference to the source's function in float64 on that input
    )
    # Largest difference that rounding explains there, by `docs/explanation/error-budget.md`, at most the a-priori bound
    rounding: float
    largest: (
        float | None
    )  # Largest absolute value of the source's output there; None in files of schema version 2


@dataclass(frozen=True)
class Certificate(LayerMeasurement):
    """What a conversion promises, and what was measured of it.

    The promise holds for every input x without overflow: ``max|y − y_source| ≤ (bound_per_unit + rounding_per_unit) ·
    max|x| + rounding_at_zero``, with y the result in its dtype and y_source the source in float64. Its rounding terms
    cover the worst case of any order of summation. The measured error must keep to `rounding` instead, which is much
    smaller.

    The verdict is "exact" where nothing is lost but rounding, or no more than rounding; "failed" where the measured
    error exceeds bound + rounding, or the result in float64 is further from the source than `bound` and the rounding of
    its weights allow; and "different" otherwise. A single layer is measured on random numbers, and never called close.

    Example:
        >>> from convattn import conv_to_attention
        >>> _, certificate = conv_to_attention(torch.nn.Conv2d(3, 8, 3))
        >>> certificate.verdict, certificate.heads, certificate.sharpness
        ('exact', 9, None)
    """

    direction: str  # "conv_to_attention" or "attention_to_conv"
    dtype: str  # Dtype of the weights, for instance "float32"
    # α of the score −α‖δ − Δ‖² (1/pixel²), the smallest over heads; None for hard heads and other encodings
    sharpness: float | None
    check_shape: tuple[
        int, ...
    ]  # Shape of the random standard normal input on which the conversion was measured
    check_seed: int  # Seed of that input
    # Per head, the singular values of its matrix that a limited head width discarded, largest first
    discarded: tuple[tuple[float, ...], ...]
    not_covered: tuple[str, ...] = ()  # What the certificate says nothing about
    weights: str | None = None  # SHA-256 of the new module's weights; None in older files

    @property
    def difference(self) -> float | None:
        """Measured error as a share of the largest output; None if that is unknown or zero."""
        return self.measured_error / self.largest if self.largest else None

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        by = (
            f"by {self.difference:.2g} of the largest output, "
            if self.difference and self.verdict != "exact"
            else ""
        )
        allowed = f"{self.bound + self.rounding:.3g}  = bound {self.bound:.3g} + rounding {self.rounding:.3g}"
        per_unit = self.bound_per_unit + self.rounding_per_unit
        lines = [
            f"{self.direction.replace('_', ' ')}: {self.verdict} ({by}{counted(self.heads, 'head')}, {self.dtype})",
            f"  from            {self.source}",
            f"  to              {self.result}",
            f"  measured error  {self.measured_error:.3g}  on a standard normal input {self.check_shape}",
            f"  allowed         {allowed}",
            f"  any input       {per_unit:.3g} of its largest value + {self.rounding_at_zero:.3g}",
        ]
        to_attention = self.direction == "conv_to_attention"
        if self.sharpness is not None:
            where = "off the tap" if to_attention else "outside the window"
            lines.append(
                f"  sharpness       {self.sharpness:.6g} per pixel²; mass {where} at most {self.leak:.3g}"
            )
        elif to_attention:
            hard = not self.source.startswith(NormalisedConv.__name__)
            heads = (
                "hard: all attention of each at one displacement"
                if hard
                else "with the kernels' scores in tables"
            )
            lines.append(f"  heads           {heads}")
        if any(self.discarded):
            worst = max(values[0] for values in self.discarded if values)
            lines.append(
                f"  discarded       singular values up to {worst:.3g} (limited head width)"
            )
        if self.verdict == "different":
            lines += _remedies(self.direction)
            if any(self.discarded):
                lines.append("  made smaller    by a larger head width, or none")
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


def _remedies(direction: str) -> list[str]:
    """Returns the lines that say where a difference comes from, and what makes it smaller."""
    if direction.endswith("to_attention"):
        return ["  made smaller    by more sharpness, or none: hard heads are exact"]
    source = "attention outside the window (the leak), and at borders, where attention keeps to pixels that exist"
    remedy = 'a larger window, or none; at borders by borders="exact" (`--borders exact`)'
    return [f"  differs         by {source}", f"  made smaller    by {remedy}"]


@dataclass(frozen=True)
class LayerCertificate(LayerMeasurement):
    """One converted layer of a network: what its `Certificate` says, in short."""

    name: str  # As in `named_modules`; the first name of a layer that has several
    aliases: tuple[str, ...]  # Its further names
    kernel_size: tuple[int, ...]  # Kernel of the convolution, of the source or of the result
    path: (
        str | None
    )  # "convolution", or the attention's path on the network's images; None if they did not reach it
    notes: tuple[
        str, ...
    ] = ()  # What the result does not take over or does in another way, what was folded in

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        names: Sequence[str],
        *,
        kernel_size: tuple[int, ...],
        path: str | None,
        notes: Sequence[str],
    ) -> "LayerCertificate":
        """Shortens the certificate of a layer that has these names in the network."""
        measured = {
            field.name: getattr(certificate, field.name) for field in fields(LayerMeasurement)
        }
        own = {
            "name": names[0],
            "aliases": tuple(names[1:]),
            "kernel_size": kernel_size,
            "path": path,
        }
        return cls(**measured, **own, notes=tuple(notes))

    def summary(self) -> str:
        """Returns the layer in one line of plain text."""
        kind = "" if self.exact else f"leak {self.leak:.3g}, "
        kernel = " x ".join(map(str, self.kernel_size))
        of = "" if self.largest is None else f" of {self.largest:.3g}"
        error = f"error {self.measured_error:.3g}{of}, bound {self.bound + self.rounding:.3g}"
        where = f"kernel {kernel}, {self.path or 'not reached'}"
        return f"{self.name or ITSELF}: {self.verdict}, {kind}{counted(self.heads, 'head')}, {where}, {error}"


@dataclass(frozen=True)
class LeftAlone(Record):
    """A layer that was not converted, although it may compute a convolution."""

    name: str  # Dotted name of the module, or of the module that calls a convolution as a function
    kind: str  # Its class
    reason: str  # Why it was left

    @staticmethod
    def in_words(left: Sequence["LeftAlone"]) -> list[str]:
        """Returns a line for each reason; gates that are open by different shares are one reason."""
        alike: dict[str, list[LeftAlone]] = {}
        for item in left:
            alike.setdefault(item.kind + item.reason.partition(": head ")[0], []).append(item)
        words = []
        for items in alike.values():
            one, differ = items[0], len({item.reason for item in items}) > 1
            what = f"{len(items)} layers, numbers of the first" if differ else one.kind
            words.append(f"{some([item.name for item in items])} ({what}): {one.reason}")
        return words


@dataclass(frozen=True)
class NetworkCertificate(VerdictRecord):
    """What the conversion of a whole network promises, and what was measured of it, in either direction.

    Each layer has its own bound for every input, as in `Certificate`. For the whole network there is a promise only if
    every layer is exact: then both networks compute the same function and differ by rounding alone. The rounding is
    measured on the images named, and not bounded for others. If layers leak, the numbers for the whole network are
    measurements on these images and not bounds.

    The verdict is "exact" if every layer is exact and the networks agree within rounding, where they were compared;
    "close" if the largest difference is within `tolerance` and no prediction changed, on images that were given;
    "failed" if a layer broke its promise, or exact layers do not make the same network, or its outputs are of other
    shapes or not finite; and "different" otherwise.

    Example:
        >>> from convattn import network_to_attention
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> _, certificate = network_to_attention(network, images=torch.zeros(2, 3, 7, 7))
        >>> certificate.verdict, [(layer.name, layer.heads) for layer in certificate.layers]
        ('exact', [('0', 9)])
    """

    direction: str  # "network_to_attention" or "network_to_conv"
    source: str  # Class of the network converted
    result: str  # Class of the network made
    dtype: str  # Dtypes of its parameters, for instance "float32"
    impl: str | None  # Path requested of attention layers that were made; None towards convolutions
    layers: tuple[
        LayerCertificate, ...
    ]  # The converted layers, in the order of their names in the network
    left_alone: tuple[LeftAlone, ...]  # What was not converted
    exact: bool  # Whether every converted layer is exact
    images: (
        str | None
    )  # What the whole networks were compared on, in words; None if they were not compared
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    # Dtype of the source with which the result is compared; None if it was not, like the next three
    reference: str | None
    measured_error: (
        float | None
    )  # Largest difference to the reference, at the output that comes closest to its budget
    rounding: (
        float | None
    )  # Largest difference that rounding explains there, by `docs/explanation/error-budget.md`
    largest: float | None  # Largest absolute value of the reference there
    # Largest difference that is called close, as a share of `largest`; None where nothing is called close, because only
    # random numbers were compared or no limit was stated
    tolerance: float | None
    top1_total: (
        int | None
    )  # Number of predictions; None unless the first output is one row of scores per image
    top1_changed: int | None  # How many of them have another largest score than before
    accuracy_before: (
        float | None
    )  # Share of the labels that the source predicts, in [0, 1]; None without labels
    accuracy_after: float | None  # The same of the network made
    not_covered: tuple[str, ...] = ()  # What the certificate says nothing about
    weights: str | None = None  # SHA-256 of the weights of the network made; None in older files

    @property
    def difference(self) -> float | None:
        """Measured error as a share of the largest output; None if that is unknown or zero."""
        return (
            self.measured_error / self.largest
            if self.measured_error is not None and self.largest
            else None
        )

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text: exact layers are counted, others have a line each."""
        apart = []
        if self.verdict != "exact":
            apart += [f"by {self.difference:.2g} of the largest output"] if self.difference else []
            apart += (
                [f"{self.top1_changed} of {self.top1_total} decisions changed"]
                if self.top1_total
                else []
            )
        sizes = [
            counted(len(self.layers), "layer"),
            counted(sum(layer.heads for layer in self.layers), "head"),
        ]
        paths = [layer.path or "not reached" for layer in self.layers]
        lines = [
            f"{self.direction.replace('_', ' ')}: {self.verdict} ({', '.join([*apart, *sizes, self.dtype])})",
            f"  from            {self.source}",
            f"  to              {self.result}",
            f"  paths           {', '.join(f'{paths.count(path)} {path}' for path in sorted(set(paths)))}",
        ]
        if (
            self.measured_error is not None
            and self.rounding is not None
            and self.largest is not None
        ):
            lines.append(
                f"  measured error  {self.measured_error:.3g} of {self.largest:.3g}, on {self.images}"
            )
            lines.append(f"  rounding        {self.rounding:.3g}, against {self.reference}")
        if self.tolerance is not None and not self.exact:
            lines.append(
                f"  limit           {self.tolerance:.3g} of the largest output, for a result that is close"
            )
        if self.top1_total is not None:
            lines.append(f"  top-1 changed   {self.top1_changed} of {self.top1_total}")
        if self.accuracy_before is not None and self.accuracy_after is not None:
            lines.append(
                f"  accuracy        {self.accuracy_before:.2%} before, {self.accuracy_after:.2%} after"
            )
        if self.verdict in ("close", "different"):
            lines += _remedies(self.direction)
        told = [layer for layer in self.layers if not (layer.exact and layer.verdict == "exact")]
        lines += [f"  layer           {layer.summary()}" for layer in told]
        for note in dict.fromkeys(note for layer in self.layers for note in layer.notes):
            lines.append(
                f"  note            {note} ({some([one.name for one in self.layers if note in one.notes])})"
            )
        lines += [f"  left alone      {reason}" for reason in LeftAlone.in_words(self.left_alone)]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


def off_centre_mass(sharpness: float, dims: int) -> float:
    """Bounds the weight that a quadratic head centred on a pixel gives to all other pixels.

    `ε(α) = θ(e^{−α})ⁿ − 1` with `θ(x) = 1 + 2 Σ_{m≥1} x^{m²}`: the sum of e^{−α‖δ‖²} over the lattice without its
    centre, whose own weight before normalisation is 1. It also holds at borders, where there are fewer keys. For small
    α it is evaluated as `θ(e^{−α}) = √(π/α) θ(e^{−π²/α})`, and never reported above e^700.

    Source: `docs/explanation/theory.md` §3.

    Args:
        sharpness: α > 0, in 1/pixel².
        dims: Number of axes n ≥ 1.

    Returns:
        ε(α), a share of the attention; above 1 the bound says nothing.

    Raises:
        ArgumentError: α is not positive.

    Example:
        >>> round(off_centre_mass(5.0, dims=2), 4)
        0.0271
    """
    if not sharpness > 0:
        raise ArgumentError(must_be("sharpness", "above 0", sharpness))
    if (
        sharpness < math.pi
    ):  # Jacobi's identity: the sum over the dual lattice converges where this one is slow
        dual = 2 * _gaussian_tail(math.pi**2 / sharpness)
        return math.expm1(min(dims * (math.log(math.pi / sharpness) / 2 + math.log1p(dual)), 700.0))
    return math.expm1(dims * math.log1p(2 * _gaussian_tail(sharpness)))


def _gaussian_tail(sharpness: float) -> float:
    """Sums e^{−αm²} over m ≥ 1, for α ≥ π; the tenth term is below 1e-136 of the first."""
    return math.fsum(math.exp(-sharpness * step * step) for step in range(1, 10))


def underflows(sharpness: float, dtype: torch.dtype) -> bool:
    """Tells whether every weight off the centre is exactly zero, because e^{−α} underflows in the softmax.

    The softmax runs in at least float32.

    Example:
        >>> underflows(100.0, torch.float32), underflows(104.0, torch.float32), underflows(104.0, torch.float64)
        (False, True, False)
    """
    kind = torch.promote_types(dtype, torch.float32)
    return torch.exp(torch.tensor(-sharpness, dtype=kind)).item() == 0


def convolution_rounding(
    conv: AnyConvolution | NormalisedConv,
    kernel: Float[Tensor, "..."],
    rows: Float[Tensor, "heads outputs"],
) -> tuple[float, float]:
    """Bounds the rounding of a convolution that replaces attention with row sums Σ_i |W_h[o, i]|, as `_rounding`."""
    source = rows.sum(0).max().item()
    if not isinstance(conv, NormalisedConv):
        terms, writes = kernel[0].numel() + _STEPS, kernel[0, 0].numel() + _STEPS
        weights = kernel.abs().flatten(1).sum(1).max().item()
        return _rounding(conv, weights, source, terms + len(rows) * kernel.shape[1], writes)
    # Sums over taps are both divided and divisor, of kernels that an exponential rounds.
    taps = sum(conv.taps) if conv.separable else math.prod(conv.taps)
    terms, writes = (
        2 * taps + 4 * conv.dims + conv.num_heads * conv.in_channels + _STEPS,
        conv.num_heads + _STEPS,
    )
    per_unit, at_zero = _rounding(conv, source, source, terms, writes)
    return per_unit + largest(kernel @ rows), at_zero


def _least_rounding(conv: NormalisedConv, x: Tensor) -> float:
    """Returns eps √n Σ|terms| of the largest output, a sum of n terms, one for each head and channel."""
    absolute = copy.deepcopy(conv).double()
    for parameter in absolute.values.parameters():
        parameter.abs_()
    terms = absolute.num_heads * absolute.in_channels // absolute.groups
    return torch.finfo(x.dtype).eps * math.sqrt(terms) * largest(absolute(x.double().abs()))


def attention_rounding(
    layer: RelativeAttention, conv: AnyConvolution | NormalisedConv
) -> tuple[float, float]:
    """Bounds the rounding of attention that replaces a convolution, compared with the convolution in float64.

    At most `2 √(E/α) + 1` weights of a quadratic head along an axis are not zero, where E is the exponent at which they
    underflow. So the bound holds for images of any size. It is given as by `_rounding`.
    """
    keys, width, alpha = 1, next(layer.values.parameters()).shape[1], lowest_sharpness(layer)
    if alpha is not None:
        keys += 2 * math.isqrt(math.ceil(_EXPONENT.get(conv.weight.dtype, 104.0) / alpha)) + 2
    scores = (
        0.0  # a score s is subtracted from others; what that rounds moves weights by shares of it
    )
    if isinstance(conv, NormalisedConv):
        keys, scores = (
            (sum if conv.separable else math.prod)(conv.taps),
            max(largest(s) for s in conv.scores),
        )
    terms = (
        layer.num_heads * (layer.in_channels // layer.groups + width)
        + 2 * layer.dims * keys
        + _STEPS
    )
    terms += math.ceil(8 * layer.dims * scores)
    values = copy.deepcopy(layer.values).double()
    with torch.no_grad():
        for parameter in values.parameters():
            parameter.abs_()  # the product of narrow matrices sums terms larger than its own
        weights = reduce(values.maps(), "heads outputs channels -> outputs", "sum").max().item()
    return _rounding(conv, weights, weights, terms, layer.num_heads + layer.dims + _STEPS)


def _rounding(
    conv: AnyConvolution | NormalisedConv, weights: float, source: float, terms: int, writes: int
) -> tuple[float, float]:
    """Bounds the rounding error of a result plus that of its source in float64, if nothing overflows.

    The error of a sum of n terms, in any order, is at most `(1 + u)ⁿ − 1 ≤ e^{nu} − 1` times the sum of their absolute
    values, with u = ½ eps. Numbers narrower than float32 are summed in float32 and rounded when they are stored.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.1 and §4.2.

    `weights` and `source` are the largest sums of absolute weights of one output. `terms` counts the terms and further
    roundings in the dtype of the sum, `writes` the roundings to a narrower dtype. Returns the bound for images of
    largest absolute value 1, and what an image of zeros adds: rounding of the bias, and underflow.
    """
    dtype = (
        next(conv.values.parameters()).dtype
        if isinstance(conv, NormalisedConv)
        else conv.weight.dtype
    )
    sums, exact = (
        torch.finfo(kind) for kind in (torch.promote_types(dtype, torch.float32), torch.float64)
    )
    own = torch.finfo(dtype)
    narrow = writes if own.eps > sums.eps else 0
    lost, lost_by_source = (
        math.expm1((terms * sums.eps + narrow * own.eps) / 2),
        math.expm1(terms * exact.eps / 2),
    )
    bias = 0.0 if conv.bias is None else conv.bias.detach().abs().max().item()
    smallest = (terms * sums.tiny + narrow * own.smallest_normal * own.eps) * max(1.0, weights)
    return weights * lost + source * lost_by_source, bias * (lost + lost_by_source) + smallest


def draw_images(layer: RelativeAttention, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws two standard normal images of given sizes for a layer, in float64, and rounds them."""
    shape = (2, layer.in_channels, *sizes)
    x = torch.randn(
        shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64, device="cpu"
    )
    return x.to(device=next(layer.values.parameters()).device, dtype=dtype)


def smallest_image(geometry: Geometry) -> list[int]:
    """Returns the smallest sizes for which the padded image holds the window."""
    slack = {"reflect": 1, "circular": 0}.get(geometry.padding_mode)
    sizes = []
    for axis, (before, after) in enumerate(geometry.padding):
        repeated = 1 if slack is None else max(before, after) + slack
        beyond = geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - before - after
        sizes.append(max(1, repeated, -(-beyond // geometry.input_dilation[axis]) + 1))
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


def largest(x: Tensor) -> float:
    """Returns the largest absolute value, or 0 for an empty tensor."""
    return x.abs().max().item() if x.numel() else 0.0


def lowest_sharpness(layer: RelativeAttention) -> float | None:
    """Returns the smallest α of quadratic heads; None for other encodings."""
    encoding = layer.encoding
    return (
        encoding.sharpness.detach().double().min().item()
        if isinstance(encoding, Quadratic)
        else None
    )


def describe_layer(layer: torch.nn.Module) -> str:
    """Returns a layer in one line, as a certificate prints it."""
    encoding = f", encoding={layer.encoding}" if isinstance(layer, RelativeAttention) else ""
    return f"{type(layer).__name__}({layer.extra_repr()}{encoding})"


def certify_attention(
    conv: AnyConvolution | NormalisedConv,
    layer: RelativeAttention,
    *,
    leak: float,
    per_unit: float,
    discarded: tuple[tuple[float, ...], ...] = (),
    sizes: Sequence[int] | None = None,
) -> Certificate:
    """Runs a convolution and the layer made from it on random images, and records how much they differ.

    The layer runs twice: as a real softmax, and by the path that it takes by itself. `per_unit` bounds the error for
    inputs of absolute value ≤ 1; `leak` and `discarded` are fields of the certificate. A normalised convolution is run
    on images of `sizes`; there the layer must also be right in float64, and rounding of its scores counts.
    """
    if sizes is None:
        sizes = [
            size + 3 + axis for axis, size in enumerate(smallest_image(layer.geometry))
        ]  # all different
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    attention = softmax_copy(layer, x.dtype)
    if attention.content is not None:
        attention.impl = "reference"
    with torch.no_grad(), without_autocast(x.device):
        exact_conv = copy.deepcopy(conv).double().cpu()
        high = exact_conv(x.double().cpu())
        made, by_itself, lows = (
            attention(x),
            layer(x),
            [conv(x), *(conv(other) for other in _moved(x))],
        )
        bounds, same, not_covered = attention_rounding(layer, conv), True, []
        if isinstance(conv, NormalisedConv):
            precise = softmax_copy(layer, torch.float64)
            of_layer, (share, at_zero) = (
                precise(x.double()).cpu(),
                attention_rounding(precise, exact_conv),
            )
            same = largest(of_layer - high) <= share * largest(x) + at_zero
            allowed = rounding_budget(of_layer, [made, *(attention(other) for other in _moved(x))])
            not_covered.append(
                "images with displacements that its table does not hold, which it refuses"
            )
        else:
            taps, allowed = read_taps(conv), 0.0
            lows += [tap_by_tap(taps, x), term_by_term(taps, x)]
    measured_error = max(largest(y.double().cpu() - high) for y in (made, by_itself))
    allowed, exact = max(allowed, rounding_budget(high, lows)), leak == 0 and not any(discarded)
    if lowest_sharpness(layer) is not None:
        not_covered.append("centres rounded when the layer is cast to a narrower dtype")
    if isinstance(conv, TransposedConvolution):
        not_covered.append("the argument output_size of forward: output_padding is used instead")
    return _certificate(
        layer,
        x,
        per_unit,
        bounds,
        allowed,
        same=same,
        direction="conv_to_attention",
        source=describe_layer(conv),
        result=describe_layer(layer),
        leak=leak,
        exact=exact,
        largest=largest(high),
        measured_error=measured_error,
        discarded=discarded,
        not_covered=tuple(not_covered),
        weights=weights_digest(layer),
    )


def certify_convolution(
    layer: RelativeAttention,
    conv: AnyConvolution | NormalisedConv,
    kernel: Float[Tensor, "..."],
    maps: Float[Tensor, "heads outputs channels"],
    sizes: tuple[int, ...],
    *,
    leak: float,
    errors: Float[Tensor, "heads queries"],
    any_size: bool,
) -> Certificate:
    """Runs a layer and the convolution made from it on random images of `sizes`, and records how much they differ.

    Two questions are asked. First, does the convolution compute the layer's function? Both run in float64, where they
    may differ by the bound and by the rounding of the kernel. Second, is its result as good as its dtype allows? It may
    lose what other ways of computing it lose (torch's own convolution on this processor is one of them), but never more
    than the a-priori bound on rounding.

    `kernel` is the kernel before rounding, or what rounding of the scores moves of each head's attention if `conv` is
    normalised. `maps` are the heads' matrices in float64. `errors` bounds how much attention the kernel misses, `leak`
    how much lies outside the window; `any_size` tells whether both hold for images of all sizes.
    """
    rows = reduce(maps.abs(), "heads outputs channels -> heads outputs", "sum")
    x = draw_images(layer, sizes, next(layer.values.parameters()).dtype)
    with torch.no_grad(), without_autocast(x.device):
        exact_conv = copy.deepcopy(conv).double()
        high, high_conv = softmax_copy(layer, torch.float64)(x.double()), exact_conv(x.double())
        attention, made = softmax_copy(layer, x.dtype), conv(x)
        lows = [attention(x), *(attention(other) for other in _moved(x))]
        reordered = [made, *(conv(other) for other in _moved(x))]
        if isinstance(conv, NormalisedConv):
            rounded = largest(kernel @ rows) * largest(x) + _least_rounding(conv, x)
        else:
            reordered.append(summed_otherwise(conv, x))
            rounded = largest(
                (kernel - kernel.to(x.dtype).double()).abs().flatten(1).sum(1)
            ) * largest(x)
    budget = max(rounding_budget(high, lows), rounding_budget(high_conv, reordered)) + rounded
    measured_error, bounds = largest(made.double() - high), convolution_rounding(conv, kernel, rows)
    per_unit = (errors.mT @ rows).max().item()
    exact_per_unit, at_zero = convolution_rounding(exact_conv, kernel, rows)
    agreed = (per_unit + exact_per_unit) * largest(x) + rounded + at_zero
    not_covered = [] if any_size else [f"images of other sizes than {' x '.join(map(str, sizes))}"]
    if layer.dropout:
        not_covered.append(
            "dropout of attention weights in training, which a convolution does not have"
        )
    return _certificate(
        layer,
        x,
        per_unit,
        bounds,
        budget,
        same=largest(high_conv - high) <= agreed,
        direction="attention_to_conv",
        source=describe_layer(layer),
        result=describe_layer(conv),
        leak=leak,
        exact=errors.max().item() <= torch.finfo(x.dtype).eps,
        largest=largest(high),
        measured_error=measured_error,
        discarded=(),
        not_covered=tuple(not_covered),
        weights=weights_digest(conv),
    )


def _moved(x: Tensor) -> list[Tensor]:
    """Returns images with other last digits, as many as a budget needs beside the image itself."""
    return [rounded_differently(x, seed) for seed in range(LEAST_ROUNDINGS - 1)]


def _certificate(
    layer: RelativeAttention,
    x: Tensor,
    bound_per_unit: float,
    bounds: tuple[float, float],
    rounding: float,
    *,
    same: bool = True,
    **fields: Any,
) -> Certificate:
    """Makes the certificate of either direction, with the verdict.

    `bounds` limit the `rounding` that other computations of the same show. A bound hidden by rounding counts as exact.
    `same` tells whether both agree in float64, where that was compared.
    """
    unit, (per_unit, at_zero) = x.abs().max().item(), bounds
    bound, rounding = bound_per_unit * unit, min(rounding, per_unit * unit + at_zero)
    verdict: Verdict = "exact" if fields["exact"] or bound <= rounding else "different"
    return Certificate(
        verdict=verdict if same and fields["measured_error"] <= bound + rounding else "failed",
        dtype=str(x.dtype).removeprefix("torch."),
        heads=layer.num_heads,
        sharpness=lowest_sharpness(layer),
        bound_per_unit=bound_per_unit,
        rounding_per_unit=per_unit,
        rounding_at_zero=at_zero,
        check_shape=tuple(x.shape),
        check_seed=SEED,
        bound=bound,
        rounding=rounding,
        **fields,
    )


def require_share(argument: str, share: float | None) -> None:
    """Raises ArgumentError unless `share` is None or a number in (0, 1)."""
    if share is not None and (
        isinstance(share, bool) or not (isinstance(share, int | float) and 0 < share < 1)
    ):
        raise ArgumentError(must_be(argument, "a share in (0, 1), or None", share))
