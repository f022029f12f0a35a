"""The certificate of a network: its layers' certificates in short, and how far the two networks are apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

from torch import nn

from convattn.convert.classes import full_name
from convattn.errors import ArgumentError, must_be
from convattn.fields import Range, fits
from convattn.records import Certificate, LayerCertificate, LeftAlone, NetworkCertificate, Verdict
from convattn.sealed import weights_digest

_MEASURED = ("images", "reference", "top1_total", "top1_changed", "accuracy_before", "accuracy_after")
"""Fields of a comparison that a certificate repeats; None where the networks were not compared."""

CLOSE = 0.01
"""Largest difference that is called close, as a share of the largest output, where the caller does not say.

A decision can change only where its two largest scores are nearer than twice this share.
"""


class Difference(NamedTuple):
    """How far one output of a network is from the reference."""

    error: float  # Largest difference
    rounding: float  # Largest difference that rounding explains
    largest: float  # Largest absolute value of the reference
    same: bool = True  # Whether the reference was met again in float64, where that was asked

    @property
    def relative(self) -> float:
        """Error over largest value; not a number counts as infinite."""
        share = self.error / self.largest if self.largest else math.inf * self.error
        return 0.0 if self.error == 0 else math.inf if math.isnan(share) else share

    @property
    def share(self) -> float:
        """Error over rounding; infinite where the networks differ in float64 or rounding exceeds the values."""
        if not self.same or self.rounding > self.largest or not math.isfinite(self.error + self.rounding):
            return math.inf
        return self.error / self.rounding if self.rounding else math.inf if self.error else 0.0


@dataclass(frozen=True)
class NetworkComparison:
    """How far a network is from its source on some images."""

    images: str  # What the networks were run on, in words
    shapes: tuple[tuple[int, ...], ...]  # Shapes of the tensors that they were called with
    reference: str  # Dtype in which the source computes the reference
    outputs: tuple[Difference, ...]  # One difference per output, at least one
    differing: tuple[str, ...]  # Parts of the output beside floating-point numbers that differ
    top1_total: int | None  # Number of predictions; None where the first output is not one row of scores per image
    top1_changed: int | None  # How many predictions differ from those of the source
    accuracy_before: float | None  # Share of the labels that the source predicts; None without labels
    accuracy_after: float | None  # The same for the converted network
    not_covered: tuple[str, ...]  # What the comparison could not show

    def worst(self, *, exact: bool) -> Difference:
        """Returns the output nearest to its budget or beyond; where layers are not exact, that of largest error."""
        return max(self.outputs, key=lambda one: one.share if exact else one.relative)


def certify_network(  # noqa: PLR0913 - what a certificate consists of
    direction: str,
    source: nn.Module,
    made: nn.Module,
    layers: Sequence[LayerCertificate],
    left_alone: Sequence[LeftAlone],
    comparison: NetworkComparison | None,
    *,
    tolerance: float | None,
    impl: str | None = None,
    not_covered: Sequence[str] = (),
) -> NetworkCertificate:
    """Puts the certificate of a network together and judges it.

    `comparison` is None where the networks were not compared. `tolerance` is the share of the largest output up to
    which a difference may be called close, or None.
    """
    exact = all(layer.exact for layer in layers)
    verdict, worst = _judge(layers, comparison, tolerance)
    dtypes = dict.fromkeys(str(parameter.dtype).removeprefix("torch.") for parameter in made.parameters())
    return NetworkCertificate(
        direction=direction,
        source=full_name(type(source)),
        result=full_name(type(made)),
        dtype=", ".join(dtypes),
        impl=impl,
        layers=tuple(layers),
        left_alone=tuple(left_alone),
        exact=exact,
        measured_error=worst.error if worst else None,
        rounding=worst.rounding if worst else None,
        largest=worst.largest if worst else None,
        tolerance=tolerance,
        verdict=verdict,
        not_covered=(*not_covered, *(comparison.not_covered if comparison else ())),
        weights=weights_digest(made),
        shapes=comparison.shapes if comparison else (),
        **{name: getattr(comparison, name, None) for name in _MEASURED},
    )


def require_tolerance(tolerance: float | None) -> None:
    """Raises ArgumentError unless `tolerance` is None or a share in (0, 1)."""
    if tolerance is not None and not fits(
        tolerance, Annotated[float, Range(0, 1, without_low=True, without_high=True)]
    ):
        raise ArgumentError(must_be("tolerance", "a share in (0, 1), or None", tolerance))


def _judge(
    layers: Sequence[LayerCertificate], comparison: NetworkComparison | None, tolerance: float | None
) -> tuple[Verdict, Difference | None]:
    """Returns the verdict on a network, and the output by which it is judged."""
    verdicts = {layer.verdict for layer in layers}
    if comparison is None:
        return "failed" if "failed" in verdicts else "exact" if verdicts == {"exact"} else "different", None
    by_rounding, by_size = comparison.worst(exact=True), comparison.worst(exact=False)
    exact = all(layer.exact for layer in layers)
    if "failed" in verdicts or not math.isfinite(by_size.error):
        return "failed", by_rounding if exact else by_size
    if verdicts == {"exact"} and by_rounding.share <= 1 and not comparison.differing:
        return "exact", by_rounding
    if exact:
        return "failed", by_rounding
    close = tolerance is not None and by_size.largest > 0 and by_size.relative <= tolerance
    return "close" if close and not comparison.top1_changed and not comparison.differing else "different", by_size


def shorten(
    certificate: Certificate,
    names: Sequence[str],
    *,
    kernel_size: tuple[int, ...],
    path: str | None,
    notes: tuple[str, ...],
) -> LayerCertificate:
    """Shortens a layer's certificate to its entry in the certificate of a network.

    `names` are its dotted names in the network. `path` is None where the network's images did not reach the layer.
    """
    shared = {field.name for field in fields(LayerCertificate)} & {field.name for field in fields(Certificate)}
    return LayerCertificate(
        name=names[0],
        aliases=tuple(names[1:]),
        kernel_size=kernel_size,
        path=path,
        notes=notes,
        **{name: getattr(certificate, name) for name in shared},
    )
