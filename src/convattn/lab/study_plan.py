"""The runs of a study, recipes × variants × seeds; its records; and the choice of the best variant."""

import hashlib
import itertools
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from convattn.errors import ArgumentError, CheckpointError, DataError, must_be
from convattn.lab.recipe import Recipe, differing_keys, load_recipe
from convattn.provenance import DataRecord, RunRecord
from convattn.record import Record

_LONGEST = 80
_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""Names that every file system keeps as they are, also one that does not tell capitals from small letters."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    label: str  # Name of the recipe, with the values that make the variant in brackets
    source: str  # The recipe as `load_recipe` takes it
    scale: str | None  # Scale of the recipe; None as the recipe says
    overrides: Mapping[str, str]  # Values that differ from the recipe, by dotted key
    recipe: Recipe  # The recipe as resolved, with its seed
    folder: Path  # Folder for the run

    @property
    def name(self) -> str:
        """Name of the folder, different for each run of the study."""
        return self.folder.name

    @property
    def log(self) -> Path:
        """File for everything that the run prints."""
        return self.folder.with_name(f"{self.name}.log")


def train_command(run: PlannedRun, resume: bool) -> list[str]:
    """Returns the command that starts a run, or continues it from its last checkpoint."""
    scale = [] if run.scale is None else ["--scale", run.scale]
    changes = [word for key, value in run.overrides.items() for word in ("--set", f"{key}={value}")]
    words = [sys.executable, "-m", "convattn", "train", run.source, *scale, *changes, "-o", str(run.folder)]
    return [*words, "--resume"] if resume else words


def plan_runs(
    recipes: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    seeds: Sequence[int],
    scale: str | None,
    overrides: Mapping[str, str],
    grid: Mapping[str, Sequence[str]],
    chosen: Mapping[str, Mapping[str, str]] | None = None,
) -> list[PlannedRun]:
    """Plans every run, by recipe, variant and seed, and checks every recipe before the first run begins.

    Each combination of the values in `grid` is a variant. `chosen` has values for each recipe, by its name. Wrong
    arguments, or two runs that would be the same, raise ArgumentError; recipes with different data raise DataError.
    """
    _check(recipes, seeds, overrides, grid)
    place, runs = Path(output).absolute(), []
    variants = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for given, variant, seed in itertools.product(recipes, variants, seeds):
        name = os.fspath(given)
        source = str(Path(name).absolute()) if name.endswith(".toml") else name
        own = {} if chosen is None else _own_values(load_recipe(source).name, chosen, [*overrides, *grid])
        changes = {**overrides, **own, **variant, "seed": str(seed)}
        recipe = load_recipe(source, scale=scale, overrides=changes)
        label = recipe.name + (f"[{','.join(f'{key}={value}' for key, value in variant.items())}]" if variant else "")
        runs.append(PlannedRun(label, source, scale, changes, recipe, place / f"{_safe(label)}-{seed}"))
    _check_runs(runs)
    return runs


def _own_values(name: str, chosen: Mapping[str, Mapping[str, str]], given: Sequence[str]) -> Mapping[str, str]:
    """Returns the values chosen for a recipe; a recipe without them, or a key given otherwise, raises ArgumentError."""
    if name not in chosen:
        raise ArgumentError(must_be("chosen", f"a study of {name} as well", ", ".join(chosen)))
    for key in chosen[name]:
        if key in given:
            raise ArgumentError(f"the key {key} is chosen by a study, and given in overrides or grid: remove one")
    return chosen[name]


def _check(
    recipes: Sequence[str | os.PathLike[str]],
    seeds: Sequence[int],
    overrides: Mapping[str, str],
    grid: Mapping[str, Sequence[str]],
) -> None:
    if not recipes:
        raise ArgumentError(must_be("recipes", "at least one recipe", list(recipes)))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError(must_be("seeds", "at least one number, each once", list(seeds)))
    if "seed" in overrides or "seed" in grid:
        raise ArgumentError("seed cannot be set in a study: use seeds")
    for key, values in grid.items():
        if not values or len(set(values)) < len(values):
            raise ArgumentError(must_be(f"grid {key}", "at least one value, each once", list(values)))
        if key in overrides:
            raise ArgumentError(f"the key {key} is in overrides and in grid: remove one of the two")


def _check_runs(runs: Sequence[PlannedRun]) -> None:
    """Raises if two runs would share a folder, or runs use different data."""
    labels: dict[str, PlannedRun] = {}
    for run in runs:
        other = labels.setdefault(run.name, run)
        if other is not run:
            raise ArgumentError(f"two recipes are called {run.label}: {other.source} and {run.source}; rename one")
        if run.recipe.data.name != runs[0].recipe.data.name:
            named = (f"{each.label}: {each.recipe.data.name}" for each in (runs[0], run))
            raise DataError(f"runs on different data cannot be compared ({', '.join(named)})")
    for run, other in itertools.combinations(runs, 2):
        if run.recipe == other.recipe:
            raise ArgumentError(f"{run.label} and {other.label} are the same run: leave one out")


