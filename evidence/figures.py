"""Draws the pictures of the first answers in docs/results/index.md from the records.

python -m evidence.figures
"""

from statistics import fmean as mean
from typing import Any

import numpy as np

from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.study_record import t_interval
from convattn.models import ResNet
from evidence.results import PAGES, new_parser
from evidence.speedrun.centres import at_taps, correlation, peaks_before_plan, tap_numbers
from evidence.speedrun.operations import TRAIN_IMAGES, petaflops
from evidence.speedrun.plans import whole_pairs
from evidence.studies import Study, study
from evidence.sweep.page import swept
from evidence.values import (
    COMPARED,
    LEVEL,
    compared,
    medians,
    published,
    published_epochs,
    record,
    speed,
)

FOLDERS = {
    "encodings": "encodings/table",
    "axes": "encodings/axes/table",
    "heads": "encodings/heads/table",
    "quarter": "speedrun/quarter/table",
    "controls": "speedrun/controls",
}
"""Folder of each family of differences; those of whole pairs have two."""
_EPOCHS = (0, 3, 6, 12)
_AIRBENCH = (0.36, 94.01)
"""PFLOP and accuracy in percent of airbench94, a speed record of convolutions: Jordan, arXiv 2404.00498."""


def draw_errors(panel: Any) -> None:
    """Draws the error of each converted network of the sweep against what rounding explains, both by its outputs."""
    passed = [row["paths"]["auto"] for row in swept() if row["outcome"] == "passed"]
    limits, errors = (
        [path[name] / path["largest"] for path in passed] for name in ("rounding", "measured_error")
    )
    panel.loglog(limits, errors, ".", color=COLOURS[0], alpha=0.5)
    panel.axline((1e-6, 1e-6), (1e-3, 1e-3), color="0.5", linewidth=1)
    equal = f"{errors.count(0)} have no difference, which a logarithm does not show"
    panel.set_title(f"{len(passed)} networks as attention: below the line is exact\n{equal}")
    panel.set(
        xlabel="what rounding explains, by the largest output",
        ylabel="measured difference",
        xlim=(1e-7, 1),
    )


def draw_differences(panel: Any) -> None:
    """Draws every paired difference with its own 95 % t interval; those that Holm's rule resolves are filled."""
    names = []
    for colour, family in zip(COLOURS, (*FOLDERS, "pairs"), strict=False):
        runs = whole_pairs() if family == "pairs" else study(FOLDERS[family])
        gap = compared(runs, family)
        for one, other in COMPARED[family]:
            found = gap(one, other)
            style = {"color": colour, "linewidth": 1.5}
            panel.plot(t_interval(found.values), [len(names)] * 2, **style)
            face = colour if found.p < LEVEL else "white"
            panel.plot(mean(found.values), len(names), "o", markerfacecolor=face, **style)
            names.append(f"{one} less {other}, {runs.epochs(one)} epochs, n = {len(found.values)}")
    panel.axvline(0, color="0.5", linewidth=1)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_title(f"paired differences\nfilled: p < {LEVEL} by Holm's rule in the study")
    panel.set_xlabel("points of test accuracy, 95 % t interval")


def draw_operations(panel: Any) -> None:
    """Draws accuracy over the operations of training: epoch by epoch, and of published networks."""
    quarter, pairs, headline = study(FOLDERS["quarter"]), whole_pairs(), study("speedrun/headline")
    curves = [
        ("attention", pairs),
        ("conv", pairs),
        ("random", quarter),
        ("speedrun", headline),
    ]
    for colour, (label, runs) in zip(COLOURS, curves, strict=False):
        own = runs.of(label)
        accuracies = 100 * np.mean([run.accuracies for run in own], axis=0)
        steps = np.arange(1, len(accuracies) + 1) / len(accuracies)
        where = "" if runs is headline else ", a quarter of the width"
        total = petaflops(own[0].record["recipe"])
        panel.semilogx(total * steps, accuracies, color=colour, label=f"{label}{where}")
        panel.plot(total, accuracies[-1], "o", color=colour)
    panel.plot(*_AIRBENCH, "k^", label="airbench94, published")
    images = 3 * TRAIN_IMAGES * published_epochs()
    resnet = float(published("resnet18")["paper"])
    panel.plot(ResNet().flops().total * images / 1e15, resnet, "ks", label="ResNet-18, published")
    panel.set_title("accuracy over operations; a curve's last epoch has the dot")
    panel.set(xlabel="PFLOP of training", ylabel="test accuracy, one view, %", ylim=(60, 96))
    panel.legend(loc="lower right")


