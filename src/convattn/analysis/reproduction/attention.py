"""Figures 5 to 10: attention of learned encodings, without content and with it."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from einops import rearrange
from jaxtyping import Float

from convattn.analysis.attention_maps import mean_attention, position_attention
from convattn.analysis.canvas import figure_files
from convattn.analysis.reproduction.material import Material, choose_images, figure_paths, write_parquet
from convattn.data import ImageDataset, normalise
from convattn.errors import ArgumentError, DataError

_INDICES = ("layer", "head", "query_row", "query_col", "key_row", "key_col")
_COLUMNS = pa.schema([*((name, pa.int64()) for name in _INDICES), ("attention", pa.float64())])
"""Columns of the numbers behind a figure of attention; everything is counted from 0."""

_AVERAGED = 100
_PANEL = 0.86
_LEAST_COLUMNS = 7
"""Panels that a title is wide."""


@dataclass(frozen=True, eq=False)
class QueryMaps:
    """Attention of one query pixel."""

    title: str
    query: tuple[int, int]  # row and column of the query pixel
    layers: Sequence[Float[np.ndarray, "_ rows cols"]]  # weights over the keys, by head; layers may differ in heads


def make_learned(material: Material, name: str, folder: Path, recipe: str) -> list[str]:
    """Draws the attention of the central query, which no image changes."""
    network, size = material.attention_net(recipe)
    queries = [(size // 2, size // 2)]
    maps = _by_query(position_attention(network, (size, size), queries), queries, size)
    _write(folder, name, maps, material.title(name, "attention by position", recipe))
    return []


def make_average(
    material: Material, name: str, folder: Path, recipe: str, places: Sequence[tuple[float, float]]
) -> list[str]:
    """Draws attention averaged over test images, and returns which they are and whether they are those of the run.

    `places` are the query pixels, as shares of rows and columns in [0, 1).
    """
    network, size = material.attention_net(recipe)
    data, notes = material.images(recipe)
    chosen = choose_images(data, _AVERAGED)
    queries = [(int(row * size), int(col * size)) for row, col in places]
    maps = _by_query(mean_attention(network, _normalised(data, chosen), queries), queries, size)
    _write(folder, name, maps, material.title(name, f"attention, mean of {len(chosen)} test images", recipe))
    which = f"the test images numpy.random.default_rng(0).permutation({len(data.test)})[:{len(chosen)}], from 0"
    return [which, *notes]


def make_one_image(material: Material, name: str, folder: Path, recipe: str, number: int) -> list[str]:
    """Draws attention on one of the chosen test images, by number from 0.

    Returns which image it is, and whether it is one of the run's.
    """
    network, size = material.attention_net(recipe)
    data, notes = material.images(recipe)
    if number >= len(data.test):
        raise DataError(f"{data.name} has {len(data.test)} test images, but {name} needs {number + 1}")
    index = choose_images(data, number + 1)[number:]
    queries = [(size // 2, size // 2)]
    maps = _by_query(mean_attention(network, _normalised(data, index), queries), queries, size)
    which = f"test image {index[0]} (class {int(data.test.labels[index[0]])})"
    image = rearrange(data.test.images[index[0]].numpy(), "channels rows cols -> rows cols channels") / 255
    _write(folder, name, maps, material.title(name, f"attention on {which}", recipe), image)
    return [f"{which}, counted from 0", *notes]


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


def _normalised(data: ImageDataset, chosen: np.ndarray) -> torch.Tensor:
    return normalise(data.test.images[torch.from_numpy(chosen)], data.mean, data.std)


def _by_query(layers: Sequence[np.ndarray], queries: Sequence[tuple[int, int]], size: int) -> list[QueryMaps]:
    titles = [f"query: row {row + 1}, column {col + 1} of {size} × {size}" for row, col in queries]
    return [
        QueryMaps(title, query, [layer[number] for layer in layers])
        for number, (title, query) in enumerate(zip(titles, queries, strict=True))
    ]


def _write(folder: Path, name: str, maps: Sequence[QueryMaps], title: str, image: np.ndarray | None = None) -> None:
    """Writes a figure, and its numbers as parquet."""
    attention_grid(figure_paths(folder, name), maps, title=title, image=image)
    write_parquet(folder / f"{name}.parquet", list(_numbers(maps)), _COLUMNS)


def _numbers(maps: Sequence[QueryMaps]) -> Iterator[dict[str, float]]:
    for item in maps:
        for layer, heads in enumerate(item.layers):
            for (head, row, col), weight in np.ndenumerate(heads):
                indices = zip(_INDICES, (layer, head, *item.query, row, col), strict=True)
                yield {**dict(indices), "attention": float(weight)}
