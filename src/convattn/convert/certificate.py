"""Certificates: what a conversion promises, what was measured, and what neither covers."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch

from convattn.errors import require
from convattn.record import Record
from convattn.wording import ITSELF, counted, first_few, some

CLOSE = 0.01
"""Largest difference that is called close, as a share of its channel's largest output, where the caller does not say.

A decision can change only where its two largest scores are nearer than twice this share.
"""

FULL_PRECISION = "float32 in full, TF32 off"
"""How a certificate is measured, whatever torch is set to."""

Verdict = Literal["exact", "close", "different", "failed"]
"""The same up to rounding; within a stated limit, with no decision changed; neither; a promise was broken."""

IN_WORDS = {
    "exact": "computes what {} computes, up to rounding",
    "close": "is near {} and decides alike, but is not shown to compute the same",
    "different": "does not compute what {} computes",
    "failed": "does not give what {} gives",
}
"""What each verdict says of a result and its source."""


def require_share(argument: str, share: float | None) -> None:
    """Raises ArgumentError unless `share` is None or a number in (0, 1)."""
    if share is None:
        return
    require(
        isinstance(share, Real) and 0 < share < 1, argument, "a share in (0, 1), or None", share
    )


@dataclass(frozen=True, kw_only=True)
class VerdictRecord(Record):
    """A record of a check, with one of four verdicts."""

    verdict: Verdict
    precision: str = FULL_PRECISION  # How products and sums were computed on every device

    @property
    def passed(self) -> bool:
        """Whether the verdict is "exact" or "close"."""
        return self.verdict in ("exact", "close")


@dataclass(frozen=True)
class ConversionRecord(VerdictRecord):
    """A record of the conversion of a layer or of a network."""

    direction: str  # Which function converted, for instance "conv_to_attention"
    source: str  # A layer as `print` shows it, or the class of a network
    result: str  # The same of what replaces it
    dtype: str  # Dtypes of the parameters, for instance "float32"

    @property
    def to_attention(self) -> bool:
        """Whether convolutions became attention."""
        return self.direction.endswith("to_attention")

    def _heading(self, difference: float | None, facts: Sequence[str]) -> list[str]:
        """Returns the first lines of a summary."""
        if self.verdict != "exact" and difference:
            facts = [f"by {difference:.2g} of its channel's largest output", *facts]
        return [
            f"{self.direction.replace('_', ' ')}: {self.verdict} ({', '.join(facts)})",
            f"  from            {self.source}",
            f"  to              {self.result}",
        ]


@dataclass(frozen=True)
class Certificate(ConversionRecord):
    """What the conversion of a layer promises, and what was measured of it on a random input.

    The promise holds for every input x without overflow: ``max|y − y_source| ≤ (bound_per_unit + rounding_per_unit) ·
    max|x| + rounding_at_zero``, with y the result in its dtype and y_source the source in float64. Its rounding terms
    cover the worst case of any order of summation. The measured error must keep to `rounding` instead, which is much
    smaller.

    The verdict is "exact" where nothing is lost but rounding, or no more than rounding; "failed" where the measured
    error exceeds bound + rounding, or the result in float64 is further from the source than `bound` and the rounding of
    its weights allow; and "different" otherwise. A single layer is measured on random numbers, and never called close.

    Example:
        >>> import torch
        >>> from convattn import conv_to_attention
        >>> _, certificate = conv_to_attention(torch.nn.Conv2d(3, 8, 3))
        >>> certificate.verdict, certificate.heads, certificate.sharpness
        ('exact', 9, None)
    """

    heads: int  # Number of attention heads, of the source or of the result
    kernel_size: tuple[int, ...]  # Taps of the convolution, of the source or of the result
    exact: bool  # Whether only rounding is lost: no attention is off the taps
    # Bound on the attention outside a head's own pixel; towards a convolution, outside the window
    leak: float
    # α of the score −α‖δ − Δ‖² (1/pixel²), the smallest over heads; None for other encodings
    sharpness: float | None
    # A-priori bound on the output error for inputs of absolute value ≤ 1, without rounding
    bound_per_unit: float
    rounding_per_unit: float  # What rounding adds to that at most, in full precision (not TF32)
    # The same for an input of zeros: rounding of the bias, and numbers too small for the dtype
    rounding_at_zero: float
    check_shape: tuple[int, ...]  # Shape of the standard normal input that was measured
    check_seed: int  # Seed of that input
    bound: float  # The a-priori bound there, at the output that is nearest to its limit
    measured_error: float  # How far that output is from the source in float64
    # How far rounding explains there (`docs/explanation/error-budget.md`)
    rounding: float
    largest: float  # Largest absolute value of the source in the channel of that output
    weights: str  # SHA-256 of the new module's weights and configuration
    normalised: bool = False  # Whether the convolution is a `NormalisedConv`
    any_size: bool = True  # Whether the promise holds for images of any size
    has_dropout: bool = False  # Whether the source drops attention weights in training
    has_output_size: bool = False  # Whether the source's forward takes an `output_size`
    name: str = ""  # Of the layer in a network, the first of several; as in `named_modules`
    aliases: tuple[str, ...] = ()  # Its further names there
    # Which convolution it is, from 1, of those that the module calls as functions; 0: the module
    call: int = 0
    # In a network: "convolution" or "normalised convolution", or the path of attention on its
    # images; None if they did not reach it
    path: str | None = None
    notes: tuple[str, ...] = ()  # What is not taken over, or is done in another way

    @property
    def difference(self) -> float | None:
        """Measured error as a share of its channel's largest output; None if that is zero."""
        return self.measured_error / self.largest if self.largest else None

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the certificate says nothing about."""
        items = []
        if not self.any_size:
            sizes = " x ".join(map(str, self.check_shape[2:]))
            items.append(f"images of other sizes than {sizes}")
        if self.has_dropout:
            items.append(
                "dropout of attention weights in training, which a convolution does not have"
            )
        if self.sharpness is not None and self.to_attention:
            items.append("centres rounded when the layer is cast to a narrower dtype")
        if self.has_output_size:
            items.append("the argument output_size of forward: output_padding is used instead")
        return tuple(items)

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        facts = [counted(self.heads, "head"), self.dtype]
        allowed = self.bound + self.rounding
        per_unit = self.bound_per_unit + self.rounding_per_unit
        lines = [
            *self._heading(self.difference, facts),
            f"  measured error  {self.measured_error:.3g}  at the output nearest to its limit",
            f"  measured on     standard normal numbers {self.check_shape}",
            f"  allowed there   {allowed:.3g}  = bound {self.bound:.3g} + rounding {self.rounding:.3g}",
            f"  precision       {self.precision}",
            f"  any input       {per_unit:.3g} of its largest value + {self.rounding_at_zero:.3g}",
        ]
        if self.sharpness is not None:
            mass = "mass off the tap" if self.to_attention else "mass outside the window"
            sharpness = f"{self.sharpness:.6g} per pixel²"
            lines.append(f"  sharpness       {sharpness}; {mass} at most {self.leak:.3g}")
        elif self.to_attention:
            lines.append("  heads           hard: all attention of each at one displacement")
        if self.verdict == "different":
            lines += _remedies([self])
        lines += [f"  note            {note}" for note in self.notes]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)

    def line(self) -> str:
        """Returns the layer of a network in one line of plain text."""
        kernel = " x ".join(map(str, self.kernel_size))
        facts = [
            self.verdict,
            counted(self.heads, "head"),
            f"kernel {kernel}",
            self.path or "not reached",
            f"error {self.measured_error:.3g} of {self.largest:.3g} on normal numbers",
            f"bound {self.bound + self.rounding:.3g}",
        ]
        if not self.exact:
            facts.insert(1, f"leak {self.leak:.3g}")
        which = f", call {self.call}" if self.call else ""
        return f"{self.name or ITSELF}{which}: {', '.join(facts)}"


def _remedies(layers: Sequence[Certificate]) -> list[str]:
    """Returns the lines that say where a difference comes from, and what makes it smaller."""
    inexact = [layer for layer in layers if layer.verdict != "exact"]
    if not inexact:
        return []
    if any(layer.to_attention for layer in inexact):
        return ["  made smaller    by more sharpness, or none: hard heads are exact"]
    reasons, remedies = [], []
    if any(layer.leak > torch.finfo(getattr(torch, layer.dtype)).eps for layer in inexact):
        reasons.append("by attention outside the window (the leak)")
        remedies.append("by a larger window, or none")
    if not all(layer.normalised for layer in inexact):
        reasons.append("at borders, where attention keeps to pixels that exist")
        remedies.append('at borders by borders="exact" (`--borders exact`)')
    return [
        f"  differs         {', and '.join(reasons)}",
        f"  made smaller    {'; '.join(remedies)}",
    ]


@dataclass(frozen=True)
class LeftAlone(Record):
    """A layer that was not converted, although it may compute a convolution."""

    name: str  # Dotted name of the module, or of the module that calls a convolution as a function
    kind: str  # Its class
    reason: str  # Why it was left

    @staticmethod
    def in_words(left: Sequence["LeftAlone"]) -> list[str]:
        """Returns a line for each of the first reasons."""
        alike: dict[tuple[str, str], list[str]] = {}
        for item in left:
            alike.setdefault((item.kind, item.reason), []).append(item.name)
        lines = [f"{some(names)} ({kind}): {reason}" for (kind, reason), names in alike.items()]
        return first_few(lines)


@dataclass(frozen=True)
class NetworkCertificate(ConversionRecord):
    """What the conversion of a whole network promises, and what was measured of it, in either direction.

    Each layer has its own `Certificate`, with a bound for every input. For the whole network there is a promise only if
    every layer is exact: then both networks compute the same function and differ by rounding alone. The rounding is
    measured on the images named, and not bounded for others. If layers leak, the numbers for the whole network are
    measurements on these images and not bounds.

    The verdict is "exact" if every layer is exact and the networks agree within rounding, where they were compared;
    "close" if the largest difference is within `tolerance` and no prediction changed, on images that were given, but
    between two scores that rounding can swap; "failed" if a layer broke its promise, or exact layers do not make the
    same network, or its outputs are of other shapes or not finite; and "different" otherwise.

    Example:
        >>> import torch
        >>> from convattn import network_to_attention
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> _, certificate = network_to_attention(network, images=torch.zeros(2, 3, 7, 7))
        >>> certificate.verdict, [(layer.name, layer.heads) for layer in certificate.layers]
        ('exact', [('0', 9)])
    """

    layers: tuple[Certificate, ...]  # The converted layers, in the order of the network
    left_alone: tuple[LeftAlone, ...]  # What was not converted
    # Largest difference that is called close, as a share of its channel's largest output; None where nothing
    # is called close, because only random numbers were compared or no limit was stated
    tolerance: float | None
    weights: str  # SHA-256 of the new network's weights and configuration
    impl: str | None = None  # Path requested of the new attention layers; None towards convolutions
    not_covered: tuple[str, ...] = ()  # What the certificate says nothing about
    # What both networks were run on, in words; None, like the next four, if they were not compared
    images: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()  # Shapes of the tensors that they were called with
    reference: str | None = None  # Dtype of the source with which the result is compared
    # How far the output that is nearest to its limit is from the reference
    measured_error: float | None = None
    rounding: float | None = None  # How far rounding explains there
    largest: float | None = None  # Largest absolute value of the reference in its channel
    # Number of predictions; None unless the first output is one row of scores per image
    top1_total: int | None = None
    top1_changed: int | None = None  # How many of them have another largest score than before
    top1_ties: int | None = None  # How many of these differ where rounding can swap two scores

    @property
    def exact(self) -> bool:
        """Whether every converted layer is exact."""
        return all(layer.exact for layer in self.layers)

    @property
    def difference(self) -> float | None:
        """Measured error as a share of its channel's largest output; None if that is unknown or zero."""
        if self.measured_error is None or not self.largest:
            return None
        return self.measured_error / self.largest

    def summary(self) -> str:
        """Returns the certificate in at most 40 lines of plain text: of inexact layers the first ones and the worst."""
        paths = [layer.path or "not reached" for layer in self.layers]
        counts = [f"{paths.count(path)} {path}" for path in sorted(set(paths))]
        lines = [
            *self._heading(self.difference, self._facts()),
            f"  paths           {', '.join(counts)}",
            *self._lines_on_images(),
        ]
        if self.verdict in ("close", "different"):
            lines += _remedies(self.layers)
        inexact = [one for one in self.layers if not one.exact or one.verdict != "exact"]
        worst = sorted(inexact, key=lambda one: -(one.difference or 0.0))[: len(inexact) > 5]
        parts = {
            "layer": first_few([layer.line() for layer in inexact]),
            "worst": [layer.line() for layer in worst],
            "note": first_few(self.notes()),
            "left alone": LeftAlone.in_words(self.left_alone),
            "not covered": first_few(self.not_covered),
        }
        for word, several in parts.items():
            lines += [f"  {word:<16}{line}" for line in several]
        return "\n".join(lines)

    def _facts(self) -> list[str]:
        facts = []
        if self.verdict != "exact" and self.top1_total:
            facts.append(f"{self.top1_changed} of {self.top1_total} decisions changed")
        heads = sum(layer.heads for layer in self.layers)
        return [*facts, counted(len(self.layers), "layer"), counted(heads, "head"), self.dtype]

    def _lines_on_images(self) -> list[str]:
        """Returns what was measured on the images, in lines."""
        lines = []
        if self.measured_error or self.largest:  # else there were no numbers
            error = f"{self.measured_error:.3g} of {self.largest:.3g}"
            lines.append(f"  measured error  {error}, nearest to its limit, on {self.images}")
            lines.append(f"  rounding        {self.rounding:.3g}, against {self.reference}")
            lines.append(f"  precision       {self.precision}")
        if self.tolerance is not None and not self.exact:
            limit = (
                f"{self.tolerance:.3g} of its channel's largest output, for a result that is close"
            )
            lines.append(f"  limit           {limit}")
        if self.top1_total is not None:
            lines.append(f"  top-1 changed   {self.top1_changed} of {self.top1_total}")
        return lines

    def notes(self) -> list[str]:
        """Returns what the layers say, each once, with the names of the layers."""
        names: dict[str, list[str]] = {}
        for layer in self.layers:
            uncovered = [f"not covered: {item}" for item in layer.not_covered]
            for note in (*layer.notes, *uncovered):
                names.setdefault(note, []).append(layer.name)
        return [f"{note} ({some(several)})" for note, several in names.items()]
