"""Compares two reports: what differs by more than chance."""

import math
from collections.abc import Iterator

from convattn.errors import ArgumentError
from convattn.records.head_comparison import HeadDifference, ReportComparison
from convattn.records.head_report import HEAD_NUMBERS, Estimate, HeadReport, LayerReport, mean_of

_THRESHOLD = 3.0
_OF_LAYERS = ("tap_coverage", "hard_tap_coverage", "convolution_score")


def compare_reports(first: HeadReport, second: HeadReport) -> ReportComparison:
    """Compares layer by layer and head by head, matched by their place.

    Args:
        first: A report.
        second: Another one.

    Returns:
        The comparison; differences are told from three standard errors on.

    Raises:
        ArgumentError: They have no layers in common: a report holds none.
    """
    pairs = list(zip(first.layers, second.layers, strict=False))
    if not pairs:
        raise ArgumentError("reports must have layers, but one has none")
    found = [item for pair in pairs for item in _differences(*pair)]
    heads = [list(zip(one.heads, other.heads, strict=False)) for one, other in pairs]
    matched = [pair for layer in heads for pair in layer]
    limits = []
    if len(first.layers) != len(second.layers):
        limits.append(f"layers without a partner: the reports have {len(first.layers)} and {len(second.layers)}")
    if any(len(one.heads) != len(other.heads) for one, other in pairs):
        limits.append("heads without a partner: some layers have another number of heads")
    if any(one.grid != other.grid for one, other in pairs):
        limits.append("grids differ: lengths are in cells of each network's own grid")
    sides = (0, 1)
    return ReportComparison(
        first=first.model,
        second=second.model,
        layers=len(pairs),
        heads=len(matched),
        convolutional=_two([sum(pair[side].convolutional for pair in matched) for side in sides]),
        hard=_two([sum(pair[side].hard for pair in matched) for side in sides]),
        mean_distance=_two([mean_of([pair[side].distance for pair in matched]) for side in sides]),
        convolution_score=_two([mean_of([pair[side].measured.convolution_score for pair in pairs]) for side in sides]),
        threshold=_THRESHOLD,
        differences=tuple(sorted(found, key=lambda item: -item.errors)),
        not_covered=tuple(limits),
    )


def _differences(one: LayerReport, other: LayerReport) -> Iterator[HeadDifference]:
    numbers = [(-1, name, getattr(one.measured, name), getattr(other.measured, name)) for name in _OF_LAYERS]
    for left, right in zip(one.heads, other.heads, strict=False):
        numbers += [(left.head, name, getattr(left, name), getattr(right, name)) for name in HEAD_NUMBERS]
    for head, name, first, second in numbers:
        errors = _errors(first, second)
        if errors > _THRESHOLD:
            yield HeadDifference(one.name, head, name, first, second, errors)


def _errors(first: Estimate, second: Estimate) -> float:
    """Returns a difference in units of its standard error."""
    apart = abs(first.value - second.value)
    error = math.hypot(*(item.error for item in (first, second) if math.isfinite(item.error)))
    if not apart > 0:  # also where a number is not known
        return 0.0
    return apart / error if error > 0 else math.inf


def _two(values: list) -> tuple:
    return (values[0], values[1])
