"""`convattn study`: recipes over seeds, compared."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from convattn.cli.output import (
    Count,
    Imports,
    Output,
    Settings,
    key_values,
    print_record,
    recipe_changes,
    say,
)
from convattn.errors import ArgumentError
from convattn.fields import Text, read


def study(  # noqa: PLR0913  (each is an option of the command)
    recipes: Annotated[tuple[str, ...], Parameter(name="RECIPE")],
    /,
    *,
    seeds: str = "0,1,2",
    scale: str | None = None,
    data: Path | None = None,
    imports: Imports = (),
    overrides: Settings = (),
    grid: tuple[str, ...] = (),
    baseline: str | None = None,
    output: Output = Path("study"),
    workers: Count = 1,
    threads: Count | None = None,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Train recipes with several seeds, and compare them.

    Each run is a process with a folder NAME-SEED, a recipe NAME-SEED.toml and a log NAME-SEED.log. If you give the
    command again, finished runs are kept and stopped ones continue from their last checkpoint; no run is overwritten. A
    run that fails does not stop the others. study.json and study.md hold the results of each recipe and their
    differences from the baseline; study.png and study.svg show accuracy over epochs, a line for each seed.

    Args:
        recipes: Names of recipes (`convattn info` lists them), or files that end in .toml.
        seeds: Seeds of each recipe, separated by commas.
        scale: paper, medium, small or tiny. Default: as each recipe says.
        data: Folder of your own pictures to train on, with a folder for each class, or folders train and test with one
            for each class; or with the files of CIFAR-10. Pictures are cropped to squares and resized to 32 x 32, or as
            --set data.size=64 says.
        imports: Module to import first, which registers encodings of your own; it is looked for in the current folder,
            too. May be given more than once.
        overrides: KEY=VALUE, a value to change in every recipe; may be given more than once.
        grid: KEY=VALUE,VALUE,…: each value makes a variant NAME[KEY=VALUE] of every recipe; values that are lists are
            separated by semicolons. If given more than once, every combination is a variant.
        baseline: Recipe or variant NAME[KEY=VALUE] with which the others are compared. Default: the first.
        output: Folder of the study.
        workers: Runs at a time.
        threads: Threads of each run. Default: MKL_NUM_THREADS or OMP_NUM_THREADS; if none is set, one for tiny images,
            and for others the cores divided by the workers.
        yes: Start training of more than an hour; in a terminal that is refused otherwise.
        json: Print the study's record as JSON.

    Returns:
        0, or 1 if a run failed.
    """
    seed_numbers = read(tuple[int, ...], Text(seeds), "--seeds")
    changes = recipe_changes(overrides, imports, data)
    variants = _read_grid(grid)
    from convattn.lab import study as run_study

    try:
        record = run_study(
            recipes,
            output=output,
            seeds=seed_numbers,
            scale=scale,
            overrides=changes,
            grid=variants,
            baseline=baseline,
            workers=workers,
            threads=threads,
            tell=say,
            yes=yes,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the same command goes on; finished runs in {output} are kept"
        ) from None
    print_record(
        record, f"{record.summary()}\nwrote {output}; look at {output / 'study.md'}", json=json
    )
    return 1 if record.failures else 0


def _read_grid(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """Reads the values of each key that varies."""
    grid = {}
    for key, text in key_values(texts, "--grid").items():
        grid[key] = text.removesuffix(";").split(";" if ";" in text else ",")
    if len(grid) < len(texts):
        raise ArgumentError("--grid must be given once for each key, with all of its values")
    return grid
