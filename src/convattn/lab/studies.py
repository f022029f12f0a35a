"""Runs recipes × seeds, each in its own process; keeps finished runs, continues others, and compares them."""

import hashlib
import os
import shlex
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from convattn.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    MissingDependencyError,
    RecipeError,
    UnknownNameError,
)
from convattn.files import write_atomically
from convattn.lab.leash import has_checkpoint, is_finished, lock
from convattn.lab.recipe import Recipe, differing_keys
from convattn.lab.run_folder import markdown_table
from convattn.lab.sheets import csv_text
from convattn.lab.study_engines import Engine, LocalEngine
from convattn.lab.study_plan import (
    PlannedRun,
    StudyDifference,
    StudyFailure,
    StudyGroup,
    StudyRecord,
    StudyRun,
    StudySearch,
    Summary,
    chosen_values,
    doubts,
    plan_runs,
    read_search,
)
from convattn.provenance import RunRecord
from convattn.wording import some

State = Literal["finished", "under way", "stopped early", "new"]

_LOCK = ".study.lock"

_SHOWN = 4
"""Differences between two recipes that a message names."""


def find_state(run: PlannedRun) -> State:
    """Returns the state of a run; "stopped early" is before its first checkpoint.

    A folder that holds a run of another recipe raises RecipeError; one that holds no run, CheckpointError.
    """
    folder = run.folder
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, but must be the folder of a run")
    if not folder.exists() or not any(folder.iterdir()):
        return "new"
    if is_finished(folder):
        _require_same(folder, RunRecord.load(folder / "record.json").recipe, run.recipe)
        return "finished"
    try:
        found = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CheckpointError(f"{folder} holds no run: recipe.toml cannot be read ({error})") from None
    _require_same(folder, found, run.recipe)
    return "under way" if has_checkpoint(folder) else "stopped early"


def read_run(run: PlannedRun) -> tuple[RunRecord, str]:
    """Returns the record of a finished run, and the SHA-256 of its file."""
    content = (run.folder / "record.json").read_bytes()
    return RunRecord.from_json(content.decode()), hashlib.sha256(content).hexdigest()


def last_line(log: Path) -> str:
    """Returns the last non-empty line of a log, or "no log"."""
    if not log.is_file():
        return "no log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no log")


def require_own(place: Path, runs: Sequence[PlannedRun]) -> None:
    """Raises ArgumentError if a folder has contents, and none of them is of a study or of one of the runs."""
    own = {"study.json", _LOCK, *(run.folder.name for run in runs)}
    found = sorted(item.name for item in place.iterdir()) if place.is_dir() else []
    if found and own.isdisjoint(found):
        expected = "output must be new, empty or the folder of a study"
        raise ArgumentError(f"{expected}, but {str(place)!r} holds {some(found)}")


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Locks a folder, which is made if it is missing, for one study; if another uses it, raises CheckpointError."""
    if place.exists() and not place.is_dir():
        raise ArgumentError(f"output must be a folder, but {str(place)!r} is a file")
    place.mkdir(parents=True, exist_ok=True)
    with (place / _LOCK).open("ab") as file:
        if not lock(file, patience=0):
            raise CheckpointError(f"another study is using {place}")
        yield


def _require_same(folder: Path, found: Mapping[str, Any], wanted: Recipe) -> None:
    differing = differing_keys(found, wanted.to_dict())
    if differing:
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise RecipeError(f"{folder} holds a run of another recipe: {'; '.join(differing[:_SHOWN])}{more}")


_RESAMPLES = 9_999
_CONFIDENCE = 0.95
_SEED = 0
"""Of the resampling, so that the same runs always give the same interval."""


def summarise(values: Sequence[float]) -> Summary:
    """Summarises one quantity over one or more runs.

    Example:
        >>> summarise([1.0, 2.0, 6.0])
        Summary(n=3, mean=3.0, deviation=2.6457513110645907, minimum=1.0, maximum=6.0)
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(len(values), statistics.fmean(values), deviation, float(min(values)), float(max(values)))


