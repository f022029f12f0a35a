"""Figures of the heads of a trained network: what a convolution explains over depth, and the kernel of every head."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from convattn.heads.head_report import Estimate, HeadReport, LayerStatistics, mean_of
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.report_figures import (
    CONTROLS,
    colour_of,
    kernel_image,
    short_name,
    statistics_of,
    whole_layers,
    words_of,
)

_MOST = 16
"""Heads side by side in the gallery; further ones are left out, and the title says so."""


def convolution_by_depth(path: str | os.PathLike[str], report: HeadReport) -> Path:
    """Draws over depth what the best convolution of each layer explains, and how far heads depend on position alone."""
    kernel = (
        f"{report.kernel_size}-tap"
        if len(report.layers[0].grid) == 1
        else f"{report.kernel_size} × " * 2
    )
    kernel = kernel.removesuffix(" × ")
    panels: tuple[tuple[str, Callable[[LayerStatistics], Estimate]], ...] = (
        (f"R² of the best {kernel} convolution (lower bound)", lambda one: one.convolution_score),
        (
            "position score R², mean of the heads",
            lambda one: Estimate(mean_of(one.estimate("position_score")), math.nan),
        ),
    )
    with figure_files([path], (max(10.0, 1.0 * len(report.layers) + 3), 4.2)) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for panel, (title, number) in zip(axes, panels, strict=True):
            panel.axhline(0, color="0.8", linewidth=0.8)
            for name, (style, marker) in CONTROLS.items():
                found = [statistics_of(layer, name) for layer in report.layers]
                values = [math.nan if one is None else number(one).value for one in found]
                errors = [0.0 if one is None else np.nan_to_num(number(one).error) for one in found]
                if not all(map(math.isnan, values)):
                    depth = range(1, len(values) + 1)
                    line = {
                        "marker": marker,
                        "linestyle": style,
                        "color": colour_of(name),
                        "capsize": 3,
                    }
                    panel.errorbar(depth, values, errors, label=words_of(name), **line)
            panel.set(xlabel="layer", ylim=(-0.1, 1.05))
            panel.set_title(title)
            whole_layers(panel, len(report.layers))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Path(path)


def kernel_gallery(path: str | os.PathLike[str], report: HeadReport) -> Path:
    """Draws the mean weight at every displacement for every head, a row for each layer."""
    most = min(_MOST, max(len(layer.heads) for layer in report.layers))
    down = len(report.layers)
    with figure_files([path], (max(0.95 * most + 0.9, 6.0), 1.1 * down + 0.9)) as figure:
        axes = figure.subplots(down, most, squeeze=False)
        for row, layer in zip(axes, report.layers, strict=True):
            for panel in row:
                panel.set(xticks=[], yticks=[])
                panel.spines[:].set_visible(False)
            row[0].set_ylabel(short_name(layer.name), fontsize=7)
            for panel, head in zip(row, layer.heads, strict=False):
                image = kernel_image(layer, head.kernel)
                if len(layer.grid) == 1:
                    panel.bar(
                        range(image.size), np.nan_to_num(image[0]), width=1.0, color=COLOURS[0]
                    )
                else:
                    panel.imshow(
                        image, cmap="magma", vmin=0, vmax=max(float(np.nanmax(image)), 1e-12)
                    )
                panel.set_title(f"{head.head + 1}: {head.hard_share.value:.0%}", fontsize=7, pad=2)
        left = max(len(layer.heads) for layer in report.layers) - most
        note = f"; {left} heads are not shown" if left else ""
        figure.suptitle(
            "mean weight at each displacement, the query in the middle;\n"
            "above each head its number, from 1, and its largest share at one displacement" + note,
            fontsize=9,
        )
    return Path(path)
