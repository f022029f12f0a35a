"""`convattn study`: recipes over seeds, compared."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from convattn.cli.output import (
    OutputOrDefault,
    Settings,
    WholeNumber,
    key_values,
    print_record,
    say,
)
from convattn.errors import ArgumentError, must_be


def study(  # noqa: PLR0913  (each is an option of the command)
    recipes: Annotated[tuple[str, ...], Parameter(name="RECIPE")],
    /,
    *,
    seeds: str = "0,1,2",
    scale: str | None = None,
    overrides: Settings = (),
    grid: tuple[str, ...] = (),
    baseline: str | None = None,
    output: OutputOrDefault = None,
    workers: WholeNumber | None = None,
    threads: WholeNumber | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    json: bool = False,
) -> int:
    """Train recipes with several seeds, and compare them.

    Each run is a process with a folder NAME-SEED and a log NAME-SEED.log. If you give the command again, finished runs
    are kept and stopped ones continue from their last checkpoint; no run is overwritten. A run that fails does not
    stop the others. study.json and study.md hold the results of each recipe and their differences from the
    baseline.

    Args:
        recipes: Names of recipes (`convattn info` lists them), or files that end in .toml.
        seeds: Seeds of each recipe, separated by commas.
        scale: paper, medium, small or tiny. Default: as each recipe says.
        overrides: KEY=VALUE, a value to change in every recipe; may be given more than once.
        grid: KEY=VALUE,VALUE,…: each value makes a variant NAME[KEY=VALUE] of every recipe. If given more than once,
            every combination is a variant.
        baseline: Recipe or variant with which the others are compared. Default: the first.
        output: Folder of the study. Default: study. With --engine ray every node must see it under the same path.
        workers: Runs at a time. Default: 1; with --engine ray as many as the cluster has room for.
        threads: Threads of each run. Default: OMP_NUM_THREADS; if that is not set, one for tiny images, and for others
            the cores divided by the workers.
        engine: local for processes on this machine, ray for a Ray cluster.
        address: Address of the Ray cluster, or auto for the one that runs here; without it one is started for the
            study.
        json: Print the study's record as JSON.

    Returns:
        0, or 1 if a run failed.
    """
    if address is not None and engine != "ray":
        raise ArgumentError("--address needs --engine ray")
    seed_numbers = _read_seeds(seeds)
    changes = key_values(overrides, "--set")
    variants = _read_grid(grid)
    folder = Path("study") if output is None else output
    from convattn.lab import study as run_study
    from convattn.lab.study_engines import LocalEngine, RayEngine

    if engine == "ray":
        runner = RayEngine(workers=workers, threads=threads, tell=say, address=address)
    else:
        runner = LocalEngine(workers=workers, threads=threads, tell=say)
    try:
        record = run_study(
            recipes,
            output=folder,
            seeds=seed_numbers,
            scale=scale,
            overrides=changes,
            grid=variants,
            baseline=baseline,
            engine=runner,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the same command goes on; finished runs in {folder} are kept"
        ) from None
    print_record(
        record, f"{record.summary()}\nwrote {folder}; look at {folder / 'study.md'}", json=json
    )
    return 1 if record.failures else 0


def _read_seeds(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentError(must_be("--seeds", "whole numbers separated by commas", text)) from None


def _read_grid(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """Reads the values of each key that varies."""
    grid = {}
    for key, values in key_values(texts, "--grid").items():
        grid[key] = values.split(",")
    if len(grid) < len(texts):
        raise ArgumentError("--grid must be given once for each key, with all of its values")
    return grid
