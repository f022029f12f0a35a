"""Figures 5 to 10: attention of learned encodings, without content and with it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from einops import rearrange

from convattn.analysis.attention_maps import mean_attention, position_attention
from convattn.analysis.figures_attention import QueryMaps, attention_grid
from convattn.analysis.reproduction.material import Material, figure_paths, write_parquet
from convattn.data import ImageDataset, normalise
from convattn.errors import DataError

__all__ = ["ATTENTION_COLUMNS", "make_average", "make_learned", "make_one_image"]

ATTENTION_COLUMNS = pa.schema(
    [
        ("layer", pa.int64()),
        ("head", pa.int64()),
        ("query_row", pa.int64()),
        ("query_col", pa.int64()),
        ("key_row", pa.int64()),
        ("key_col", pa.int64()),
        ("attention", pa.float64()),
    ]
)
"""Columns of the numbers behind a figure of attention; everything is counted from 0."""

_AVERAGED = 100


def make_learned(material: Material, name: str, folder: Path, recipe: str) -> list[str]:
    """Draws the attention of the central query, which no image changes."""
    network, size = material.attention_net(recipe)
    queries = [(size // 2, size // 2)]
    maps = _by_query(position_attention(network, (size, size), queries), queries, size)
    attention_grid(figure_paths(folder, name), maps, title=material.title(name, "attention by position", recipe))
    write_parquet(folder / f"{name}.parquet", list(_rows(maps)), ATTENTION_COLUMNS)
    return []


def make_average(
    material: Material, name: str, folder: Path, recipe: str, places: Sequence[tuple[float, float]]
) -> list[str]:
    """Draws attention averaged over test images, and returns which they are and whether they are those of the run.

    `places` are the query pixels, as shares of rows and columns in [0, 1).
    """
    network, size = material.attention_net(recipe)
    data, notes = material.images.of(material.groups[recipe][0].first)
    chosen = material.images.choose(data, _AVERAGED)
    queries = [(int(row * size), int(col * size)) for row, col in places]
    maps = _by_query(mean_attention(network, _normalised(data, chosen), queries), queries, size)
    title = material.title(name, f"attention, mean of {len(chosen)} test images", recipe)
    attention_grid(figure_paths(folder, name), maps, title=title)
    write_parquet(folder / f"{name}.parquet", list(_rows(maps)), ATTENTION_COLUMNS)
    which = f"the test images numpy.random.default_rng(0).permutation({len(data.test)})[:{len(chosen)}], from 0"
    return [which, *notes]


def make_one_image(material: Material, name: str, folder: Path, recipe: str, number: int) -> list[str]:
    """Draws attention on one of the chosen test images, by number from 0.

    Returns which image it is, and whether it is one of the run's.
    """
    network, size = material.attention_net(recipe)
    data, notes = material.images.of(material.groups[recipe][0].first)
    if number >= len(data.test):
        raise DataError(f"{data.name} has {len(data.test)} test images, but {name} needs {number + 1}")
    index = material.images.choose(data, number + 1)[number:]
    queries = [(size // 2, size // 2)]
    maps = _by_query(mean_attention(network, _normalised(data, index), queries), queries, size)
    which = f"test image {index[0]} (class {int(data.test.labels[index[0]])})"
    image = rearrange(data.test.images[index[0]].numpy(), "channels rows cols -> rows cols channels") / 255
    attention_grid(
        figure_paths(folder, name), maps, title=material.title(name, f"attention on {which}", recipe), image=image
    )
    write_parquet(folder / f"{name}.parquet", list(_rows(maps)), ATTENTION_COLUMNS)
    return [f"{which}, counted from 0", *notes]


def _normalised(data: ImageDataset, chosen: np.ndarray) -> torch.Tensor:
    return normalise(data.test.images[torch.from_numpy(chosen)], data.mean, data.std)


def _by_query(layers: Sequence[np.ndarray], queries: Sequence[tuple[int, int]], size: int) -> list[QueryMaps]:
    return [
        QueryMaps(
            f"query: row {row + 1}, column {col + 1} of {size} × {size}", (row, col), [item[number] for item in layers]
        )
        for number, (row, col) in enumerate(queries)
    ]


def _rows(maps: Sequence[QueryMaps]) -> Iterator[dict[str, float]]:
    """Yields a row for each weight."""
    for item in maps:
        query = {"query_row": item.query[0], "query_col": item.query[1]}
        for layer, heads in enumerate(item.layers):
            for (head, row, col), weight in np.ndenumerate(heads):
                yield {
                    "layer": layer,
                    "head": head,
                    **query,
                    "key_row": row,
                    "key_col": col,
                    "attention": float(weight),
                }