def paired_difference(
    label: str, baseline: str, values: Mapping[int, float], against: Mapping[int, float]
) -> StudyDifference | None:
    """Compares two recipes (value minus baseline) over the seeds that both have; None if there are none."""
    seeds = sorted(values.keys() & against.keys())
    if not seeds:
        return None
    differences = tuple(values[seed] - against[seed] for seed in seeds)
    found, interval = summarise(differences), bootstrap_interval(differences)
    return StudyDifference(
        label=label,
        baseline=baseline,
        seeds=tuple(seeds),
        values=differences,
        mean=found.mean,
        deviation=found.deviation,
        low=interval[0],
        high=interval[1],
        worth=interval_worth(len(seeds)),
    )


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Computes the 95 % percentile bootstrap interval of a mean, from 9,999 resamples with a fixed seed.

    Fewer than two values have no interval. Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993),
    section 13.3.
    """
    if len(values) < 2:
        return None, None
    import numpy as np
    from scipy import stats

    found = stats.bootstrap(
        (np.asarray(values, dtype=np.float64),),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=_CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    # The mean of equal numbers can be a rounding error away from them, but no mean leaves the range.
    return max(float(found.low), min(values)), min(float(found.high), max(values))


def require_scipy() -> None:
    """Raises if scipy is missing, before hours of training rather than after."""
    if find_spec("scipy") is None:
        raise MissingDependencyError("scipy", "train")


def interval_worth(n: int) -> str:
    """Says how far a percentile bootstrap interval over n differences can be trusted.

    A resample that draws the smallest value n times has probability n⁻ⁿ. For n of 2 and 3 that is above 2.5 %, so that
    the interval is exactly the range; and the range of n independent draws holds the median of what they are drawn from
    with probability 1 − 2¹⁻ⁿ.

    Example:
        >>> print(interval_worth(3))
        n = 3: the interval is the range from the smallest to the largest difference; such a range holds the median
        difference in 75 % of studies, not in 95 %.
    """
    if n < 2:
        return "n = 1: one difference has no interval and shows no spread."
    if n < 4:
        return (
            f"n = {n}: the interval is the range from the smallest to the largest difference; such a range holds the "
            f"median difference in {100 * (1 - 2 ** (1 - n)):.0f} % of studies, not in 95 %."
        )
    return (
        f"n = {n}: the percentile bootstrap cannot be wider than the range of the differences, and holds the mean in "
        "fewer than 95 % of studies where seeds are few."
    )


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


_QUANTITIES = ("accuracy", "seconds", "parameters")
_MEASURES = ("mean", "deviation", "minimum", "maximum")


def study_page(record: StudyRecord) -> str:
    """Writes a study as Markdown: recipes, differences, what is wrong, and every run."""
    parts = ["# Study", f"`{record.command}`", *_search(record), *_groups(record), *_differences(record)]
    if record.failures:
        rows = ([item.label, str(item.seed), item.log, _code(item.reason)] for item in record.failures)
        parts += ["## Failed", markdown_table(("recipe", "seed", "log", "last line"), rows)]
    if record.warnings:
        parts += ["## Warnings", "\n".join(f"- {item}" for item in record.warnings)]
    parts += [*_runs(record), "## Not covered", "\n".join(f"- {item}" for item in record.not_covered)]
    return "\n\n".join(parts) + "\n"


def study_csv(record: StudyRecord) -> str:
    """Writes a study as comma-separated values, a row for each recipe: accuracies as fractions, times in seconds.

    A number that does not exist, such as the deviation of one run, is empty.
    """
    ends = ("n", "mean", "deviation", "low", "high")
    columns = [f"{quantity}_{measure}" for quantity in _QUANTITIES for measure in _MEASURES]
    rows: list[list[object]] = [["recipe", "n", *columns, "baseline", *(f"difference_{end}" for end in ends)]]
    differences = {item.label: item for item in record.differences}
    for group in record.groups:
        summaries = [getattr(group, quantity) for quantity in _QUANTITIES]
        numbers = [getattr(summary, measure) for summary in summaries for measure in _MEASURES]
        found = differences.get(group.label)
        rest = (found.baseline, len(found.seeds), found.mean, found.deviation, found.low, found.high) if found else ()
        rows.append([group.label, group.accuracy.n, *numbers, *(rest or [None] * 6)])
    return csv_text(rows)


def _search(record: StudyRecord) -> list[str]:
    """Returns the table of what a search tried and chose for the recipes of this study."""
    if record.search is None:
        return []
    here = {run.label.partition("[")[0] for run in record.runs}
    rows = [
        [
            choice.label,
            ", ".join(f"{key}={value}" for key, value in item.values.items()),
            "none" if item.accuracy is None else _spread(item.accuracy),
            "; ".join(map(_code, item.failed)) or ("**chosen**" if item.values == choice.values else ""),
        ]
        for choice in record.search.choices
        if choice.label in here
        for item in choice.candidates
    ]
    seeds, digest = ", ".join(map(str, record.search.seeds)), _code(record.search.study_sha256)
    note = (
        f"Chosen by the highest mean accuracy on held-out training images, seeds {seeds}, by "
        f"{_code(record.search.command)} (SHA-256 of its study.json: {digest})."
    )
    return ["## Choice", markdown_table(("recipe", "values", "validation accuracy", ""), rows), note]


def _groups(record: StudyRecord) -> list[str]:
    rows = (
        [
            f"{group.label} (baseline)" if group.label == record.baseline else group.label,
            str(group.accuracy.n),
            _spread(group.accuracy),
            f"{group.accuracy.minimum:.2%} to {group.accuracy.maximum:.2%}",
            f"{group.seconds.mean:,.1f}" + (f" ± {group.seconds.deviation:,.1f}" if group.seconds.deviation else ""),
            f"{group.parameters.mean:,.0f}",
        ]
        for group in record.groups
    )
    heads = ("recipe", "n", f"{record.measured} accuracy", "range", "seconds", "parameters")
    note = "Mean ± standard deviation (n − 1) over seeds."
    return ["## Recipes", markdown_table(heads, rows), note] if record.groups else []


def _differences(record: StudyRecord) -> list[str]:
    """Returns the table of differences, and how far its intervals can be trusted."""
    if not record.differences:
        return []
    rows = (
        [
            item.label,
            ", ".join(map(str, item.seeds)),
            ", ".join(f"{100 * value:+.2f}" for value in item.values),
            f"{100 * item.mean:+.2f}" + ("" if item.deviation is None else f" ± {100 * item.deviation:.2f}"),
            _interval(item),
        ]
        for item in record.differences
    )
    heads = ("recipe", "seeds", "differences", "mean", "95 % interval")
    worth = "\n".join(f"- {text}" for text in sorted({item.worth for item in record.differences}))
    title = f"## Differences to {record.baseline}"
    note = (
        f"{record.measured.capitalize()} accuracy less the baseline's with the same seed, in percentage points. The "
        "interval of the mean is the percentile bootstrap's (9,999 resamples, seed 0); with n seeds it cannot be wider "
        "than the range of the differences."
    )
    return [title, markdown_table(heads, rows), note, worth]


def _runs(record: StudyRecord) -> list[str]:
    """Returns the table of runs, and the data that all of them saw."""
    rows = (
        [
            run.folder,
            f"{run.results[f'{record.measured}_accuracy']:.2%}",
            f"{run.seconds:,.1f}",
            run.hardware.get("accelerator", run.hardware.get("processor", "unknown")),
            run.hardware.get("threads", "unknown"),
            _code(run.revision or "none"),
            _code(run.record_sha256),
        ]
        for run in record.runs
    )
    heads = (
        "folder",
        f"{record.measured} accuracy",
        "seconds",
        "hardware",
        "threads",
        "revision",
        "SHA-256 of record.json",
    )
    if record.data is None:
        return ["No run has finished."]
    hashes = "\n".join(f"- {_code(value)} {name}" for name, value in record.data.hashes.items())
    return ["## Runs", markdown_table(heads, rows), f"Data of every run: {record.data.name}, SHA-256:", hashes]


def _spread(summary: Summary) -> str:
    """Formats a mean with its deviation, in percent."""
    deviation = "" if summary.deviation is None else f" ± {100 * summary.deviation:.2f}"
    return f"{100 * summary.mean:.2f}{deviation} %"


def _interval(item: StudyDifference) -> str:
    return "none" if item.low is None or item.high is None else f"{100 * item.low:+.2f} to {100 * item.high:+.2f}"


def _code(text: str) -> str:
    """Returns text that Markdown shows as it is."""
    return f"`{text.replace('`', chr(39))}`"


def study(  # noqa: PLR0913  (each is an option of the command)
    recipes: Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    seeds: Sequence[int] = (0, 1, 2),
    scale: str | None = None,
    overrides: Mapping[str, str] | None = None,
    grid: Mapping[str, Sequence[str]] | None = None,
    baseline: str | None = None,
    chosen: str | os.PathLike[str] | None = None,
    engine: Engine | None = None,
) -> StudyRecord:
    """Runs every recipe, in every variant, with every seed, and compares them.

    Finished runs in the folder are kept, and stopped runs continue from their last checkpoint. Nothing is overwritten
    except ``study.json``, ``study.md`` and ``study.csv``. A run that fails does not stop the others. Ctrl-C and SIGTERM
    stop all runs; the same call continues them.

    Args:
        recipes: Names of recipes, or paths that end in ".toml".
        output: Folder of the study; each run has the folder ``NAME-SEED`` in it, beside its log ``NAME-SEED.log``.
        seeds: Seeds that each recipe is run with.
        scale: Scale of all recipes: "paper", "medium", "small" or "tiny"; None as each recipe says.
        overrides: Values for all recipes, by dotted key, as text.
        grid: Several values by dotted key; every combination of them makes a variant ``NAME[KEY=VALUE]`` of every
            recipe.
        baseline: Recipe or variant with which the others are compared; by default the first.
        chosen: Folder of an earlier study with held-out images and a grid; each recipe takes the values of its best
            variant there. The record then holds the choice and all its candidates.
        engine: Carries out the runs; by default as local processes, one at a time.

    Returns:
        The record, as in ``study.json``.

    Raises:
        ArgumentError: There are no recipes or seeds, or two runs would be the same; or `chosen` is no study with
            held-out images, or one without these recipes.
        CheckpointError: The folder holds something else, or another study is using it; or `chosen` holds no finished
            study of this version.
        DataError: Runs saw different data.
        MissingDependencyError: scipy is missing, or the engine's package.
        RecipeError: A recipe is wrong, or a run's folder holds a run of another recipe.
        UnknownNameError: There is no such recipe, or no such baseline.
    """
    overrides, grid, engine = overrides or {}, grid or {}, engine or LocalEngine()
    found, search = (None, None) if chosen is None else read_search(chosen)
    values = None if search is None else chosen_values(search)
    runs = plan_runs(recipes, output, seeds=seeds, scale=scale, overrides=overrides, grid=grid, chosen=values)
    notes = [] if chosen is None or found is None or search is None else doubts(chosen, found, search, runs)
    reference = _find_baseline(baseline, runs)
    if len({run.label for run in runs}) > 1:
        require_scipy()
    require_own(Path(output), runs)
    with locked(Path(output)):
        _carry_out(runs, engine)
        command = _command(recipes, seeds, scale, overrides, grid, baseline, chosen)
        record = compare(runs, reference, command, search=search, doubts=notes)
        record.save(Path(output) / "study.json")
        write_atomically(Path(output) / "study.md", study_page(record))
        write_atomically(Path(output) / "study.csv", study_csv(record))
    return record


def _carry_out(runs: Sequence[PlannedRun], engine: Engine) -> None:
    """Checks every folder, then runs what is not finished."""
    states = {run.name: find_state(run) for run in runs}
    finished = [run for run in runs if states[run.name] == "finished"]
    require_same_data(finished, [read_run(run)[0] for run in finished])
    for run in finished:
        engine.tell(f"{run.name}: kept, finished before")
    for run in runs:
        if states[run.name] == "under way":
            engine.tell(f"{run.name}: to be continued from its last checkpoint")
    wanted = [run for run in runs if states[run.name] != "finished"]
    if not wanted:
        return
    with closing(engine.run(wanted)) as ended:
        for run in ended:
            engine.tell(f"{run.name}: {_outcome(run)}")


def _outcome(run: PlannedRun) -> str:
    if not is_finished(run.folder):
        return f"FAILED: {last_line(run.log)}"
    record, _ = read_run(run)
    return f"done in {record.seconds:.1f} s, {record.measured} accuracy {record.accuracy:.2%}"


def _find_baseline(baseline: str | None, runs: Sequence[PlannedRun]) -> str:
    if baseline is None:
        return runs[0].label
    labels = list(dict.fromkeys(run.label for run in runs))
    if baseline in labels:
        return baseline
    variants = list(dict.fromkeys(run.label for run in runs if baseline in (run.recipe.name, run.source)))
    if len(variants) > 1:
        raise ArgumentError(f"baseline {baseline!r} has several variants, name one: {', '.join(variants)}")
    if not variants:
        raise UnknownNameError("baseline", baseline, labels)
    return variants[0]


def _command(
    recipes: Sequence[str | os.PathLike[str]],
    seeds: Sequence[int],
    scale: str | None,
    overrides: Mapping[str, str],
    grid: Mapping[str, Sequence[str]],
    baseline: str | None,
    chosen: str | os.PathLike[str] | None,
) -> str:
    words = ["convattn", "study", *(os.fspath(recipe) for recipe in recipes), "--seeds", ",".join(map(str, seeds))]
    words += [] if scale is None else ["--scale", scale]
    words += [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    words += [word for key, values in grid.items() for word in ("--grid", f"{key}={','.join(values)}")]
    words += [] if baseline is None else ["--baseline", baseline]
    words += [] if chosen is None else ["--chosen", os.fspath(chosen)]
    return shlex.join(words)
