"""Results of a study: the records, and statistics over seeds."""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from convattn.errors import ArgumentError, DataError, must_be
from convattn.lab.recipe import differing_keys
from convattn.lab.study_plan import PlannedRun, find_finished, last_line
from convattn.provenance import DataRecord, RunRecord
from convattn.record import Record
from convattn.sealed import file_sha256


@dataclass(frozen=True)
class Summary:
    """A quantity over the seeds of a recipe."""

    n: int  # Number of runs
    mean: float  # Arithmetic mean
    deviation: float | None  # Standard deviation, with n − 1; None where n is 1
    minimum: float  # Smallest value
    maximum: float  # Largest value


@dataclass(frozen=True)
class StudyGroup:
    """A recipe, or a variant of it, over its seeds."""

    label: str  # Name of the recipe, with the values that make the variant in brackets
    accuracy: Summary  # Accuracy on the measured images, a fraction in [0, 1]
    seconds: Summary  # Wall time of a run, in seconds
    parameters: Summary  # Number of trainable parameters


@dataclass(frozen=True)
class StudyDifference:
    """Accuracy of one recipe less that of the baseline, seed by seed."""

    label: str  # The recipe
    baseline: str  # The recipe with which it is compared
    seeds: tuple[int, ...]  # Seeds that both have finished
    values: tuple[float, ...]  # The differences, in the order of the seeds
    mean: float  # Their mean
    deviation: float | None  # Their standard deviation, with n − 1; None for a single one
    # Lower end of the 95 % t interval of the mean; None for fewer than three differences
    low: float | None
    high: float | None  # Upper end


@dataclass(frozen=True)
class StudyRun:
    """A finished run, and what is needed to check it."""

    label: str  # The recipe
    seed: int  # Its seed
    folder: str  # Folder of the run, inside the study's
    record_sha256: str  # SHA-256 of the run's record.json
    accuracy: float  # Accuracy on the measured images, in [0, 1]
    seconds: float  # Wall time, in seconds
    parameters: int  # Number of trainable parameters
    hardware: dict[str, str]  # Processor or accelerator, cores, threads
    revision: str | None  # Code revision, or None outside a checkout


@dataclass(frozen=True)
class StudyFailure:
    """A run that did not finish."""

    label: str  # The recipe
    seed: int  # Its seed
    log: str  # File with everything that the run printed, inside the study's folder
    reason: str  # The last line of that file


@dataclass(frozen=True)
class StudyRecord(Record):
    """Results of recipes over seeds, and their differences."""

    schema_version: ClassVar[int] = 4

    command: str  # Command that repeats the study; with the study's folder as ``-o`` it continues the study
    seeds: tuple[int, ...]  # Seeds that each recipe is run with
    baseline: str  # The recipe with which the others are compared
    # Each recipe over its finished runs; recipes without finished runs are left out
    groups: tuple[StudyGroup, ...]
    # Paired differences of each other recipe to the baseline
    differences: tuple[StudyDifference, ...]
    runs: tuple[StudyRun, ...]  # Every finished run
    failures: tuple[StudyFailure, ...]  # Every run that did not finish
    data: DataRecord | None  # Which data all runs saw; None where none has finished
    # Different code revisions, versions or hardware of the runs
    warnings: tuple[str, ...] = field(default=())
    not_covered: tuple[str, ...] = field(default=())  # What the study says nothing about

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        held_out = self.data is not None and "validation" in self.data.counts
        return "validation" if held_out else "test"

    def summary(self) -> str:
        """Returns the results, differences, warnings and failures as plain text, one line each."""
        lines = ["on held-out training images:"] if self.measured == "validation" else []
        lines += [
            f"{group.label}: {percent(group.accuracy)}, n = {group.accuracy.n}"
            for group in self.groups
        ]
        for item in self.differences:
            words = difference_in_words(item.values)
            lines.append(f"{item.label} less {item.baseline}: {words}")
        lines += [f"warning: {text}" for text in self.warnings]
        lines += [
            f"FAILED {run.label}, seed {run.seed}: {run.reason} ({run.log})"
            for run in self.failures
        ]
        return "\n".join(lines)


def percent(accuracy: Summary) -> str:
    """Formats a mean with its deviation, in percent."""
    mean = f"{100 * accuracy.mean:.2f}"
    if accuracy.deviation is not None:
        mean += f" ± {100 * accuracy.deviation:.2f}"
    return f"{mean} %"


def summarise(values: Sequence[float]) -> Summary:
    """Summarises one quantity over one or more runs.

    Example:
        >>> summarise([1.0, 2.0, 6.0])
        Summary(n=3, mean=3.0, deviation=2.6457513110645907, minimum=1.0, maximum=6.0)
    """
    return Summary(
        n=len(values),
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        minimum=float(min(values)),
        maximum=float(max(values)),
    )


