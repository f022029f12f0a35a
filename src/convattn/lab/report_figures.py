"""Figures of a report: what heads look at, how far, and what a convolution explains; controls beside every number."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from convattn.errors import optional_module, require
from convattn.files import AnyPath
from convattn.heads.head_report import SHUFFLED, UNTRAINED, HeadReport, LayerReport
from convattn.lab.figures import COLOURS, figure_files
from convattn.wording import counted

_MEASURED = "this network"

CONTROLS = {_MEASURED: "o-", SHUFFLED: "s--", UNTRAINED: "^:"}
"""Line and marker of what was measured and of each control."""


def distance_by_depth(path: AnyPath, report: HeadReport) -> None:
    """Draws the mean attention distance of every head over depth, beside that of uniform attention.

    Source: Raghu et al., NeurIPS 2021, figure 1.
    """
    with figure_files([path], (max(10.0, 0.5 * len(report.layers) + 3), 4.2)) as figure:
        panel = figure.subplots()
        panel.axhline(0, linewidth=0)  # so that the margin above is a part of the whole height
        depth = range(1, len(report.layers) + 1)
        for number, layer in zip(depth, report.layers, strict=True):
            heads = [head.distance.value for head in layer.heads]
            panel.plot(number, [heads], "o", color=COLOURS[0], alpha=0.45)
        for colour, (name, style) in zip(COLOURS, CONTROLS.items(), strict=False):
            means = []
            for layer in report.layers:
                statistics = layer.measured if name == _MEASURED else layer.controls.get(name)
                means.append(math.nan if statistics is None else statistics.mean("distance"))
            if not all(map(math.isnan, means)):
                panel.plot(depth, means, style, color=colour, label=f"mean, {name}")
        uniform = [layer.uniform_distance for layer in report.layers]
        panel.plot(depth, uniform, color="0.6", label="looks everywhere")
        panel.set(
            title="how far heads look (dots: heads)",
            xlabel="layer",
            ylabel="mean attention distance (cells)",
            xlim=(0.5, len(depth) + 0.5),
            ylim=(0, None),
        )
        panel.locator_params(axis="x", integer=True, nbins=min(depth.stop, 15))
        figure.legend(loc="outside lower center", ncols=2)


def head_grid(
    paths: Sequence[AnyPath],
    report: HeadReport,
    *,
    layers: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    caption: str | None = None,
) -> None:
    """Draws a map of each head: its mean weight at each displacement, with what the head is and its position score.

    Args:
        paths: Files to write, as PNG, SVG or PDF.
        report: The report.
        layers: Names of the layers to draw; None for all.
        heads: Numbers of the heads to draw, from 0; None for all.
        caption: What stands below; None says what the maps show.

    Raises:
        ArgumentError: There is no such head, or none to draw.
        UnknownNameError: A file has another ending, or there is no such layer.
    """
    chosen = report.layers if layers is None else [report.layer(name) for name in layers]
    require(chosen, "layers", "one or more, or None", layers)
    least = min(len(layer.heads) for layer in chosen)
    if heads is not None:
        known = bool(heads) and all(number in range(least) for number in heads)
        require(known, "heads", f"numbers from 0 to {least - 1}, or None", heads)
    depths = {layer.name: depth for depth, layer in enumerate(report.layers, start=1)}
    across = max(len(layer.heads) for layer in chosen) if heads is None else len(heads)
    height = 1.45 if any(len(layer.grid) > 1 for layer in chosen) else 0.75
    size = (1.25 * across + 0.9, height * len(chosen) + 0.9)
    with figure_files(paths, size) as figure:
        panels = figure.subplots(len(chosen), across, squeeze=False)
        for row, layer in zip(panels, chosen, strict=True):
            numbers = range(len(layer.heads)) if heads is None else heads
            image = _draw_heads(list(row), layer, numbers, depths[layer.name])
            for panel in row[len(numbers) :]:
                panel.set_visible(False)
            bar = figure.colorbar(image, ax=list(row), shrink=0.8, pad=0.01)
            bar.ax.tick_params(labelsize=6)
        words = f"{report.model}, {counted(report.images, 'image')}. {_CAPTION}"
        figure.supxlabel(words if caption is None else caption, fontsize=7)


_CAPTION = "Mean attention at each displacement, in cells; ring: query; R²: position score"


def _draw_heads(
    panels: Sequence[Any], layer: LayerReport, numbers: Sequence[int], depth: int
) -> Any:
    """Draws some heads of a layer on one scale, and returns the last picture."""
    maps = head_maps(layer)
    image, scale = None, _scale(maps)
    for panel, number in zip(panels, numbers, strict=False):
        rows, cols = maps[number].shape
        edges = (-cols / 2, cols / 2, rows / 2, -rows / 2)
        style = {"cmap": "magma", "extent": edges, "interpolation": "none"}
        image = panel.imshow(maps[number], norm=scale, **style)
        panel.plot(0, 0, "o", markersize=4, markerfacecolor="none", color="w", mew=0.6)
        score = layer.heads[number].position_score.value
        panel.set_title(
            f"{depth}.{number + 1} {layer.verdicts[number]}\nR² {score:z.2f}", fontsize=6
        )
        panel.set(xticks=[], yticks=[])
    return image


def _scale(maps: Float[np.ndarray, "heads rows cols"]) -> Any:
    """Returns a scale from 0 to the largest weight, bright by its root, so that small weights are seen."""
    matplotlib = optional_module("matplotlib.colors", "analyze")
    most = float(np.max(maps, where=np.isfinite(maps), initial=1e-12))
    return matplotlib.colors.PowerNorm(0.5, vmin=0, vmax=most)


_REACH = 5
"""Displacements along each axis that maps show at most."""


def head_maps(layer: LayerReport) -> Float[np.ndarray, "heads rows cols"]:
    """Returns the mean weight of each head at whole displacements near the query, which is in the middle.

    Displacements between go to the nearest; where there is none, as after the query of a causal layer, it is NaN. The
    maps are the smallest square that holds most of what the heads attend to. Sequences lie along a row.
    """
    kernels = np.array([head.kernel for head in layer.heads])
    weights = np.abs(kernels).sum(axis=0)
    displacements = np.reshape(layer.displacements, (-1, len(layer.grid)))
    sizes = np.abs(displacements).max(axis=1, initial=0)
    near = sizes <= _REACH
    for reach in range(2, _REACH):
        if weights[sizes <= reach].sum() >= 0.95 * weights.sum():
            near = sizes <= reach
            break
    steps = np.array([(0.0, *step)[-2:] for step in displacements]).reshape(-1, 2)
    places = steps[near].round().astype(int)
    middle = np.abs(places).max(axis=0, initial=0)
    rows, cols = (places + middle).T
    count = np.zeros(2 * middle + 1)
    np.add.at(count, (rows, cols), 1)
    total = np.zeros((len(kernels), *count.shape))
    np.add.at(np.moveaxis(total, 0, -1), (rows, cols), kernels[:, near].T)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def head_pictures(layer: LayerReport) -> list[bytes]:
    """Draws `head_maps` of a layer on one scale: PNG files of a pixel for each displacement."""
    matplotlib = optional_module("matplotlib.image", "analyze")
    maps = head_maps(layer)
    scale = _scale(maps)
    pictures = []
    for weights in maps:
        file = io.BytesIO()
        shown = np.asarray(scale(weights))
        matplotlib.image.imsave(file, shown, vmin=0, vmax=1, cmap="magma", format="png")
        pictures.append(file.getvalue())
    return pictures
