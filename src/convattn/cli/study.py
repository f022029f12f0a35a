"""`convattn study`: recipes over seeds, compared."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from convattn.cli.options import AsJson, OutputOrDefault, WholeNumber, key_values
from convattn.cli.output import print_record
from convattn.errors import ArgumentError, must_be

if TYPE_CHECKING:
    from convattn.training.studies.engine import Engine
    from convattn.training.studies.record import StudyRecord

__all__ = ["study"]

_Several = Parameter(negative="", show_default=False)
_Optional = Parameter(show_default=False)


def study(  # noqa: PLR0913  (each is an option of the command)
    recipes: Annotated[tuple[str, ...], Parameter(name="RECIPE")],
    /,
    *,
    seeds: str = "0,1,2",
    scale: Annotated[str | None, _Optional] = None,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set"), _Several] = (),
    grid: Annotated[tuple[str, ...], _Several] = (),
    baseline: Annotated[str | None, _Optional] = None,
    output: OutputOrDefault = None,
    workers: Annotated[WholeNumber | None, _Optional] = None,
    threads: Annotated[WholeNumber | None, _Optional] = None,
    engine: Literal["local", "ray"] = "local",
    address: Annotated[str | None, _Optional] = None,
    json: AsJson = False,
) -> int:
    """Train recipes with several seeds, and compare them.

    Each run is a process with a folder NAME-SEED and a log NAME-SEED.log. The same command again keeps finished runs
    and continues stopped ones from their last checkpoint; nothing is overwritten. A run that fails does not stop the
    others. study.json, study.md and study.csv say what each recipe gave and how it differs from the baseline.

    Args:
        recipes: Names of recipes (`convattn info` lists them), or files that end in .toml.
        seeds: Seeds of each recipe, between commas.
        scale: paper, small or tiny; without it as each recipe says.
        overrides: KEY=VALUE, a value to change in every recipe; may be given more than once.
        grid: KEY=VALUE,VALUE,…, values that make a variant of every recipe each, named NAME[KEY=VALUE]; given more than
            once, every combination.
        baseline: Recipe or variant that the others are held against; without it the first.
        output: Folder of the study; without it study. With --engine ray every node must see it under the same path.
        workers: Runs at a time; without it 1, with --engine ray as many as the cluster has room for.
        threads: Threads of each run; without it OMP_NUM_THREADS, or else one for tiny images and the cores divided by
            the workers for others.
        engine: local for processes on this machine, ray for a Ray cluster.
        address: Address of the Ray cluster, or auto for the one that runs here; without it one is started for the
            study.
        json: Print the study's record as JSON.

    Returns:
        0, or 1 where a run failed.
    """
    numbers, changes, variants = _read_seeds(seeds), key_values(overrides, "--set"), key_values(grid, "--grid")
    folder = Path("study") if output is None else output
    made = _engine(engine, workers, threads, address)
    from convattn.training import study as run_study

    record = run_study(
        recipes,
        output=folder,
        seeds=numbers,
        scale=scale,
        overrides=changes,
        grid={key: value.split(",") for key, value in variants.items()},
        baseline=baseline,
        engine=made,
    )
    print_record(record, f"{_summarise(record)}\nwrote {folder}; look at {folder / 'study.md'}", json=json)
    return 1 if record.failures else 0


def _engine(name: str, workers: int | None, threads: int | None, address: str | None) -> "Engine":
    """Makes what carries the runs out; it tells of them on standard error."""

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if name == "ray":
        from convattn.training.studies.ray_engine import RayEngine

        return RayEngine(workers=workers, threads=threads, tell=tell, address=address)
    if address is not None:
        raise ArgumentError("--address is for --engine ray, which is not given")
    from convattn.training.studies.engine import LocalEngine

    return LocalEngine(workers=workers, threads=threads, tell=tell)


def _read_seeds(text: str) -> list[int]:
    """Reads whole numbers between commas."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentError(must_be("--seeds", "whole numbers between commas", text)) from None


def _summarise(record: "StudyRecord") -> str:
    """Words a study in a few lines."""
    lines = []
    for group in record.groups:
        spread = "" if group.accuracy.deviation is None else f" ± {100 * group.accuracy.deviation:.2f}"
        lines.append(f"{group.label}: {100 * group.accuracy.mean:.2f}{spread} %, n = {group.accuracy.n}")
    for item in record.differences:
        interval = "" if item.low is None or item.high is None else f" [{100 * item.low:+.2f}, {100 * item.high:+.2f}]"
        lines.append(f"{item.label} less {item.baseline}: {100 * item.mean:+.2f}{interval} points; {item.worth}")
    lines += [f"warning: {text}" for text in record.warnings]
    lines += [f"FAILED {item.label}, seed {item.seed}: {item.reason} ({item.log})" for item in record.failures]
    return "\n".join(lines)
