"""Results of a study: the records, statistics over seeds, and the choice of the best variant."""

import hashlib
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from convattn.errors import ArgumentError, CheckpointError, DataError, must_be
from convattn.lab.recipe import differing_keys
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
class StudyCandidate:
    """A variant of a recipe in a search."""

    values: dict[str, str]  # What makes the variant, by dotted key
    accuracy: Summary | None  # Accuracy on held-out images; None where no run has finished
    failed: tuple[
        str, ...
    ]  # Last line of the log of each run that did not finish; such a variant is not chosen


@dataclass(frozen=True)
class StudyChoice:
    """What a search chose for a recipe."""

    label: str  # The recipe
    values: dict[str, str]  # Values of the variant with the highest mean accuracy, by dotted key
    candidates: tuple[StudyCandidate, ...]  # Every variant, the chosen one as well


@dataclass(frozen=True)
class StudySearch:
    """A study on held-out images, by which values were chosen."""

    command: str  # Its command
    study_sha256: str  # SHA-256 of its study.json
    seeds: tuple[int, ...]  # Its seeds
    choices: tuple[StudyChoice, ...]  # One for each of its recipes


@dataclass(frozen=True)
class StudyRecord(Record):
    """Results of recipes over seeds, and their differences."""

    schema_version: ClassVar[int] = 3

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
    search: StudySearch | None = None  # The study by which values were chosen; None where none were

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        return (
            "validation" if self.data is not None and "validation" in self.data.counts else "test"
        )

    def summary(self) -> str:
        """Returns the results, differences, warnings and failures as plain text, one line each."""
        lines = ["on held-out training images:"] if self.measured == "validation" else []
        for choice in () if self.search is None else self.search.choices:
            values = ", ".join(f"{key}={value}" for key, value in choice.values.items())
            lines.append(
                f"{choice.label}: chosen {values}, of {len(choice.candidates)} tried on held-out images"
            )
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
    *,
    search: StudySearch | None = None,
    search_warnings: Sequence[str] = (),
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
        warnings=(*search_warnings, *_warnings(records)),
        not_covered=(
            "whether the differences hold for other data, sizes or lengths of training",
            "errors of the many comparisons where there are many: each interval is of one difference alone",
        ),
        search=search,
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


_OF_THE_SEARCH = ("seed", "data.held_out", "data.folder")
"""What a search may have otherwise than the runs that follow it, without a warning."""


def read_search(folder: str | os.PathLike[str]) -> tuple[StudyRecord, StudySearch]:
    """Reads a study on held-out images and chooses the variant of each recipe with the highest mean accuracy.

    Among equals the first counts; a variant of which a run failed is not chosen. A folder without such a study, or a
    recipe of which no variant finished, raises ArgumentError or CheckpointError.
    """
    file = Path(folder) / "study.json"
    record = StudyRecord.load(file)
    if record.data is None:
        raise CheckpointError(f"no run of {folder} has finished, so nothing can be chosen")
    if record.measured != "validation":
        raise ArgumentError(must_be("chosen", "a study of runs with data.held_out", str(folder)))
    candidates: dict[str, list[StudyCandidate]] = {}
    for label in dict.fromkeys(item.label for item in (*record.groups, *record.failures)):
        name, values = _variant(label)
        group = next((group for group in record.groups if group.label == label), None)
        failed = tuple(item.reason for item in record.failures if item.label == label)
        candidates.setdefault(name, []).append(
            StudyCandidate(values, group and group.accuracy, failed)
        )
    if all(not item.values for found in candidates.values() for item in found):
        raise ArgumentError(must_be("chosen", "a study with a grid", str(folder)))
    choices = tuple(_choose(name, found) for name, found in candidates.items())
    return record, StudySearch(
        record.command, hashlib.sha256(file.read_bytes()).hexdigest(), record.seeds, choices
    )


def search_warnings(
    folder: str | os.PathLike[str],
    record: StudyRecord,
    search: StudySearch,
    runs: Sequence[PlannedRun],
) -> list[str]:
    """Lists why a choice may not be the best: a value at the end of its list, or other settings in the search."""
    found, first = [], {run.recipe.name: run for run in reversed(runs)}
    for choice in search.choices:
        if choice.label not in first:
            continue
        found += [f"{choice.label}: the chosen {text}" for text in _at_an_end(choice)]
        for item in choice.candidates:
            if item.failed:
                values = ", ".join(f"{key}={value}" for key, value in item.values.items())
                found.append(
                    f"{choice.label}: {values} was not eligible, because a run of it failed"
                )
        run = next(
            (
                run
                for run in record.runs
                if _variant(run.label) == (choice.label, dict(choice.values))
            ),
            None,
        )
        if run is None:
            raise CheckpointError(
                f"{Path(folder) / 'study.json'} is damaged: it lists no run of {choice.label}"
            )
        there = differing_keys(
            _read_run(Path(folder), run).recipe, first[choice.label].recipe.to_dict()
        )
        other = [
            text
            for text in there
            if not text.startswith(tuple(f"{key} is " for key in _OF_THE_SEARCH))
        ]
        found += [f"{choice.label}: in the search, {text}" for text in other]
    return found


def _choose(name: str, candidates: Sequence[StudyCandidate]) -> StudyChoice:
    means = [
        (item.accuracy.mean, item.values)
        for item in candidates
        if item.accuracy is not None and not item.failed
    ]
    finite = [(mean, values) for mean, values in means if math.isfinite(mean)]
    if not finite:
        raise CheckpointError(
            f"no variant of {name} has finished all of its runs, so none can be chosen"
        )
    _, values = max(finite, key=lambda pair: pair[0])
    return StudyChoice(name, values, tuple(candidates))


def _variant(label: str) -> tuple[str, dict[str, str]]:
    """Splits ``NAME[KEY=VALUE,KEY=VALUE]`` into the recipe's name and the values, in which commas may stand."""
    name, _, inside = label.removesuffix("]").partition("[")
    pairs = (pair.partition("=") for pair in re.split(r",(?=[\w.]+=)", inside) if pair)
    return name, {key: value for key, _, value in pairs}


def _at_an_end(choice: StudyChoice) -> list[str]:
    """Names the chosen numbers that are the smallest or the largest of those tried."""
    found = []
    for key, value in choice.values.items():
        try:
            tried = {float(item.values[key]) for item in choice.candidates if key in item.values}
            number = float(value)
        except ValueError:
            continue
        for end, word in ((min(tried), "smallest"), (max(tried), "largest")):
            if len(tried) > 1 and number == end:
                found.append(
                    f"{key}={value} is the {word} of those tried; one beyond it was not tried"
                )
    return found


def _read_run(folder: Path, run: StudyRun) -> RunRecord:
    """Reads a run of the search, if its record is still the one that the study has seen."""
    try:
        content = (folder / run.folder / "record.json").read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read a run of the study {folder}: {error}") from None
    if hashlib.sha256(content).hexdigest() != run.record_sha256:
        raise CheckpointError(
            f"{folder / run.folder} has changed since its study: give the study's command again"
        )
    return RunRecord.from_json(content.decode())