def draw_taps(panel: Any, quarter: Study, grids: Study) -> None:
    """Draws the accuracy of the runs from random places against the taps that have a centre."""
    for colour, (epoch, words) in zip(COLOURS, ((0, "start"), (12, "end")), strict=False):
        taps = at_taps(quarter, "random", epoch) + at_taps(grids, "random", epoch)
        accuracies = [100 * one for one in quarter.accuracy("random") + grids.accuracy("random")]
        label = f"{words}: {correlation(taps, accuracies)}"
        panel.plot(taps, accuracies, "o", color=colour, label=label)
    panel.set(xlabel="taps of 54 with a centre", ylabel="test accuracy, %")
    panel.set_title("heads from random places, ten seeds")
    panel.legend()


def draw_occupancy(panels: Any, grids: Study) -> None:
    """Draws how many layers have a centre at each of the nine taps, and where the heads of a table peak."""
    shown = []
    for epoch in _EPOCHS:
        layers = [layer for run in grids.centres("random", epoch) for layer in run]
        shown.append((f"after {epoch} epochs", layers))
    shown.append(("a learned table, layer 1", peaks_before_plan()[:1]))
    for panel, (words, layers) in zip(panels, shown, strict=True):
        taken = np.zeros(9)
        for layer in layers:
            taken[[*{*tap_numbers(layer)} - {-1}]] += 1
        panel.imshow(taken.reshape(3, 3) / len(layers), cmap="Blues", vmin=0, vmax=1.5)
        for tap, count in enumerate(taken):
            share = f"{count / len(layers):.0%}"
            panel.text(tap % 3, tap // 3, share, ha="center", va="center")
        panel.set(xticks=[], yticks=[], title=words)


def draw_cost(panel: Any) -> None:
    """Draws the time of layers by that of a 3 x 3 convolution, at 64 x 64 pixels."""
    layers, bars = speed("layers"), {}
    for words, name in {"hard": "hard-64", "soft": "quadratic-64-forward"}.items():
        bars[f"{words} heads, 400 channels"] = medians([layers[name]], ["convattn"])[0]
    for row in record("few_channels/few-channels.json")["rows"]:
        if row["size"] == 64 and row["channels"] == row["outputs"] and not row["training"]:
            bars[f"soft heads, {row['channels']} channels"] = row["ratio"][1]
    shown = panel.barh([*bars], [*bars.values()], color=COLOURS[0])
    panel.bar_label(shown, fmt="%.2f", padding=4)
    panel.axvline(1, color="0.5", linewidth=1)
    panel.set_title("inference by the time of a 3 x 3 convolution, one thread")


def main() -> None:
    """Draws all."""
    new_parser(__doc__).parse_args()
    quarter, grids = study(FOLDERS["quarter"]), study("speedrun/quarter/grids")
    for name, draw in {
        "exact": draw_errors,
        "operations": draw_operations,
        "cost": draw_cost,
    }.items():
        with figure_files([PAGES / f"answer-{name}.png"], (6, 4)) as figure:
            draw(figure.subplots())
    with figure_files([PAGES / "answer-differences.png"], (8, 8)) as figure:
        draw_differences(figure.subplots())
    with figure_files([PAGES / "answer-taps.png"], (9, 5.5)) as figure:
        above, below = figure.subfigures(2, height_ratios=(1, 2))
        draw_occupancy(above.subplots(1, 5), grids)
        draw_taps(below.subplots(), quarter, grids)


if __name__ == "__main__":
    main()
