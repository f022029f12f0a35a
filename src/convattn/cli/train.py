"""`convattn train`: a recipe to a run's folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from convattn.cli.options import AsJson, OutputOrDefault, first_free
from convattn.cli.output import print_record
from convattn.errors import ArgumentError, must_be
from convattn.records import RunRecord

__all__ = ["summarise_run", "train"]


def train(
    recipe: str,
    /,
    *,
    output: OutputOrDefault = None,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    json: AsJson = False,
) -> int:
    """Train a network by a recipe, and record what repeats the run.

    The run's folder holds recipe.toml, metrics.jsonl, heads.parquet where heads have centres, model.safetensors,
    config.json and, last, record.json: a folder without it is a run that did not finish.

    Args:
        recipe: Name of a recipe (`convattn info` lists them), or a file that ends in .toml.
        output: Folder to make for the run; it must be new or empty. Without it runs/NAME-SEED, or the first of
            runs/NAME-SEED-2, -3, … that is free.
        overrides: KEY=VALUE, a value of the recipe to change, for instance training.epochs=3; may be given more than
            once.
        json: Print the run's record as JSON.

    Returns:
        0.
    """
    changes = _parse(overrides)
    from convattn.training import load_recipe
    from convattn.training import train as train_by

    resolved = load_recipe(recipe, overrides=changes)
    folder = first_free(Path("runs") / f"{resolved.name}-{resolved.seed}") if output is None else output
    record = train_by(resolved, output=folder)
    print_record(record, f"{summarise_run(record)}\nwrote {folder}", json=json)
    return 0


def _parse(overrides: Iterable[str]) -> dict[str, str]:
    """Reads KEY=VALUE texts; of two with the same key the later counts."""
    changes = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ArgumentError(must_be("--set", "of the form KEY=VALUE", text))
        changes[key] = value
    return changes


def summarise_run(record: RunRecord) -> str:
    """Words a record in a few lines.

    Args:
        record: The record of a run.

    Returns:
        Plain text.
    """
    counts = ", ".join(f"{number} {split}" for split, number in record.data.counts.items())
    rows = {
        "test accuracy": f"{record.results['test_accuracy']:.2%}",
        "parameters": f"{record.parameters:,}",
        "images": f"{record.data.name}: {counts}",
        "time": f"{record.seconds:.1f} s on {record.hardware['processor']}, threads: {record.hardware['threads']}",
        "repeat with": record.command,
    }
    return "\n".join([f"{record.name}, seed {record.seed}", *(f"  {name:<15} {value}" for name, value in rows.items())])
