"""`convattn reproduce`: the paper's tables and figures from training runs."""

from pathlib import Path

from convattn.cli.output import Imports, OutputOrDefault, first_free, print_record, say
from convattn.cli.threads import one_thread
from convattn.errors import require_packages


def reproduce(  # noqa: PLR0913 - the options of the command
    target: str,
    /,
    *,
    runs: Path = Path("runs"),
    output: OutputOrDefault = None,
    scale: str = "paper",
    data: Path | None = None,
    imports: Imports = (),
    train: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Make a table or a figure of the paper, and train the runs that it lacks.

    A table is written as Markdown and JSON; a figure as PNG and SVG, with its numbers as parquet.
    reproduction.json says what each shows. `convattn view` shows the network of a run. If runs are missing, what they
    are is printed, and everything that needs none of them is made; --train trains
    them first. At scale tiny that takes minutes, and is done without being asked for.

    Args:
        target: table1, fig2 to fig10, fig12, fig13, fig14, or all.
        runs: Folder that holds runs of convattn train, directly or one folder deeper.
        output: Folder to make; it must be new or empty. Default: reproduce-TARGET, or the first of reproduce-TARGET-2,
            -3, … that is free. If nothing can be made, there is no folder.
        scale: Scale of the recipes: paper, medium, small or tiny.
        data: Folder with the files of CIFAR-10, or of your own pictures as for `convattn train`, for training and for
            figures 6 to 10. Default: the folder that the run was trained on, or the Hub.
        imports: Module to import first, which registers encodings of your own; it is looked for in the current folder,
            too. May be given more than once.
        train: Train the runs that are missing, with seed 0; one that was stopped goes on.
        yes: Start training of more than an hour; in a terminal that is refused otherwise.
        json: Print the result as JSON.

    Returns:
        0, or 1 if something is missing or could not be made.

    Raises:
        MissingDependencyError: Packages of the extra "train" are not installed; the message names them all.
    """
    require_packages(train=("matplotlib", "pyarrow"))
    from convattn.encodings.registry import import_modules
    from convattn.lab import reproduction

    import_modules(imports)

    folder = output or first_free(Path(f"reproduce-{target}"))
    tell = say if train or scale == "tiny" else None
    with one_thread(scale == "tiny"):
        result = reproduction.reproduce(
            [target], runs, folder, scale=scale, data=data, tell=tell, yes=yes
        )
    lines = [result.summary()]
    for item in result.targets:
        lines += [f"wrote {folder / file}" for file in item.files]
    print_record(result, "\n".join(lines), json=json)
    return 0 if result.complete else 1
