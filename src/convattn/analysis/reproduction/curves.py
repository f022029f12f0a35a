"""Figure 2: test accuracy of all models over training."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from convattn.analysis.canvas import COLOURS, figure_files
from convattn.analysis.reproduction.material import Material, figure_name, figure_paths
from convattn.analysis.reproduction.published import TABLE1
from convattn.analysis.runs import read_metrics
from convattn.errors import ArgumentError, CheckpointError
from convattn.files import write_atomically
from convattn.records.sheets import csv_text

_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class AccuracyCurve:
    """Test accuracy of one run."""

    epochs: Float[np.ndarray, " epochs"]  # Epochs done, rising
    accuracies: Float[np.ndarray, " epochs"]  # Test accuracy after each, in [0, 1]


def accuracy_curves(
    paths: Sequence[str | os.PathLike[str]], panels: Mapping[str, Mapping[str, Sequence[AccuracyCurve]]], *, title: str
) -> None:
    """Draws test accuracy over epochs: a thin line for each seed, a thick one for their mean.

    `panels` holds, by the panel's title and the model, one curve for each seed.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figure 2.
    """
    shown = {name: models for name, models in panels.items() if models}
    if not shown:
        raise ArgumentError("panels must hold at least one curve, but are empty")
    rows = max(len(models) for models in shown.values())
    with figure_files(paths, (max(4.6 * len(shown), 6.0), 3.9 + 0.2 * rows)) as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for panel, (name, models) in zip(axes, shown.items(), strict=True):
            for number, (model, curves) in enumerate(models.items()):
                style = {"color": COLOURS[number % len(COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}
                _draw_model(panel, model, curves, style)
            panel.set(title=name, xlabel="epochs")
            panel.locator_params(axis="x", integer=True)
            panel.grid(axis="y", color="0.9", linewidth=0.8)
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
        axes[0].set_ylabel("test accuracy (%)")


def _draw_model(panel: Any, model: str, curves: Sequence[AccuracyCurve], style: dict[str, str]) -> None:
    """Draws the seeds of one model and, where there are several, their mean over the epochs that all have."""
    for curve in curves:
        dots = "o" if len(curve.epochs) < 3 else None  # a line of one or two points is seen by its points
        thin = {"linewidth": 0.7, "alpha": 0.6, "marker": dots, "markersize": 3}
        panel.plot(curve.epochs, 100 * curve.accuracies, **thin, **style)
    common = min(len(curve.epochs) for curve in curves)
    mean = np.mean([curve.accuracies[:common] for curve in curves], axis=0)
    label = f"{model} (n = {len(curves)})"
    panel.plot(curves[0].epochs[:common], 100 * mean, linewidth=2.2, label=label, **style)


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
    write_atomically(folder / f"{name}.csv", csv_text([("recipe", "seed", "epoch", "test_accuracy", "folder"), *rows]))
    return problems
