"""Figure of test accuracy over training."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from convattn.analysis.canvas import COLOURS, figure_files
from convattn.errors import ArgumentError

__all__ = ["AccuracyCurve", "accuracy_curves"]

_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class AccuracyCurve:
    """Test accuracy of one run."""

    epochs: Float[np.ndarray, " epochs"]  # Epochs done, rising
    accuracies: Float[np.ndarray, " epochs"]  # Test accuracy after each, in [0, 1]


def accuracy_curves(
    paths: Sequence[str | os.PathLike[str]],
    panels: Mapping[str, Mapping[str, Sequence[AccuracyCurve]]],
    *,
    title: str,
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
        thin = {"linewidth": 0.7, "alpha": 0.6, "marker": _dot(len(curve.epochs)), "markersize": 3}
        panel.plot(curve.epochs, 100 * curve.accuracies, **thin, **style)
    common = min(len(curve.epochs) for curve in curves)
    mean = np.mean([curve.accuracies[:common] for curve in curves], axis=0)
    label = f"{model} (n = {len(curves)})"
    panel.plot(curves[0].epochs[:common], 100 * mean, linewidth=2.2, label=label, **style)


def _dot(epochs: int) -> str | None:
    """A line of one or two points is seen by its points."""
    return "o" if epochs < 3 else None