def _safe(label: str) -> str:
    """Returns a label as a file name; if characters were replaced, a few digits of its hash are added."""
    if _SAFE.fullmatch(label) and len(label) <= _LONGEST:
        return label
    digits = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^a-z0-9.-]+', '_', label.lower())[:_LONGEST].strip('._-')}-{digits}"


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
    low: float | None  # Lower end of the 95 % bootstrap interval of the mean; None for a single difference
    high: float | None  # Upper end
    worth: str  # How far an interval over so many seeds can be trusted


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
    failed: tuple[str, ...]  # Last line of the log of each run that did not finish; such a variant is not chosen


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

    schema_version: ClassVar[int] = 2

    command: str  # Command that repeats the study; with the study's folder as ``-o`` it continues the study
    seeds: tuple[int, ...]  # Seeds that each recipe is run with
    baseline: str  # The recipe with which the others are compared
    groups: tuple[StudyGroup, ...]  # Each recipe over its finished runs; recipes without finished runs are left out
    differences: tuple[StudyDifference, ...]  # Paired differences of each other recipe to the baseline
    runs: tuple[StudyRun, ...]  # Every finished run
    failures: tuple[StudyFailure, ...]  # Every run that did not finish
    data: DataRecord | None  # Which data all runs saw; None where none has finished
    warnings: tuple[str, ...] = field(default=())  # Different code revisions, versions or hardware of the runs
    not_covered: tuple[str, ...] = field(default=())  # What the study says nothing about
    search: StudySearch | None = None  # The study by which values were chosen; None where none were

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        return "validation" if self.data is not None and "validation" in self.data.counts else "test"


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
        candidates.setdefault(name, []).append(StudyCandidate(values, group and group.accuracy, failed))
    if all(not item.values for found in candidates.values() for item in found):
        raise ArgumentError(must_be("chosen", "a study with a grid", str(folder)))
    choices = tuple(_choose(name, found) for name, found in candidates.items())
    return record, StudySearch(record.command, hashlib.sha256(file.read_bytes()).hexdigest(), record.seeds, choices)


def chosen_values(search: StudySearch) -> dict[str, Mapping[str, str]]:
    """Returns the chosen values of each recipe, by dotted key."""
    return {choice.label: choice.values for choice in search.choices}


def doubts(
    folder: str | os.PathLike[str], record: StudyRecord, search: StudySearch, runs: Sequence[PlannedRun]
) -> list[str]:
    """Lists why a choice may not be the best: values at an end of their list, and settings that the search had not."""
    found, first = [], {run.recipe.name: run for run in reversed(runs)}
    for choice in search.choices:
        if choice.label not in first:
            continue
        found += [f"{choice.label}: the chosen {text}" for text in _at_an_end(choice)]
        found += [
            f"{choice.label}: {_words(item.values)} was not eligible, because a run of it failed"
            for item in choice.candidates
            if item.failed
        ]
        run = next((run for run in record.runs if _variant(run.label) == (choice.label, dict(choice.values))), None)
        if run is None:
            raise CheckpointError(f"{Path(folder) / 'study.json'} is damaged: it lists no run of {choice.label}")
        there = differing_keys(_read_run(Path(folder), run).recipe, first[choice.label].recipe.to_dict())
        other = [text for text in there if not text.startswith(tuple(f"{key} is " for key in _OF_THE_SEARCH))]
        found += [f"{choice.label}: in the search, {text}" for text in other]
    return found


def _choose(name: str, candidates: Sequence[StudyCandidate]) -> StudyChoice:
    means = [(item.accuracy.mean, item) for item in candidates if item.accuracy is not None and not item.failed]
    able = [(mean, item) for mean, item in means if math.isfinite(mean)]
    if not able:
        raise CheckpointError(f"no variant of {name} has finished all of its runs, so none can be chosen")
    best = max(mean for mean, _ in able)
    return StudyChoice(name, next(item.values for mean, item in able if mean == best), tuple(candidates))


def _words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _variant(label: str) -> tuple[str, dict[str, str]]:
    """Splits ``NAME[KEY=VALUE,KEY=VALUE]`` into the recipe's name and the values, in which commas may stand."""
    name, _, inside = label.removesuffix("]").partition("[")
    pairs = (pair.partition("=") for pair in re.split(r",(?=[\w.]+=)", inside) if pair)
    return name, {key: value for key, _, value in pairs}


def _at_an_end(choice: StudyChoice) -> list[str]:
    """Says which chosen numbers are the smallest or the largest of theirs."""
    found = []
    for key, value in choice.values.items():
        try:
            tried = {float(item.values[key]) for item in choice.candidates if key in item.values}
            number = float(value)
        except ValueError:
            continue
        for end, word in ((min(tried), "smallest"), (max(tried), "largest")):
            if len(tried) > 1 and number == end:
                found.append(f"{key}={value} is the {word} of those tried; one beyond it was not tried")
    return found


def _read_run(folder: Path, run: StudyRun) -> RunRecord:
    """Reads a run of the search, if its record is still the one that the study has seen."""
    try:
        content = (folder / run.folder / "record.json").read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read a run of the study {folder}: {error}") from None
    if hashlib.sha256(content).hexdigest() != run.record_sha256:
        raise CheckpointError(f"{folder / run.folder} has changed since its study: give the study's command again")
    return RunRecord.from_json(content.decode())
