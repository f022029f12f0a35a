"""Table 1, and figure 2: accuracies of all models at the end and over training."""

from pathlib import Path

import numpy as np

from convattn.analysis.figures_curves import AccuracyCurve, accuracy_curves
from convattn.analysis.reproduction.material import Material, figure_name, figure_paths, write_csv
from convattn.analysis.reproduction.published import TABLE1
from convattn.analysis.reproduction.table1 import table_rows, to_csv, to_markdown
from convattn.analysis.runs import read_metrics
from convattn.errors import CheckpointError
from convattn.files import write_atomically

__all__ = ["make_curves", "make_table1"]


def make_table1(material: Material, name: str, folder: Path) -> list[str]:
    """Writes the table as Markdown and as CSV; returns which operations could not be counted."""
    rows, problems = table_rows(material.groups)
    write_atomically(folder / f"{name}.md", to_markdown(rows, material.scale))
    write_atomically(folder / f"{name}.csv", to_csv(rows))
    return problems


def make_curves(material: Material, name: str, folder: Path) -> list[str]:
    """Draws test accuracy over epochs, and writes it as CSV; returns which runs have no readable metrics.

    If none has, this raises CheckpointError.
    """
    panels: dict[str, dict[str, list[AccuracyCurve]]] = {"the paper's table 1": {}, "further models": {}}
    rows, problems = [], []
    for published in TABLE1:
        curves = []
        for run in material.groups[published.recipe][0].runs if published.recipe in material.groups else ():
            try:
                metrics = read_metrics(run)
            except CheckpointError as error:
                problems.append(f"left out: {error}")
                continue
            epochs, accuracies = ([row[key] for row in metrics] for key in ("epoch", "test_accuracy"))
            curves.append(AccuracyCurve(np.array(epochs, dtype=float), np.array(accuracies, dtype=float)))
            rows += [
                (published.recipe, run.record.seed, epoch, accuracy, str(run.folder))
                for epoch, accuracy in zip(epochs, accuracies, strict=True)
            ]
        if curves:
            paper, other = panels.values()
            (other if published.accuracy is None else paper)[published.model] = curves
    if not rows:
        raise CheckpointError("; ".join(problems))
    title = f"{figure_name(name)}: test accuracy over training, scale {material.scale}\nthin: seeds, thick: their mean"
    accuracy_curves(figure_paths(folder, name), panels, title=title)
    write_csv(folder / f"{name}.csv", ("recipe", "seed", "epoch", "test_accuracy", "folder"), rows)
    return problems
