"""Figures of a report: where heads look, how far, and what a convolution explains; controls beside every number."""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convattn.errors import optional_module
from convattn.heads.head_report import (
    HeadReport,
    HeadStatistics,
    LayerReport,
    LayerStatistics,
    mean_of,
)
from convattn.lab.figures import COLOURS, add_ellipse, figure_files

CONTROLS = {"measured": ("-", "o"), "shuffled images": ("--", "s"), "untrained weights": (":", "^")}
"""Line and marker of what was measured and of each control."""


def head_map(path: str | os.PathLike[str], report: HeadReport) -> Path:
    """Draws for each layer where its heads look on average, with a circle of their spread; hard heads are bold.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figure 4, of attention in place of parameters.
    """
    layers = report.layers
    across = min(len(layers), 4)
    down = -(-len(layers) // across)
    with figure_files([path], (max(3.0 * across + 0.4, 6.0), 3.2 * down + 0.9)) as figure:
        axes = figure.subplots(down, across, squeeze=False)
        for panel, layer in zip(axes.flat, layers, strict=False):
            _draw_map(panel, layer)
        for panel in list(axes.flat)[len(layers) :]:
            panel.set_visible(False)
        styles = {
            "mean shift, by head": {"marker": "$1$", "color": "black"},
            "spread": {
                "marker": "o",
                "markersize": 11,
                "markerfacecolor": "none",
                "color": "black",
            },
            "query": {"marker": "+", "color": "0.5"},
        }
        handles = [
            axes[0, 0].plot([], [], linestyle="none", label=name, **style)[0]
            for name, style in styles.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        figure.suptitle(
            "where heads look: shifts in cells; bold: more than half of the attention at one displacement"
        )
    return Path(path)


def distance_by_depth(path: str | os.PathLike[str], report: HeadReport) -> Path:
    """Draws the mean attention distance of every head over depth, beside that of uniform attention.

    Source: Raghu et al., NeurIPS 2021, figure 1.
    """
    with figure_files([path], (max(10.0, 0.5 * len(report.layers) + 3), 4.2)) as figure:
        panel = figure.subplots()
        depth = range(1, len(report.layers) + 1)
        for number, layer in zip(depth, report.layers, strict=True):
            heads = [head.distance.value for head in layer.heads]
            panel.plot(
                [number] * len(heads),
                heads,
                linestyle="none",
                marker="o",
                color=COLOURS[0],
                alpha=0.45,
            )
        for name, (style, marker) in CONTROLS.items():
            measured = [statistics_of(layer, name) for layer in report.layers]
            means = [
                math.nan if one is None else mean_of(one.estimate("distance")) for one in measured
            ]
            if not all(map(math.isnan, means)):
                panel.plot(
                    depth,
                    means,
                    style,
                    marker=marker,
                    color=colour_of(name),
                    label=f"mean, {words_of(name)}",
                )
        panel.plot(
            depth,
            [layer.uniform_distance for layer in report.layers],
            color="0.6",
            label="looks everywhere",
        )
        panel.set(xlabel="layer", ylabel="mean attention distance (cells)", ylim=(0, None))
        whole_layers(panel, len(report.layers))
        figure.legend(loc="outside lower center", ncols=2)
        panel.set_title("how far heads look (dots: heads)")
    return Path(path)


def head_picture(layer: LayerReport, head: HeadStatistics) -> bytes:
    """Draws the mean weight of a head at each displacement: a PNG file of a pixel for each, the query in the middle."""
    matplotlib = optional_module("matplotlib.image", "matplotlib", "train")
    weights = kernel_image(layer, head.kernel)
    most = max(float(np.nanmax(weights)), 1e-12)
    matplotlib.image.imsave(
        file := io.BytesIO(), weights, vmin=0, vmax=most, cmap="magma", format="png"
    )
    return file.getvalue()


def comparison_figure(path: str | os.PathLike[str], first: HeadReport, second: HeadReport) -> Path:
    """Draws numbers of all heads of one report over those of another."""
    names = {
        "position_score": "position score R²",
        "hard_share": "hard share",
        "distance": "distance (cells)",
    }
    with figure_files([path], (11, 4.2)) as figure:
        for panel, (name, title) in zip(figure.subplots(1, 3), names.items(), strict=True):
            for number, (one, other) in enumerate(zip(first.layers, second.layers, strict=False)):
                x = [item.value for item in one.measured.estimate(name)]
                y = [item.value for item in other.measured.estimate(name)]
                count = min(len(x), len(y))
                panel.plot(
                    x[:count], y[:count], "o", color=COLOURS[number % len(COLOURS)], alpha=0.7
                )
            low, high = panel.get_xlim()
            panel.plot([low, high], [low, high], color="0.6", linewidth=0.8)
            panel.set(xlabel=f"first: {first.model}", ylabel=f"second: {second.model}")
            panel.set_title(title)
    return Path(path)


def _draw_map(panel: Any, layer: LayerReport) -> None:
    panel.plot(0, 0, marker="+", color="0.5", linestyle="none")
    places = [_row_col([one.value for one in head.shift]) for head in layer.heads]
    for head, (row, col) in zip(layer.heads, places, strict=True):
        colour = COLOURS[head.head % len(COLOURS)]
        width = 2 * head.spread.value
        height = width if len(layer.grid) > 1 else 0.15 * width
        if math.isfinite(width) and width > 0:
            add_ellipse(
                panel,
                (col, row),
                (width, height),
                facecolor="none",
                edgecolor=colour,
                linewidth=0.7,
                alpha=0.6,
            )
        weight = "bold" if head.hard else "normal"
        panel.text(
            col,
            row,
            str(head.head + 1),
            ha="center",
            va="center",
            fontsize=9,
            weight=weight,
            color=colour,
        )
    spreads = [head.spread.value for head in layer.heads if math.isfinite(head.spread.value)]
    reach = max([1.5, *(abs(value) + 0.5 for place in places for value in place), *spreads])
    panel.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
    panel.locator_params(integer=True, nbins=7)
    panel.set_title(short_name(layer.name))


def kernel_image(layer: LayerReport, kernel: Sequence[float]) -> np.ndarray:
    """Puts the weights of a kernel on a grid of whole displacements; those between them go to the nearest."""
    near = _near(layer)
    places = (
        np.array([_row_col(list(layer.displacements[number])) for number in near])
        .round()
        .astype(int)
    )
    kernel = [kernel[number] for number in near]
    low, high = places.min(axis=0), places.max(axis=0)
    total, count = np.zeros(high - low + 1), np.zeros(high - low + 1)
    for (row, col), weight in zip(places - low, kernel, strict=True):
        total[row, col] += weight
        count[row, col] += 1
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _near(layer: LayerReport) -> list[int]:
    """Returns the displacements of the smallest square that holds most of what the heads of a layer attend to."""
    sizes = [max(map(abs, step)) for step in layer.displacements]
    whole = sum(sum(map(abs, head.kernel)) for head in layer.heads)
    for reach in range(2, math.ceil(max(sizes)) + 1):
        near = [number for number, size in enumerate(sizes) if size <= reach]
        if sum(abs(head.kernel[number]) for head in layer.heads for number in near) >= 0.95 * whole:
            return near
    return list(range(len(sizes)))


def _row_col(shift: list[float]) -> tuple[float, float]:
    """Returns row and column of a displacement; sequences lie along a row."""
    return (0.0, shift[0]) if len(shift) == 1 else (shift[0], shift[1])


def statistics_of(layer: LayerReport, name: str) -> LayerStatistics | None:
    """Returns what was measured, or one of its controls, by a name of `CONTROLS`; None where it was not taken."""
    return layer.measured if name == "measured" else layer.control(name)


def colour_of(name: str) -> str:
    """Returns the colour of what was measured or of a control."""
    return COLOURS[list(CONTROLS).index(name)]


def words_of(name: str) -> str:
    """Returns what a legend calls it."""
    return "this network" if name == "measured" else name


def short_name(name: str) -> str:
    """Returns the end of a name that is long."""
    return name if len(name) <= 22 else "…" + name[-21:]


def whole_layers(panel: Any, count: int) -> None:
    """Marks whole numbers along an axis of layers."""
    panel.set_xlim(0.5, count + 0.5)
    panel.locator_params(axis="x", integer=True, nbins=min(count, 14) + 1)
