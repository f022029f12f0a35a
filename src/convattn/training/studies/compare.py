"""Compares finished runs: each recipe over its seeds, and its differences from the baseline."""

from collections.abc import Sequence

from convattn.errors import DataError
from convattn.records import RunRecord
from convattn.training.studies.folder import last_line, read_run
from convattn.training.studies.leash import is_finished
from convattn.training.studies.plan import PlannedRun
from convattn.training.studies.record import StudyFailure, StudyGroup, StudyRecord, StudyRun, StudySearch
from convattn.training.studies.statistics import paired_difference, summarise

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
    doubts: Sequence[str] = (),
) -> StudyRecord:
    """Makes the record of a study from the folders of its runs; `doubts` are warnings on the search."""
    finished = [run for run in runs if is_finished(run.folder)]
    records, hashes = zip(*map(read_run, finished), strict=True) if finished else ((), ())
    require_same_data(finished, records)
    by_label: dict[str, dict[int, RunRecord]] = {}
    for run, record in zip(finished, records, strict=True):
        by_label.setdefault(run.label, {})[record.seed] = record
    accuracies = {label: {seed: record.accuracy for seed, record in found.items()} for label, found in by_label.items()}
    differences = (
        paired_difference(label, baseline, found, accuracies.get(baseline, {}))
        for label, found in accuracies.items()
        if label != baseline
    )
    return StudyRecord(
        command=command,
        seeds=tuple(dict.fromkeys(run.recipe.seed for run in runs)),
        baseline=baseline,
        groups=tuple(_group(label, list(found.values())) for label, found in by_label.items()),
        differences=tuple(item for item in differences if item is not None),
        runs=tuple(_entry(*each) for each in zip(finished, records, hashes, strict=True)),
        failures=tuple(
            StudyFailure(run.label, run.recipe.seed, run.log.name, last_line(run.log))
            for run in runs
            if run not in finished
        ),
        data=records[0].data if records else None,
        warnings=(*doubts, *_warnings(records)),
        not_covered=(
            "whether the differences hold for other data, sizes or lengths of training",
            "errors of the many comparisons where there are many: each interval is of one difference alone",
        ),
        search=search,
    )


def _group(label: str, records: Sequence[RunRecord]) -> StudyGroup:
    return StudyGroup(
        label=label,
        accuracy=summarise([record.accuracy for record in records]),
        seconds=summarise([record.seconds for record in records]),
        parameters=summarise([record.parameters for record in records]),
    )


def _entry(run: PlannedRun, record: RunRecord, sha256: str) -> StudyRun:
    """Returns the part of a run's record that a study keeps."""
    return StudyRun(
        label=run.label,
        seed=record.seed,
        folder=run.name,
        record_sha256=sha256,
        results=record.results,
        seconds=record.seconds,
        parameters=record.parameters,
        data=record.data.name,
        data_hashes=record.data.hashes,
        hardware=record.hardware,
        versions=record.versions,
        revision=record.revision,
    )


def require_same_data(runs: Sequence[PlannedRun], records: Sequence[RunRecord]) -> None:
    """Raises DataError if runs were trained on different data; the message names two runs and the hashes."""
    for run, record in zip(runs, records, strict=True):
        first, found = records[0].data, record.data
        if found.hashes != first.hashes:
            pairs = {
                name: (first.hashes.get(name), found.hashes.get(name)) for name in {**first.hashes, **found.hashes}
            }
            told = "; ".join(f"{name} is {one} and {other}" for name, (one, other) in pairs.items() if one != other)
            raise DataError(f"{runs[0].name} and {run.name} saw different data and cannot be compared: {told}")


def _warnings(records: Sequence[RunRecord]) -> list[str]:
    """Lists what differs between runs besides recipe and seed."""
    found = {"code revisions": {record.revision or "none" for record in records}}
    found |= {words: {record.hardware.get(key, "none") for record in records} for key, words in _DIFFERING.items()}
    for package in sorted({name for record in records for name in record.versions}):
        found[f"versions of {package}"] = {record.versions.get(package, "none") for record in records}
    differing = {words: ", ".join(sorted(values)) for words, values in found.items() if len(values) > 1}
    warnings = [f"the runs have different {words}: {values}" for words, values in differing.items()]
    dirty = sorted(revision for revision in found["code revisions"] if revision.endswith("-dirty"))
    return warnings + [f"the code differed from its revision: {revision}" for revision in dirty]
