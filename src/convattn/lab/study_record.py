"""Results of a study: the records, and statistics over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from convattn.errors import ArgumentError, DataError, must_be
from convattn.lab.run_process import is_finished
from convattn.lab.study_plan import PlannedRun, last_line, read_run
from convattn.provenance import DataRecord, RunRecord
from convattn.record import Record


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
    low: (
        float | None
    )  # Lower end of the 95 % t interval of the mean; None for fewer than three differences
    high: float | None  # Upper end


@dataclass(frozen=True)
class StudyRun:
    """A finished run, and what is needed to check it."""

    label: str  # The recipe
    seed: int  # Its seed
    folder: str  # Folder of the run, inside the study's
    record_sha256: str  # SHA-256 of the run's record.json
    results: dict[str, float]  # Final numbers by name, as in the run's record
    seconds: float  # Wall time, in seconds
    parameters: int  # Number of trainable parameters
    data: str  # Name of the data set and of its copy
    data_hashes: dict[str, str]  # SHA-256 of the data's files or arrays, by name
    hardware: dict[str, str]  # Processor or accelerator, cores, threads
    versions: dict[str, str]  # Versions of Python and of the packages that computed
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
    groups: tuple[
        StudyGroup, ...
    ]  # Each recipe over its finished runs; recipes without finished runs are left out
    differences: tuple[
        StudyDifference, ...
    ]  # Paired differences of each other recipe to the baseline
    runs: tuple[StudyRun, ...]  # Every finished run
    failures: tuple[StudyFailure, ...]  # Every run that did not finish
    data: DataRecord | None  # Which data all runs saw; None where none has finished
    warnings: tuple[str, ...] = field(
        default=()
    )  # Different code revisions, versions or hardware of the runs
    not_covered: tuple[str, ...] = field(default=())  # What the study says nothing about

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        return (
            "validation" if self.data is not None and "validation" in self.data.counts else "test"
        )

    def summary(self) -> str:
        """Returns the results, differences, warnings and failures as plain text, one line each."""
        lines = ["on held-out training images:"] if self.measured == "validation" else []
        for group in self.groups:
            spread = (
                ""
                if group.accuracy.deviation is None
                else f" ± {100 * group.accuracy.deviation:.2f}"
            )
            lines.append(
                f"{group.label}: {100 * group.accuracy.mean:.2f}{spread} %, n = {group.accuracy.n}"
            )
        lines += [
            f"{item.label} less {item.baseline}: {difference_in_words(item.values)}"
            for item in self.differences
        ]
        lines += [f"warning: {text}" for text in self.warnings]
        lines += [
            f"FAILED {item.label}, seed {item.seed}: {item.reason} ({item.log})"
            for item in self.failures
        ]
        return "\n".join(lines)


def summarise(values: Sequence[float]) -> Summary:
    """Summarises one quantity over one or more runs.

    Example:
        >>> summarise([1.0, 2.0, 6.0])
        Summary(n=3, mean=3.0, deviation=2.6457513110645907, minimum=1.0, maximum=6.0)
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(
        len(values), statistics.fmean(values), deviation, float(min(values)), float(max(values))
    )


