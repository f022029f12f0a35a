"""Studies: every recipe with every seed, each run in its own process; finished runs are kept, others continued."""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from convattn.errors import ArgumentError, UnknownNameError
from convattn.files import sole_use, write_atomically
from convattn.lab.run_process import is_finished
from convattn.lab.study_engines import Engine, LocalEngine
from convattn.lab.study_plan import (
    PlannedRun,
    find_state,
    last_line,
    plan_runs,
    read_run,
    require_own,
)
from convattn.lab.study_record import (
    StudyRecord,
    Summary,
    compare,
    difference_in_words,
    require_same_data,
)
from convattn.lab.tables import markdown_table


def study(
    recipes: Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    seeds: Sequence[int] = (0, 1, 2),
    scale: str | None = None,
    overrides: Mapping[str, str] | None = None,
    grid: Mapping[str, Sequence[str]] | None = None,
    baseline: str | None = None,
    engine: Engine | None = None,
) -> StudyRecord:
    """Runs every recipe, in every variant, with every seed, and compares them.

    Finished runs in the folder are kept, and stopped runs continue from their last checkpoint. Nothing is overwritten
    except ``study.json`` and ``study.md``. A run that fails does not stop the others. Ctrl-C and SIGTERM
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
        engine: Carries out the runs; by default as local processes, one at a time.

    Returns:
        The record, as in ``study.json``.

    Raises:
        ArgumentError: There are no recipes or seeds, or two runs would be the same.
        CheckpointError: The folder holds something else, or another study is using it.
        DataError: Runs saw different data.
        MissingDependencyError: The engine's package is not installed.
        RecipeError: A recipe is wrong, or a run's folder holds a run of another recipe.
        UnknownNameError: There is no such recipe, or no such baseline.
    """
    overrides, grid, engine = overrides or {}, grid or {}, engine or LocalEngine()
    runs = plan_runs(recipes, output, seeds=seeds, scale=scale, overrides=overrides, grid=grid)
    reference = _find_baseline(baseline, runs)
    place = Path(output)
    require_own(place, runs)
    place.mkdir(parents=True, exist_ok=True)
    with sole_use(place):
        _carry_out(runs, engine)
        command = _command(recipes, seeds, scale, overrides, grid, baseline)
        record = compare(runs, reference, command)
        record.save(place / "study.json")
        write_atomically(place / "study.md", study_page(record))
    return record


def _carry_out(runs: Sequence[PlannedRun], engine: Engine) -> None:
    """Checks every folder, then runs what is not finished."""
    states = {run.name: find_state(run) for run in runs}
    finished = [run for run in runs if states[run.name] == "finished"]
    require_same_data([(run.name, read_run(run)[0].data) for run in finished])
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
    names = {baseline, str(Path(baseline).absolute())}
    variants = list(
        dict.fromkeys(run.label for run in runs if names & {run.recipe.name, run.source})
    )
    if len(variants) > 1:
        raise ArgumentError(
            f"baseline {baseline!r} has several variants, name one: {', '.join(variants)}"
        )
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
) -> str:
    words = [
        "convattn",
        "study",
        *(os.fspath(recipe) for recipe in recipes),
        "--seeds",
        ",".join(map(str, seeds)),
    ]
    words += [] if scale is None else ["--scale", scale]
    words += [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    words += [
        word for key, values in grid.items() for word in ("--grid", f"{key}={','.join(values)}")
    ]
    words += [] if baseline is None else ["--baseline", baseline]
    return shlex.join(words)


def study_page(record: StudyRecord) -> str:
    """Writes a study as Markdown: recipes, differences, what is wrong, and every run."""
    parts = [
        "# Study",
        f"`{record.command}`",
        *_groups(record),
        *_differences(record),
    ]
    if record.failures:
        rows = (
            [item.label, str(item.seed), item.log, _code(item.reason)] for item in record.failures
        )
        parts += ["## Failed", markdown_table(("recipe", "seed", "log", "last line"), rows)]
    if record.warnings:
        parts += ["## Warnings", "\n".join(f"- {item}" for item in record.warnings)]
    parts += [
        *_runs(record),
        "## Not covered",
        "\n".join(f"- {item}" for item in record.not_covered),
    ]
    return "\n\n".join(parts) + "\n"


def _groups(record: StudyRecord) -> list[str]:
    rows = (
        [
            f"{group.label} (baseline)" if group.label == record.baseline else group.label,
            str(group.accuracy.n),
            _spread(group.accuracy),
            f"{group.accuracy.minimum:.2%} to {group.accuracy.maximum:.2%}",
            f"{group.seconds.mean:,.1f}"
            + (f" ± {group.seconds.deviation:,.1f}" if group.seconds.deviation else ""),
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
            "none" if item.deviation is None else f"{100 * item.deviation:.2f}",
            difference_in_words(item.values),
        ]
        for item in record.differences
    )
    heads = ("recipe", "seeds", "differences", "standard deviation", "mean")
    title = f"## Differences to {record.baseline}"
    note = (
        f"{record.measured.capitalize()} accuracy less the baseline's with the same seed, in percentage points. A "
        "difference is resolved where the interval does not hold 0."
    )
    return [title, markdown_table(heads, rows), note]


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
    accuracy = f"{record.measured} accuracy"
    heads = (
        "folder",
        accuracy,
        "seconds",
        "hardware",
        "threads",
        "revision",
        "SHA-256 of record.json",
    )
    if record.data is None:
        return ["No run has finished."]
    hashes = "\n".join(f"- {_code(value)} {name}" for name, value in record.data.hashes.items())
    return [
        "## Runs",
        markdown_table(heads, rows),
        f"Data of every run: {record.data.name}, SHA-256:",
        hashes,
    ]


def _spread(summary: Summary) -> str:
    """Formats a mean with its deviation, in percent."""
    deviation = "" if summary.deviation is None else f" ± {100 * summary.deviation:.2f}"
    return f"{100 * summary.mean:.2f}{deviation} %"


def _code(text: str) -> str:
    """Returns text that Markdown shows as it is."""
    return f"`{text.replace('`', chr(39))}`"
