"""`convattn reproduce`: the paper's tables and figures from training runs."""

from pathlib import Path

from convattn.cli.output import OutputOrDefault, first_free, print_record
from convattn.errors import ArgumentError, require_packages


def reproduce(
    target: str,
    /,
    *,
    runs: Path | None = None,
    output: OutputOrDefault = None,
    scale: str = "paper",
    data: Path | None = None,
    json: bool = False,
) -> int:
    """Make a table or a figure of the paper from training runs.

    A table is written as Markdown and JSON; a figure as PNG and SVG, with its numbers as parquet.
    reproduction.json says what each shows. `convattn view` shows the network of a run. If a run is missing, the command
    that makes it is printed; unfinished and unreadable runs are listed; everything that needs none of them is made.

    Args:
        target: table1, fig2 to fig10, fig12, fig13, fig14, or all.
        runs: Folder that holds runs of convattn train, directly or one folder deeper. Required.
        output: Folder to make; it must be new or empty. Default: reproduce-TARGET, or the first of reproduce-TARGET-2,
            -3, … that is free. If nothing can be made, there is no folder.
        scale: Scale of the recipes: paper, medium, small or tiny.
        data: Folder with the files of CIFAR-10, for figures 6 to 10. Default: the folder that the run was trained on,
            or the Hub.
        json: Print the result as JSON.

    Returns:
        0, or 1 if something is missing or could not be made.

    Raises:
        ArgumentError: The folder of runs is not given.
        MissingDependencyError: Packages of the extra "train" are not installed; the message names them all.
    """
    if runs is None:
        raise ArgumentError(
            "--runs must be given: the folder in which convattn train has made its runs, for instance runs"
        )
    require_packages("matplotlib", "pyarrow")
    from convattn.lab.reproduction import TARGETS
    from convattn.lab.reproduction import reproduce as make

    folder = first_free(Path(f"reproduce-{target}")) if output is None else output
    names = list(TARGETS) if target == "all" else [target]
    result = make(names, runs, folder, scale=scale, data=data)
    files = [folder / file for item in result.targets for file in item.files]
    wrote = "\n".join(f"wrote {file}" for file in files) if files else "nothing was made"
    print_record(result, f"{result.summary()}\n{wrote}", json=json)
    return 0 if result.complete else 1
