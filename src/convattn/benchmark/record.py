"""What a benchmark found: every raw time, what was checked, and where it ran."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from convattn.records import Record

__all__ = ["BenchmarkRecord", "CaseResult", "Check", "Measurement", "ScalingCurve", "Spread", "fit_exponent", "spread"]


@dataclass(frozen=True)
class Spread:
    """A number over the rounds.

    Attributes:
        median: The median.
        low: The least.
        high: The largest.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Check:
    """Comparison with the definition in float64.

    Attributes:
        passed: Whether every error is within its budget.
        worst: What was nearest to its budget, or farthest beyond it: "output" or "gradient of …" or "losses".
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
        path: Path that the library's layer took; None of a peer.
        check: The check; None where another function is computed, of which there is only a time.
        seconds: Wall time of each round's call, in seconds; empty where nothing valid was measured.
        extra_memory: Largest memory of a call beyond what was held before, in bytes; None where not measured.
        memory_note: Why it could not be measured; empty where it was, or was not asked for.
        skipped: Why the contender did not run; None where it did.
    """

    contender: str
    note: str
    path: str | None
    check: Check | None
    seconds: tuple[float, ...]
    extra_memory: int | None
    memory_note: str
    skipped: str | None


@dataclass(frozen=True)
class CaseResult:
    """The contenders of one case; round i of all of them ran one after another.

    Attributes:
        name: Name of the case.
        title: What was measured, in words.
        images: Number of images in a call.
        measurements: One per contender.
    """

    name: str
    title: str
    images: int
    measurements: tuple[Measurement, ...]

    @property
    def passed(self) -> bool:
        """Whether no contender is wrong."""
        return all(item.check is None or item.check.passed for item in self.measurements)

    def ratio(self, upper: str, lower: str) -> Spread | None:
        """Divides the times of two contenders, round by round.

        Args:
            upper: Name of one contender.
            lower: Name of the other.

        Returns:
            Median and extremes of upper / lower; None where one of them has no times.
        """
        times = {item.contender: item.seconds for item in self.measurements}
        above, below = times.get(upper, ()), times.get(lower, ())
        if not (above and below):
            return None
        return spread([a / b for a, b in zip(above, below, strict=True)])


@dataclass(frozen=True)
class ScalingCurve:
    """Time of one path over the number of pixels N.

    Attributes:
        path: The path.
        note: The layer.
        positions: N of each size.
        seconds: Wall time of each round, in seconds, for each size; empty where the check failed.
        checks: Check of each size.
        exponent: p of the least-squares fit of time ∝ N^p to the medians; None with fewer than two sizes or tiny ones.
        skipped: Why the path did not run; None where it did.
    """

    path: str
    note: str
    positions: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    checks: tuple[Check, ...]
    exponent: float | None
    skipped: str | None

    @property
    def passed(self) -> bool:
        """Whether every size is right."""
        return all(check.passed for check in self.checks)

    def medians(self) -> list[tuple[int, float]]:
        """Returns N and the median time of every size that has times."""
        pairs = zip(self.positions, self.seconds, strict=True)
        return [(number, statistics.median(times)) for number, times in pairs if times]


@dataclass(frozen=True)
class BenchmarkRecord(Record):
    """A run of a suite of benchmarks.

    Attributes:
        suite: Name of the suite.
        quick: Whether sizes were tiny, so that times say nothing about speed.
        device: Where was computed.
        dtype: Dtype of weights and images.
        rounds: Number of rounds.
        cases: Results of the cases with contenders.
        scaling: Curves of time over size; empty where that case was not chosen.
        scaling_title: What the curves are of; empty where there are none.
        missing: Contenders whose package is not installed, each with what installs it.
        command: Command that repeats the run.
        started: Start, ISO 8601 in UTC.
        seconds: Wall time of everything, in seconds.
        hardware: Processor or accelerator, cores, threads.
        versions: Versions of Python and of the packages that computed.
        revision: Code revision (git), or None outside a checkout.
        passed: Whether every check passed.
        not_covered: What the run says nothing about.
    """

    suite: str
    quick: bool
    device: str
    dtype: str
    rounds: int
    cases: tuple[CaseResult, ...]
    scaling: tuple[ScalingCurve, ...]
    scaling_title: str
    missing: dict[str, str]
    command: str
    started: str
    seconds: float
    hardware: dict[str, str]
    versions: dict[str, str]
    revision: str | None
    passed: bool
    not_covered: tuple[str, ...]


def spread(values: Sequence[float]) -> Spread:
    """Returns median and extremes of one or more numbers."""
    return Spread(statistics.median(values), min(values), max(values))


def fit_exponent(points: Sequence[tuple[int, float]]) -> float | None:
    """Fits time = c·N^p by least squares of log time against log N.

    Args:
        points: N > 0 and time > 0, in pairs.

    Returns:
        p; None with fewer than two different N.

    Example:
        >>> fit_exponent([(10, 3.0), (100, 300.0)])
        2.0
    """
    if len({number for number, _ in points}) < 2:
        return None
    slope, _ = statistics.linear_regression([math.log(n) for n, _ in points], [math.log(t) for _, t in points])
    return slope