LEAST_SEEDS = 3
"""Fewest differences that an interval of their mean is made of: two leave one degree of freedom."""


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of the 95 % t interval of a mean, for values that are independent and nearly normal.

    The values are, for instance, differences of paired runs, one per seed. Raises ArgumentError if there are fewer than
    three, or one is not finite.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 2), round(high, 2)
        (-0.48, 4.48)
    """
    from scipy import stats

    if len(values) < LEAST_SEEDS:
        raise ArgumentError(must_be("number of values", f"at least {LEAST_SEEDS}", len(values)))
    if not all(map(math.isfinite, values)):
        raise ArgumentError(must_be("values", "finite", list(values)))
    mean = statistics.fmean(values)
    reach = float(stats.t(len(values) - 1).ppf(0.975) * stats.sem(values))
    return mean - reach, mean + reach


def difference_in_words(values: Sequence[float]) -> str:
    """Words the mean of paired differences (fractions, one per seed) in points, with its interval alone.

    Example:
        >>> difference_in_words([0.01, 0.02, 0.03])
        '+2.00 points, 95 % t interval -0.48 to +4.48 contains 0, n = 3'
    """
    mean, n = f"{100 * statistics.fmean(values):+.2f} points", len(values)
    if n < LEAST_SEEDS:
        return f"{mean}, n = {n}: too few for an interval"
    low, high = t_interval(values)
    zero = "leaves out 0" if low > 0 or high < 0 else "contains 0"
    return f"{mean}, 95 % t interval {100 * low:+.2f} to {100 * high:+.2f} {zero}, n = {n}"


def compare(runs: Sequence[PlannedRun], baseline: str, command: str) -> StudyRecord:
    """Makes the record of a study from the folders of its runs."""
    finished, failures = [], []
    groups = defaultdict[str, list[StudyRun]](list)
    records: dict[str, RunRecord] = {}
    for run in runs:
        record = find_finished(run)
        if record is None:
            reason = last_line(run.log)
            failures.append(StudyFailure(run.label, run.recipe.seed, run.log.name, reason))
            continue
        records[run.name] = record
        own = StudyRun(
            label=run.label,
            seed=record.seed,
            folder=run.name,
            record_sha256=file_sha256(run.folder / "record.json"),
            accuracy=record.accuracy,
            seconds=record.seconds,
            parameters=record.parameters,
            hardware=record.hardware,
            revision=record.revision,
        )
        finished.append(own)
        groups[run.label].append(own)
    require_same_data(records)
    return StudyRecord(
        command=command,
        seeds=tuple(dict.fromkeys(run.recipe.seed for run in runs)),
        baseline=baseline,
        groups=tuple(_summarise_group(label, group) for label, group in groups.items()),
        differences=_differences(groups, baseline),
        runs=tuple(finished),
        failures=tuple(failures),
        data=next((record.data for record in records.values()), None),
        warnings=tuple(_warnings(records.values())),
        not_covered=(
            "whether the differences hold for other data, sizes or lengths of training",
            "errors of the many comparisons where there are many: each interval is of one difference alone",
        ),
    )


def _summarise_group(label: str, runs: Sequence[StudyRun]) -> StudyGroup:
    return StudyGroup(
        label,
        accuracy=summarise([run.accuracy for run in runs]),
        seconds=summarise([run.seconds for run in runs]),
        parameters=summarise([run.parameters for run in runs]),
    )


def _differences(
    groups: Mapping[str, Sequence[StudyRun]], baseline: str
) -> tuple[StudyDifference, ...]:
    """Compares each recipe with the baseline, seed by seed."""
    against = {run.seed: run.accuracy for run in groups.get(baseline, ())}
    differences = []
    for label, runs in groups.items():
        pairs = {run.seed: run.accuracy - against[run.seed] for run in runs if run.seed in against}
        if label == baseline or not pairs:
            continue
        seeds, values = zip(*sorted(pairs.items()), strict=True)
        spread, interval = summarise(values), (None, None)
        if len(values) >= LEAST_SEEDS:
            interval = t_interval(values)
        differences.append(
            StudyDifference(
                label, baseline, seeds, values, spread.mean, spread.deviation, *interval
            )
        )
    return tuple(differences)


def require_same_data(records: Mapping[str, RunRecord]) -> None:
    """Raises DataError if runs, by name, were trained on different data; the message has two names and the hashes."""
    first = next(iter(records), "")
    for name, record in records.items():
        differing = differing_keys(records[first].data.hashes, record.data.hashes)
        if differing:
            different = f"{first} and {name} saw different data and cannot be compared"
            raise DataError(f"{different}: {'; '.join(differing)}")


def _warnings(records: Collection[RunRecord]) -> list[str]:
    """Lists what differs between runs besides recipe and seed."""
    seen = defaultdict[str, set[str]](set)
    for record in records:
        versions = {f"version of {name}": version for name, version in record.versions.items()}
        revision = {"code revision": record.revision or "none"}
        for name, value in (revision | record.hardware | versions).items():
            seen[name].add(value)
    warnings = []
    for name, values in seen.items():
        if len(values) > 1:
            warnings.append(f"the runs differ in {name}: {', '.join(sorted(values))}")
    dirty = [revision for revision in seen["code revision"] if revision.endswith("-dirty")]
    warnings += [f"the code differed from its revision: {revision}" for revision in sorted(dirty)]
    return warnings
