"""Compares two reports: what differs by more than chance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from convattn.errors import ArgumentError
from convattn.heads.head_report import HEAD_NUMBERS, Estimate, HeadReport, LayerReport, mean_of
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
        convolutional: Number of convolutional heads in each.
        hard: Number of hard heads in each.
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
    convolutional: tuple[int, int]
    hard: tuple[int, int]
    mean_distance: tuple[float, float]
    convolution_score: tuple[float, float]
    threshold: float
    differences: tuple[HeadDifference, ...]
    not_covered: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the comparison in a few lines of plain text, with the ten largest differences."""
        shifts = sum(math.isinf(item.errors) for item in self.differences)
        told = f"{len(self.differences) - shifts} of more than {self.threshold:g} standard errors"
        rows = {
            "convolutional heads": "{} and {}".format(*self.convolutional),
            "hard heads": "{} and {}".format(*self.hard),
            "mean distance": "{:.3g} and {:.3g} cells".format(*self.mean_distance),
            "convolution R²": "{:.3g} and {:.3g}, mean of the layers".format(
                *self.convolution_score
            ),
            "differences": told + (f", {counted(shifts, 'shift')} of hard heads" if shifts else ""),
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

_OF_LAYERS = ("tap_coverage", "hard_tap_coverage", "convolution_score")
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
    pairs = list(zip(first.layers, second.layers, strict=False))
    if not pairs:
        raise ArgumentError("reports must have layers, but one has none")
    same_kernel, same_radius = (
        first.kernel_size == second.kernel_size,
        first.radius == second.radius,
    )
    of_layers = _OF_LAYERS if same_kernel else ()
    of_heads = tuple(name for name in HEAD_NUMBERS if same_radius or name != _OF_RADIUS)
    unjudged: set[str] = set()
    found = [item for pair in pairs for item in _differences(*pair, of_layers, of_heads, unjudged)]
    heads = [list(zip(one.heads, other.heads, strict=False)) for one, other in pairs]
    matched = [pair for layer in heads for pair in layer]
    limits = []
    if len(first.layers) != len(second.layers):
        limits.append(
            f"layers without a partner: the reports have {len(first.layers)} and {len(second.layers)}"
        )
    if any(len(one.heads) != len(other.heads) for one, other in pairs):
        limits.append("heads without a partner: some layers have another number of heads")
    if any(one.grid != other.grid for one, other in pairs):
        limits.append("grids differ: lengths are in cells of each network's own grid")
    if not same_kernel:
        limits.append(
            f"{', '.join(_OF_LAYERS)}: kernel_size is {first.kernel_size} and {second.kernel_size}"
        )
    if not same_radius:
        limits.append(f"{_OF_RADIUS}: radius is {first.radius} and {second.radius}")
    if unjudged:
        limits.append(
            f"{', '.join(sorted(unjudged))}: not known, or without a standard error, in a report"
        )
    ones, others = [one for one, _ in matched], [other for _, other in matched]
    scores = [
        [layer.measured.convolution_score for layer in layers]
        for layers in zip(*pairs, strict=True)
    ]
    return ReportComparison(
        first=first.model,
        second=second.model,
        layers=len(pairs),
        heads=len(matched),
        convolutional=(
            sum(head.convolutional for head in ones),
            sum(head.convolutional for head in others),
        ),
        hard=(sum(head.hard for head in ones), sum(head.hard for head in others)),
        mean_distance=(
            mean_of([head.distance for head in ones]),
            mean_of([head.distance for head in others]),
        ),
        convolution_score=(mean_of(scores[0]), mean_of(scores[1])),
        threshold=_THRESHOLD,
        differences=tuple(sorted(found, key=lambda item: -item.errors)),
        not_covered=tuple(limits),
    )


def _differences(
    one: LayerReport,
    other: LayerReport,
    of_layers: tuple[str, ...],
    of_heads: tuple[str, ...],
    unjudged: set[str],
) -> Iterator[HeadDifference]:
    """Yields what differs in one layer; adds the names of numbers that differ, but not by a known number of errors."""
    numbers = [
        (-1, name, getattr(one.measured, name), getattr(other.measured, name)) for name in of_layers
    ]
    for left, right in zip(one.heads, other.heads, strict=False):
        numbers += [
            (left.head, name, getattr(left, name), getattr(right, name)) for name in of_heads
        ]
        if len(left.shift) == len(right.shift):
            shifts = enumerate(zip(left.shift, right.shift, strict=True))
            numbers += [(left.head, f"shift[{axis}]", *pair) for axis, pair in shifts]
    for head, name, first, second in numbers:
        errors = _errors(first, second)
        if math.isnan(errors):
            unjudged.add(name)
        elif errors > _THRESHOLD:
            yield HeadDifference(one.name, head, name, first, second, errors)
    for head, name, first, second in _hard_shifts(one, other):
        if first != second:
            yield HeadDifference(
                one.name,
                head,
                name,
                Estimate(first, math.nan),
                Estimate(second, math.nan),
                math.inf,
            )


def _hard_shifts(one: LayerReport, other: LayerReport) -> Iterator[tuple[int, str, float, float]]:
    """Yields the shifts of hard heads along each axis; these are whole numbers and have no standard error."""
    for left, right in zip(one.heads, other.heads, strict=False):
        if left.hard and right.hard and len(left.hard_shift) == len(right.hard_shift):
            for axis, shifts in enumerate(zip(left.hard_shift, right.hard_shift, strict=True)):
                yield left.head, f"hard_shift[{axis}]", *shifts


def _errors(first: Estimate, second: Estimate) -> float:
    """Returns a difference in units of its standard error, nan if unknown; differences within rounding count as 0."""
    apart = abs(first.value - second.value)
    rounding = _ROUNDING * max(1.0, abs(first.value), abs(second.value))
    if apart <= _THRESHOLD * rounding or (math.isnan(first.value) and math.isnan(second.value)):
        return 0.0
    return apart / math.hypot(rounding, first.error, second.error)
