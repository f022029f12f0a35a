"""Takes the best variant of each recipe from a study on held-out images."""

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from convattn.errors import ArgumentError, CheckpointError, must_be
from convattn.records import RunRecord
from convattn.training.recipe_file import differing_keys
from convattn.training.studies.plan import PlannedRun
from convattn.training.studies.record import StudyCandidate, StudyChoice, StudyRecord, StudyRun, StudySearch

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
