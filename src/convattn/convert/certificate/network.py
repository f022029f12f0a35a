"""The certificate of a network: its layers' certificates in short, and how far the two networks are apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from torch import nn

from convattn.convert.classes import full_name
from convattn.records import Certificate, LayerCertificate, LeftAlone, NetworkCertificate
from convattn.sealed import weights_digest

_MEASURED = ("images", "reference", "top1_total", "top1_changed", "accuracy_before", "accuracy_after")
"""Fields of a comparison that a certificate repeats; None where the networks were not compared."""


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

    @property
    def resembles(self) -> bool:
        """Whether the error is explained by rounding, or at least smaller than the output; a network of zeros fails."""
        return self.error <= self.rounding or self.error < self.largest


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


def certify_network(
    direction: str,
    source: nn.Module,
    made: nn.Module,
    layers: Sequence[LayerCertificate],
    left_alone: Sequence[LeftAlone],
    comparison: NetworkComparison | None,
    *,
    impl: str | None = None,
    not_covered: Sequence[str] = (),
) -> NetworkCertificate:
    """Puts the certificate of a network together; `comparison` is None where the networks were not compared."""
    exact, passed = all(layer.exact for layer in layers), all(layer.passed for layer in layers)
    worst = None if comparison is None else comparison.worst(exact=exact)
    if comparison is not None and worst is not None:
        passed = passed and (worst.share <= 1 if exact else worst.resembles)
        passed = passed and not comparison.differing
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
        passed=passed,
        not_covered=(*not_covered, *(comparison.not_covered if comparison else ())),
        weights=weights_digest(made),
        shapes=comparison.shapes if comparison else (),
        **{name: getattr(comparison, name, None) for name in _MEASURED},
    )


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
