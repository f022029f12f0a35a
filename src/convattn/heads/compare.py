"""Compares two reports: what differs by more than chance."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from convattn.errors import ArgumentError
from convattn.heads.head_report import (
    HEAD_NUMBERS,
    HeadReport,
    HeadStatistics,
    LayerReport,
    mean_of,
)
from convattn.heads.jackknife import Estimate
from convattn.heads.verdict import count_words
from convattn.record import Record
from convattn.wording import counted


@dataclass(frozen=True)
class HeadDifference:
    """One number of one head that differs by more than chance."""

    layer: str  # Name of the layer in the first report
    head: int  # Number of the head, from 0; −1 for a number of the whole layer
    number: str  # Name of the number; of a shift with its axis, as in "shift[0]"
    first: Estimate  # In the first report
    second: Estimate  # In the second one
    errors: float  # Difference in units of its standard error, at least that of rounding; inf for shifts of hard heads


@dataclass(frozen=True)
class ReportComparison(Record):
    """Two reports beside each other; layers and heads are matched by their place.

    Attributes:
        first: Class of the first network.
        second: Class of the second one.
        layers: Number of layers compared.
        heads: Number of heads compared.
        words: What the heads are in each.
        mean_distance: Mean attention distance of the heads compared, in cells, in each.
        convolution_score: Mean R² of the layers' best convolutions in each.
        threshold: Standard errors from which a difference is told.
        differences: What differs by more, the largest first, and the shifts of hard heads that differ.
        not_covered: What this says nothing about.
    """

    first: str
    second: str
    layers: int
    heads: int
    words: tuple[str, str]
    mean_distance: tuple[float, float]
    convolution_score: tuple[float, float]
    threshold: float
    differences: tuple[HeadDifference, ...]
    not_covered: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the comparison in a few lines of plain text, with the ten largest differences."""
        shifts = sum(math.isinf(item.errors) for item in self.differences)
        count = f"{len(self.differences) - shifts} of more than {self.threshold:g} standard errors"
        if shifts:
            count += f", {counted(shifts, 'shift')} of hard heads"
        score = "{:.3g} and {:.3g}, mean of the layers".format(*self.convolution_score)
        rows = {
            "first heads": self.words[0],
            "second heads": self.words[1],
            "mean distance": "{:.3g} and {:.3g} cells".format(*self.mean_distance),
            "convolution R²": score,
            "differences": count,
        }
        compared = f"{counted(self.heads, 'head')} of {counted(self.layers, 'layer')} compared"
        lines = [f"heads of {self.first} and {self.second}: {compared}"]
        lines += [f"  {name:<20} {value}" for name, value in rows.items()]
        for item in self.differences[:10]:
            head = "" if item.head < 0 else f" head {item.head + 1}"
            lines.append(f"  {item.layer}{head}: {item.number} {item.first} and {item.second}")
        lines += [f"  not covered          {item}" for item in self.not_covered]
        return "\n".join(lines)


_THRESHOLD = 3.0
_ROUNDING = 64 * 2.0**-23
"""Error by which weights in float32 change a share, or a length of one cell: 64 roundings."""