def paired_difference(
    label: str, baseline: str, values: Mapping[int, float], against: Mapping[int, float]
) -> StudyDifference | None:
    """Compares two recipes (value minus baseline) over the seeds that both have; None if there are none."""
    seeds = sorted(values.keys() & against.keys())
    if not seeds:
        return None
    differences = tuple(values[seed] - against[seed] for seed in seeds)
    found = summarise(differences)
    low, high = t_interval(differences) if len(differences) >= LEAST_SEEDS else (None, None)
    return StudyDifference(
        label, baseline, tuple(seeds), differences, found.mean, found.deviation, low, high
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
    mean, error = statistics.fmean(values), float(stats.sem(values))
    reach = float(stats.t(len(values) - 1).ppf(0.975)) * error
    return mean - reach, mean + reach


def difference_in_words(values: Sequence[float]) -> str:
    """Words the mean of paired differences (fractions, one per seed) in points, with its interval, and if resolved.

    Example:
        >>> difference_in_words([0.01, 0.02, 0.03])
        '+2.00 points, 95 % t interval -0.48 to +4.48, n = 3: not resolved'
    """
    mean, n = f"{100 * statistics.fmean(values):+.2f} points", len(values)
    if n < LEAST_SEEDS:
        return f"{mean}, n = {n}: too few for an interval"
    low, high = t_interval(values)
    resolved = "resolved" if low > 0 or high < 0 else "not resolved"
    return f"{mean}, 95 % t interval {100 * low:+.2f} to {100 * high:+.2f}, n = {n}: {resolved}"


_QUANTITIES = ("accuracy", "seconds", "parameters")
"""What is summarised for each recipe."""

_COPIED = ("seed", "results", "seconds", "parameters", "hardware", "versions", "revision")
"""Fields of a run's record that a study keeps."""

_DIFFERING = {
    "processor": "processors",
    "cores": "numbers of cores",
    "threads": "numbers of threads",
    "accelerator": "accelerators",
    "device": "devices",
    "system": "systems",
}
"""Properties of the hardware that are compared between runs."""


def compare(
    runs: Sequence[PlannedRun],
    baseline: str,
    command: str,
) -> StudyRecord:
    """Makes the record of a study from the folders of its runs."""
    finished = [(run, *read_run(run)) for run in runs if is_finished(run.folder)]
    records = [record for _, record, _ in finished]
    require_same_data([(run.name, record.data) for run, record, _ in finished])
    by_label: dict[str, dict[int, RunRecord]] = {}
    for run, record, _ in finished:
        by_label.setdefault(run.label, {})[record.seed] = record
    accuracies = {
        label: {seed: one.accuracy for seed, one in group.items()}
        for label, group in by_label.items()
    }
    differences = (
        paired_difference(label, baseline, values, accuracies.get(baseline, {}))
        for label, values in accuracies.items()
        if label != baseline
    )
    return StudyRecord(
        command=command,
        seeds=tuple(dict.fromkeys(run.recipe.seed for run in runs)),
        baseline=baseline,
        groups=tuple(
            StudyGroup(
                label,
                *(summarise([getattr(one, key) for one in group.values()]) for key in _QUANTITIES),
            )
            for label, group in by_label.items()
        ),
        differences=tuple(item for item in differences if item is not None),
        runs=tuple(
            StudyRun(
                label=run.label,
                folder=run.name,
                record_sha256=sha256,
                data=record.data.name,
                data_hashes=record.data.hashes,
                **{key: getattr(record, key) for key in _COPIED},
            )
            for run, record, sha256 in finished
        ),
        failures=tuple(
            StudyFailure(run.label, run.recipe.seed, run.log.name, last_line(run.log))
            for run in runs
            if not is_finished(run.folder)
        ),
        data=records[0].data if records else None,
        warnings=tuple(_warnings(records)),
        not_covered=(
            "whether the differences hold for other data, sizes or lengths of training",
            "errors of the many comparisons where there are many: each interval is of one difference alone",
        ),
    )


def require_same_data(runs: Sequence[tuple[str, DataRecord]]) -> None:
    """Raises DataError if runs were trained on different data; the message names two runs and the hashes."""
    for name, data in runs:
        first, one, other = runs[0][0], runs[0][1].hashes, data.hashes
        if one != other:
            differing = (key for key in {**one, **other} if one.get(key) != other.get(key))
            hashes = "; ".join(f"{key} is {one.get(key)} and {other.get(key)}" for key in differing)
            raise DataError(
                f"{first} and {name} saw different data and cannot be compared: {hashes}"
            )


def _warnings(records: Sequence[RunRecord]) -> list[str]:
    """Lists what differs between runs besides recipe and seed."""
    found = {"code revisions": {record.revision or "none" for record in records}}
    found |= {
        words: {record.hardware.get(key, "none") for record in records}
        for key, words in _DIFFERING.items()
    }
    for package in sorted({name for record in records for name in record.versions}):
        found[f"versions of {package}"] = {
            record.versions.get(package, "none") for record in records
        }
    differing = {
        words: ", ".join(sorted(values)) for words, values in found.items() if len(values) > 1
    }
    warnings = [f"the runs have different {words}: {values}" for words, values in differing.items()]
    dirty = sorted(revision for revision in found["code revisions"] if revision.endswith("-dirty"))
    return warnings + [f"the code differed from its revision: {revision}" for revision in dirty]
