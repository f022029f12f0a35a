"""Figures of attention maps: a row for each layer, a column for each head."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from convattn.analysis.canvas import figure_files
from convattn.errors import ArgumentError

__all__ = ["QueryMaps", "attention_grid"]

_PANEL = 0.86
_LEAST_COLUMNS = 7
"""Panels that a title is wide."""


@dataclass(frozen=True, eq=False)
class QueryMaps:
    """Attention of one query pixel."""

    title: str  # What is shown
    query: tuple[int, int]  # Row and column of the query pixel
    # For each layer, weights over the keys, (heads, rows, cols); layers may differ in heads
    layers: Sequence[Float[np.ndarray, "_ rows cols"]]


def attention_grid(
    paths: Sequence[str | os.PathLike[str]],
    maps: Sequence[QueryMaps],
    *,
    title: str,
    image: Float[np.ndarray, "image_rows image_cols channels"] | None = None,
) -> None:
    """Draws the attention of each head (a column) of each layer (a row), for one query pixel or several.

    Every map has its own scale, from 0 to the largest weight, which stands below it. `image` is what is attended to, in
    [0, 1], with one channel or three.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figures 5 to 10.
    """
    if not maps:
        raise ArgumentError("maps must hold at least one query, but are empty")
    columns = max(len(layer) for item in maps for layer in item.layers)
    heights = [0.35 + (_PANEL + 0.16) * len(item.layers) for item in maps]
    width = _PANEL * max(columns, _LEAST_COLUMNS) + 1.6 + (1.7 if image is not None else 0)
    with figure_files(paths, (width, sum(heights) + 0.9)) as figure:
        figure.suptitle(title)
        place = figure
        if image is not None:
            left, place = figure.subfigures(1, 2, width_ratios=[1.7, width - 1.7])
            _draw_image(left.subplots(), image, maps[0])
        parts = place.subfigures(len(maps), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, item in zip(parts, maps, strict=True):
            part.suptitle(item.title, fontsize=9)
            _draw_maps(part, item, columns)


def _draw_maps(part: Any, item: QueryMaps, columns: int) -> None:
    """Draws the grid of one query pixel."""
    axes = part.subplots(len(item.layers), columns, squeeze=False)
    for row, layer in enumerate(item.layers):
        for panel in axes[row, len(layer) :]:
            panel.set_axis_off()
        for head, weights in enumerate(layer):
            panel = axes[row, head]
            largest = float(weights.max())
            panel.imshow(weights / largest, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
            panel.plot(item.query[1], item.query[0], marker="s", color="none", markeredgecolor="#D55E00", markersize=4)
            panel.set(xticks=[], yticks=[])
            panel.set_xlabel(f"{largest:.3f}", fontsize=8, labelpad=1)
            if row == 0:
                panel.set_title(f"head {head + 1}", fontsize=9)
        axes[row, 0].set_ylabel(f"layer {row + 1}", fontsize=9)
    bar = part.colorbar(axes[0, 0].images[0], ax=axes, aspect=30, shrink=0.9, pad=0.02)
    bar.set_label("attention / largest,\nwhich is below the map", fontsize=8)
    bar.set_ticks([0, 0.5, 1])


def _draw_image(panel: Any, image: Float[np.ndarray, "rows cols channels"], item: QueryMaps) -> None:
    """Draws the image, and a frame around the patch that is the query pixel."""
    from_rows, from_cols = (size / count for size, count in zip(image.shape[:2], item.layers[0].shape[1:], strict=True))
    panel.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=1)
    rows = (item.query[0] + np.array([0, 1, 1, 0, 0])) * from_rows - 0.5
    cols = (item.query[1] + np.array([0, 0, 1, 1, 0])) * from_cols - 0.5
    panel.plot(cols, rows, color="#D55E00", linewidth=1.5)
    panel.set(xticks=[], yticks=[])
    panel.set_xlabel("image; framed: the query", fontsize=8)
