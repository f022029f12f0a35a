"""What a run of a suite found: every raw time, what was checked, and where it ran."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from convattn.record import Record


@dataclass(frozen=True)
class Spread:
    """Median and extremes of a number over the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Check:
    """Comparison with the definition in float64.

    Attributes:
        passed: Whether every error is within its budget.
        worst: What was nearest to its budget, or farthest beyond it: "output", "gradient of …" or "losses".
        error: Its largest error.
        allowed: Its budget.
    """

    passed: bool
    worst: str
    error: float
    allowed: float


@dataclass(frozen=True)
class Measurement:
    """One contender of one case.

    Attributes:
        contender: Its name.
        note: What it is.
        path: Path that the library's layer took, or how many layers took which; None of a peer.
        check: The check; None where another function is computed, of which there is only a time.
        seconds: Wall time of each round's call, in seconds; empty where the contender is wrong or did not run.
        weights: Bytes of parameters, buffers and frozen matrices; None where not counted.
        extra_memory: Largest memory of a call beyond what was held before it, in bytes; None where not measured.
        memory_note: Why the memory could not be measured; empty where it was, or was not asked for.
        skipped: Why the contender did not run; None where it did.
    """

    contender: str
    note: str
    path: str | None
    check: Check | None
    seconds: tuple[float, ...]
    weights: int | None
    extra_memory: int | None
    memory_note: str
    skipped: str | None

    @property
    def right(self) -> bool:
        """Whether it ran and, where it was checked, passed."""
        return self.skipped is None and (self.check is None or self.check.passed)


@dataclass(frozen=True)
class CaseResult:
    """The contenders of one case; round i of all of them ran one after another.

    Attributes:
        name: Name of the case.
        group: Name of the group of cases that differ in size only.
        title: What was measured, in words.
        images: Number of images or sequences in a call.
        pixels: Number of pixels of each.
        measurements: One per contender.
    """

    name: str
    group: str
    title: str
    images: int
    pixels: int
    measurements: tuple[Measurement, ...]

    @property
    def passed(self) -> bool:
        """Whether no contender is wrong."""
        return all(item.check is None or item.check.passed for item in self.measurements)

    def ratios(self, upper: str, lower: str) -> list[float]:
        """Divides the times of two contenders, round by round; empty where one of them has no times."""
        times = {item.contender: item.seconds for item in self.measurements}
        pairs = zip(times.get(upper, ()), times.get(lower, ()), strict=False)
        return [above / below for above, below in pairs]

    def memory_ratio(self, upper: str, lower: str) -> float | None:
        """Divides the memory of two contenders, weights and a call's; None where a part of it is not known."""
        held = {
            item.contender: item.weights + item.extra_memory
            for item in self.measurements
            if item.weights is not None and item.extra_memory is not None
        }
        return held[upper] / held[lower] if upper in held and lower in held else None


@dataclass(frozen=True)
class BenchmarkRecord(Record):
    """A run of a suite.

    Attributes:
        suite: Name of the suite.
        quick: Whether sizes were tiny, so that times say nothing about speed.
        device: Device that computed.
        dtype: Dtype of weights and images.
        rounds: Number of rounds; some cases multiply it.
        cases: Results of the cases.
        command: Command that repeats the run.
        started: Start, ISO 8601 in UTC.
        seconds: Wall time of everything, in seconds.
        hardware: Processor or accelerator, cores, threads.
        versions: Versions of Python and of the packages that computed.
        revision: Code revision (git), or None outside a checkout.
        passed: Whether every check passed.
        not_covered: What the run says nothing about.
    """

    schema_version: ClassVar[int] = 2

    suite: str
    quick: bool
    device: str
    dtype: str
    rounds: int
    cases: tuple[CaseResult, ...]
    command: str
    started: str
    seconds: float
    hardware: dict[str, str]
    versions: dict[str, str]
    revision: str | None
    passed: bool
    not_covered: tuple[str, ...]

    def groups(self) -> dict[str, tuple[CaseResult, ...]]:
        """Returns the results by group, in the order in which they were measured."""
        names = dict.fromkeys(case.group for case in self.cases)
        return {name: tuple(case for case in self.cases if case.group == name) for name in names}


def spread(values: Sequence[float]) -> Spread:
    """Returns median and extremes of one or more numbers."""
    return Spread(statistics.median(values), min(values), max(values))


def fit_exponent(points: Sequence[tuple[int, float]]) -> float | None:
    """Fits y = c·N^p by least squares of log y against log N.

    Args:
        points: N > 0 and y > 0, in pairs.

    Returns:
        p; None with fewer than two different N.

    Example:
        >>> round(fit_exponent([(10, 3.0), (100, 300.0)]), 6)
        2.0
    """
    if len({number for number, _ in points}) < 2:
        return None
    slope, _ = statistics.linear_regression(
        [math.log(n) for n, _ in points], [math.log(y) for _, y in points]
    )
    return slope
