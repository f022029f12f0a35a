"""Studies: every recipe with every seed, each run in its own process; finished runs are kept, others continued."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from convattn.errors import CheckpointError, require_name
from convattn.files import AnyPath, sole_use, write_atomically
from convattn.grid import whole_number
from convattn.lab.page_templates import fill_template
from convattn.lab.paper_figures import accuracy_curves, figure_paths
from convattn.lab.run_cost import announce
from convattn.lab.run_process import computing_with
from convattn.lab.runs import read_curve
from convattn.lab.study_plan import (
    PlannedRun,
    find_finished,
    last_line,
    plan_runs,
    require_own,
)
from convattn.lab.study_record import (
    StudyRecord,
    compare,
    difference_in_words,
    percent,
    require_same_data,
)
from convattn.lab.study_workers import carry_out, threads_of


def study(  # noqa: PLR0913 - the options of the command
    recipes: Sequence[AnyPath],
    *,
    output: AnyPath,
    seeds: Sequence[int] = (0, 1, 2),
    scale: str | None = None,
    overrides: Mapping[str, str] | None = None,
    grid: Mapping[str, Sequence[str]] | None = None,
    baseline: str | None = None,
    workers: int = 1,
    threads: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    yes: bool = True,
) -> StudyRecord:
    """Runs every recipe, in every variant, with every seed, and compares them.

    Finished runs in the folder are kept, and stopped runs continue from their last checkpoint. Nothing is overwritten
    except ``study.json``, ``study.md``, and the figure ``study.png`` and ``study.svg``. A run that fails does not stop
    the others. Ctrl-C and SIGTERM stop all runs; the same call continues them.

    Args:
        recipes: Names of recipes, or paths that end in ".toml".
        output: Folder of the study; each run has the folder ``NAME-SEED`` in it, beside its recipe
            ``NAME-SEED.toml`` and its log ``NAME-SEED.log``.
        seeds: Seeds that each recipe is run with.
        scale: Scale of all recipes: "paper", "medium", "small" or "tiny"; None as each recipe says.
        overrides: Values for all recipes, by dotted key, as text.
        grid: Several values by dotted key; every combination of them makes a variant ``NAME[KEY=VALUE]`` of every
            recipe.
        baseline: Recipe or variant, as ``NAME[KEY=VALUE]``, with which the others are compared; by default the first.
        workers: Runs at a time, at least 1.
        threads: Threads of each run, at least 1; None takes ``MKL_NUM_THREADS``, or ``OMP_NUM_THREADS``, or, if none is
            set, one for tiny images, and for others the cores divided by the workers.
        tell: Called with a line of text when a run starts or ends, and before them with what they will take.
        yes: Whether more than an hour is confirmed, where there is a terminal.

    Returns:
        The record, as in ``study.json``.

    Raises:
        ArgumentError: There are no recipes or seeds, two runs would be the same, workers or threads are below 1, the
            folder holds something else, or it will take more than an hour and is not confirmed.
        CheckpointError: Another study is using the folder, or a run's folder holds a run of another recipe.
        DataError: Runs saw different data.
        RecipeError: A recipe is wrong.
        UnknownNameError: There is no such recipe, or no such baseline.
    """
    whole_number("workers", workers)
    if threads is not None:
        whole_number("threads", threads)
    overrides, grid = overrides or {}, grid or {}
    runs = plan_runs(recipes, output, seeds=seeds, scale=scale, overrides=overrides, grid=grid)
    labels = [run.label for run in runs]
    reference = labels[0] if baseline is None else baseline
    require_name("baseline", reference, dict.fromkeys(labels))
    words = [
        "convattn",
        "study",
        *map(str, recipes),
        "--seeds",
        ",".join(map(str, seeds)),
    ]
    if scale is not None:
        words += ["--scale", scale]
    for key, value in overrides.items():
        words += ["--set", f"{key}={value}"]
    for key, values in grid.items():
        lists = any("," in value for value in values)
        text = "".join(f"{value};" for value in values) if lists else ",".join(values)
        words += ["--grid", f"{key}={text}"]
    if baseline is not None:
        words += ["--baseline", baseline]
    place = Path(output)
    require_own(place, runs)
    place.mkdir(parents=True, exist_ok=True)
    with sole_use(place):
        unfinished = _unfinished(runs, tell)
        with computing_with(threads_of(runs[0], threads, workers)):  # all have images of one size
            announce([run.recipe for run in unfinished], tell, yes=yes, workers=workers)
        with closing(carry_out(unfinished, workers=workers, threads=threads, tell=tell)) as ended:
            for run in ended:
                tell(f"{run.name}: {_outcome(run)}")
        record = compare(runs, reference, shlex.join(words))
        record.save(place / "study.json")
        formats = {"percent": percent, "in_words": difference_in_words}
        page = fill_template("study_page.txt", record=record, **formats)
        write_atomically(place / "study.md", page)
        _draw_curves(record, place, tell)
    return record


def _unfinished(runs: Sequence[PlannedRun], tell: Callable[[str], None]) -> list[PlannedRun]:
    """Checks every folder, and returns the runs that are not finished."""
    finished, unfinished = {}, []
    for run in runs:
        record = find_finished(run)
        if record is not None:
            finished[run.name] = record
            tell(f"{run.name}: kept, finished before")
            continue
        unfinished.append(run)
        if run.begun:
            tell(f"{run.name}: to be continued from its last checkpoint")
    require_same_data(finished)
    return unfinished


def _outcome(run: PlannedRun) -> str:
    record = find_finished(run)
    if record is None:
        return f"FAILED: {last_line(run.log)}"
    return f"done in {record.seconds:.1f} s, {record.measured} accuracy {record.accuracy:.2%}"


def _draw_curves(record: StudyRecord, place: Path, tell: Callable[[str], None]) -> None:
    """Draws accuracy over epochs in a study's folder: of each recipe a line for each seed, and their mean."""
    curves = {}
    for group in record.groups:
        of_seeds = []
        for run in record.runs:
            if run.label != group.label:
                continue
            try:
                of_seeds.append(np.array(read_curve(place / run.folder, record.measured)))
            except CheckpointError as error:
                tell(f"left out of the figure: {error}")
        if of_seeds:
            curves[f"{group.label}: {percent(group.accuracy)}"] = of_seeds
    if record.data is not None:
        title = f"{record.measured} accuracy over training\nthin: seeds, thick: their mean"
        panels = {record.data.name: curves}
        paths = figure_paths(place, "study")
        accuracy_curves(paths, panels, title=title, measured=record.measured)
