"""Runs recipes × seeds, each in its own process; keeps finished runs, continues others, and compares them."""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from convattn.errors import ArgumentError, UnknownNameError
from convattn.files import write_atomically
from convattn.training.studies.choice import chosen_values, doubts, read_search
from convattn.training.studies.compare import compare, require_same_data
from convattn.training.studies.engine import Engine, LocalEngine
from convattn.training.studies.folder import find_state, last_line, locked, read_run, require_own
from convattn.training.studies.leash import is_finished
from convattn.training.studies.page import study_csv, study_page
from convattn.training.studies.plan import PlannedRun, plan_runs
from convattn.training.studies.record import StudyRecord
from convattn.training.studies.statistics import require_scipy


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