_OF_LAYERS = ("tap_coverage", "convolution_score")
_OF_RADIUS = "kernel_share"


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
    layers = list(zip(first.layers, second.layers, strict=False))
    if not layers:
        raise ArgumentError("reports must have layers, but one has none")
    skipped: set[str] = set()
    if first.kernel_size != second.kernel_size:
        skipped.update(_OF_LAYERS)
    if first.radius != second.radius:
        skipped.add(_OF_RADIUS)
    differences: list[HeadDifference] = []
    unjudged: set[str] = set()
    heads: list[tuple[HeadStatistics, HeadStatistics]] = []
    for one, other in layers:
        heads += zip(one.heads, other.heads, strict=False)
        differences += _hard_shifts(one, other)
        for head, name, left, right in _numbers(one, other):
            if name in skipped:
                continue
            errors = _errors(left, right)
            if math.isnan(errors):
                unjudged.add(name)
            elif errors > _THRESHOLD:
                differences.append(HeadDifference(one.name, head, name, left, right, errors))
    sides = [[pair[side] for pair in heads] for side in (0, 1)]
    scores = [[pair[side].measured.convolution_score for pair in layers] for side in (0, 1)]
    verdicts = [[verdict for pair in layers for verdict in pair[side].verdicts] for side in (0, 1)]
    limits = list(_limits(first, second))
    if unjudged:
        names = ", ".join(sorted(unjudged))
        limits.append(f"{names}: not known, or without a standard error, in a report")
    return ReportComparison(
        first=first.model,
        second=second.model,
        layers=len(layers),
        heads=len(heads),
        words=_both(verdicts, count_words),
        mean_distance=_both(sides, lambda side: mean_of([head.distance for head in side])),
        convolution_score=_both(scores, mean_of),
        threshold=_THRESHOLD,
        differences=tuple(sorted(differences, key=lambda item: -item.errors)),
        not_covered=tuple(limits),
    )


def _both(sides: Sequence[Any], number: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Returns a number of each of two sides."""
    return number(sides[0]), number(sides[1])


def _limits(first: HeadReport, second: HeadReport) -> Iterator[str]:
    """Yields what cannot be compared."""
    counts = len(first.layers), len(second.layers)
    layers = list(zip(first.layers, second.layers, strict=False))
    if counts[0] != counts[1]:
        yield f"layers without a partner: the reports have {counts[0]} and {counts[1]}"
    if any(len(one.heads) != len(other.heads) for one, other in layers):
        yield "heads without a partner: some layers have another number of heads"
    if any(one.grid != other.grid for one, other in layers):
        yield "grids differ: lengths are in cells of each network's own grid"
    if first.kernel_size != second.kernel_size:
        sizes = f"kernel_size is {first.kernel_size} and {second.kernel_size}"
        yield f"{', '.join(_OF_LAYERS)}: {sizes}"
    if first.radius != second.radius:
        yield f"{_OF_RADIUS}: radius is {first.radius} and {second.radius}"


def _numbers(one: LayerReport, other: LayerReport) -> Iterator[tuple[int, str, Estimate, Estimate]]:
    """Yields each number of two layers: its head, or −1, its name, and both values."""
    for name in _OF_LAYERS:
        yield -1, name, getattr(one.measured, name), getattr(other.measured, name)
    for left, right in zip(one.heads, other.heads, strict=False):
        for name in HEAD_NUMBERS:
            yield left.head, name, getattr(left, name), getattr(right, name)
        if len(left.shift) == len(right.shift):
            for axis, shifts in enumerate(zip(left.shift, right.shift, strict=True)):
                yield left.head, f"shift[{axis}]", *shifts


def _hard_shifts(one: LayerReport, other: LayerReport) -> Iterator[HeadDifference]:
    """Yields the shifts of hard heads that differ: whole numbers, of which any difference counts."""
    pairs = zip(one.verdicts, other.verdicts, strict=False)
    for head, (left, right) in enumerate(pairs):
        if left.tap is None or right.tap is None or len(left.tap) != len(right.tap):
            continue
        for axis, shifts in enumerate(zip(left.tap, right.tap, strict=True)):
            if shifts[0] != shifts[1]:
                yield HeadDifference(
                    layer=one.name,
                    head=head,
                    number=f"hard_shift[{axis}]",
                    first=Estimate(shifts[0], math.nan),
                    second=Estimate(shifts[1], math.nan),
                    errors=math.inf,
                )


def _errors(first: Estimate, second: Estimate) -> float:
    """Returns a difference in units of its standard error, nan if unknown; differences within rounding count as 0."""
    apart = abs(first.value - second.value)
    rounding = _ROUNDING * max(1.0, abs(first.value), abs(second.value))
    both_unknown = math.isnan(first.value) and math.isnan(second.value)
    if both_unknown or apart <= _THRESHOLD * rounding:
        return 0.0
    return apart / math.hypot(rounding, first.error, second.error)
