"""The paper's figures, drawn from training runs: accuracy over epochs, where heads look, and what they attend to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32
from torch import Tensor, nn

from convattn.errors import CheckpointError, DataError, optional_module
from convattn.files import AnyPath
from convattn.heads.head_snapshots import HEAD_COLUMNS, HEADS, read_heads
from convattn.heads.mean_maps import mean_maps
from convattn.lab.figures import COLOURS, draw_heads, figure_files
from convattn.lab.paper_table import TABLE1
from convattn.lab.run_setup import load_data_of
from convattn.lab.runs import Run, RunGroups, read_curve
from convattn.lab.tables import write_parquet
from convattn.models import AttentionNet
from convattn.networks import load_network
from convattn.networks.datasets import ImageDataset
from convattn.networks.pictures import normalise

_SEED = 0


@dataclass(frozen=True, eq=False)
class Material:
    """Runs of one scale, and the images that they were trained on."""

    groups: RunGroups
    scale: str
    folder: AnyPath | None = None  # Folder with the files of CIFAR-10, in place of the run's own
    _loaded: dict[str, ImageDataset] = field(default_factory=dict)  # By the recipe's words on data

    def run_of(self, recipe: str) -> Run:
        """Returns the run that figures of a recipe show: the one with the lowest seed."""
        return self.groups[recipe][0].first

    def title(self, name: str, what: str, recipe: str) -> str:
        """Returns the title of a figure of one run."""
        run, seeds = self.run_of(recipe), len(self.groups[recipe][0].runs)
        changed = ", settings changed" if run.changes else ""
        source = (
            f"{recipe}, scale {self.scale}{changed}, seed {run.record.seed}, one of n = {seeds}"
        )
        return f"{figure_name(name)}: {what}{run.pruned}\n{source}"

    def attention_net(self, recipe: str) -> AttentionNet:
        """Loads the network of a recipe's first run; one without attention raises CheckpointError."""
        folder = self.run_of(recipe).folder
        network = load_network(folder)
        if not isinstance(network, AttentionNet):
            kind = type(network).__name__
            raise CheckpointError(f"{folder} must hold an AttentionNet, but holds a {kind}")
        return network

    def images(self, recipe: str) -> tuple[ImageDataset, list[str]]:
        """Loads the data set of a recipe's first run; notes say if it is not the folder's, or not what the run saw."""
        run = self.run_of(recipe)
        key = str(run.record.recipe["data"])
        if key not in self._loaded:
            self._loaded[key] = load_data_of(run.record, self.folder)
        data, seen = self._loaded[key], run.record.data
        notes = []
        if self.folder is not None and run.record.recipe["data"]["name"] == "digits":
            notes.append(f"{run.folder} was trained on digits: its images are not of {self.folder}")
        if data.record.hashes != seen.hashes:
            notes.append(
                f"the images are of {data.name}, but {run.folder} was trained on {seen.name}"
            )
        return data, notes


def figure_name(target: str) -> str:
    """Returns a figure's name: "Figure 3" for "fig3"."""
    return f"Figure {target.removeprefix('fig')}"


def figure_paths(folder: Path, name: str) -> list[Path]:
    """Returns the files that a figure is written to: for the screen and for print."""
    return [folder / f"{name}.png", folder / f"{name}.svg"]


_DASHES = ("-", "--", "-.", ":")


def accuracy_curves(
    paths: Sequence[AnyPath],
    panels: Mapping[str, Mapping[str, Sequence[Float[np.ndarray, "epochs 2"]]]],
    *,
    title: str,
    measured: str = "test",
) -> None:
    """Draws accuracy over epochs: a thin line for each seed, a thick one for their mean.

    `panels` holds, by the panel's title and the model, one curve for each seed: epochs done, and accuracy in [0, 1]
    after them. `measured` says of which images: "test" or "validation".

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figure 2.
    """
    rows = max(len(models) for models in panels.values())
    with figure_files(paths, (max(4.6 * len(panels), 6.0), 3.9 + 0.2 * rows)) as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for panel, (name, models) in zip(axes, panels.items(), strict=True):
            styles = zip(cycle(COLOURS), cycle(_DASHES), strict=True)
            for (model, curves), (colour, dashes) in zip(models.items(), styles, strict=False):
                style = {"color": colour, "linestyle": dashes}
                _draw_model(panel, model, curves, style)
            panel.set(title=name, xlabel="epochs")
            panel.locator_params(axis="x", integer=True)
            panel.grid(axis="y", color="0.9", linewidth=0.8)
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
        axes[0].set_ylabel(f"{measured} accuracy (%)")


def _draw_model(
    panel: Any, model: str, curves: Sequence[Float[np.ndarray, "epochs 2"]], style: dict[str, str]
) -> None:
    """Draws the seeds of one model and, where there are several, their mean over the epochs that all have."""
    for curve in curves:
        dots = "o" if len(curve) < 3 else None  # a line of one or two points is seen by its points
        thin = {"linewidth": 0.7, "alpha": 0.6, "marker": dots, "markersize": 3}
        panel.plot(curve[:, 0], 100 * curve[:, 1], **thin, **style)
    common = min(len(curve) for curve in curves)
    mean = np.mean([curve[:common, 1] for curve in curves], axis=0)
    label = f"{model} (n = {len(curves)})"
    panel.plot(curves[0][:common, 0], 100 * mean, linewidth=2.2, label=label, **style)


_CURVES = {
    "recipe": "string",
    "seed": "int64",
    "epoch": "int64",
    "test_accuracy": "float64",
    "folder": "string",
}
"""Columns of the numbers behind the curves."""


def make_curves(material: Material, name: str, folder: Path) -> list[str]:
    """Draws test accuracy over epochs, and writes it as parquet; returns which runs have no readable metrics.

    If none has, this raises CheckpointError.
    """
    panels: dict[str, dict[str, list[Any]]] = {}
    rows, problems = [], []
    for published in TABLE1:
        recipe = published.recipe
        if recipe not in material.groups:
            continue
        curves = []
        for run in material.groups[recipe][0].runs:
            try:
                points = read_curve(run.folder)
            except CheckpointError as error:
                problems.append(f"left out: {error}")
                continue
            curves.append(np.array(points, dtype=float))
            rows += [(recipe, run.record.seed, *point, str(run.folder)) for point in points]
        if curves:
            panel = "further models" if published.paper_accuracy is None else "the paper's table 1"
            panels.setdefault(panel, {})[published.model] = curves
    if not rows:
        raise CheckpointError("; ".join(problems))
    what = f"test accuracy over training, scale {material.scale}\nthin: seeds, thick: their mean"
    accuracy_curves(figure_paths(folder, name), panels, title=f"{figure_name(name)}: {what}")
    write_parquet(folder / f"{name}.parquet", rows, _CURVES)
    return problems


_LAYER = 3
"""The paper's layer 4, counted from 0."""

_MOMENTS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Shares of all steps at which figure 3 shows the heads."""


def make_head_paths(material: Material, name: str, folder: Path, recipe: str) -> list[str]:
    """Draws the heads of layer 4 over training, and writes their centres at every moment.

    A network without a layer 4 shows its last layer, and a note says so.
    """
    run = material.run_of(recipe).folder
    snapshots = read_heads(run)
    depth = 1 + max(snapshot.layer for snapshot in snapshots)
    layer = min(_LAYER, depth - 1)
    shown = [snapshot for snapshot in snapshots if snapshot.layer == layer]
    steps = np.array([snapshot.step for snapshot in shown])
    nearest = {int(np.abs(steps - share * steps[-1]).argmin()) for share in _MOMENTS}
    moments = [shown[number] for number in sorted(nearest)]
    title = material.title(name, f"heads of layer {layer + 1} of {depth} over training", recipe)
    draw_heads(figure_paths(folder, name), moments, title=title, trace=shown)
    _write_heads(folder / f"{name}.parquet", run, "layer", layer)
    if layer == _LAYER:
        return []
    return [f"the network has {depth} layers: layer {layer + 1} stands for the paper's 4"]


def make_final_heads(
    material: Material, name: str, folder: Path, recipe: str, what: str
) -> list[str]:
    """Draws the heads of all layers at the end of training, and writes their centres; `what` is part of the title."""
    run = material.run_of(recipe).folder
    snapshots = read_heads(run)
    last = snapshots[-1].step
    shown = [snapshot for snapshot in snapshots if snapshot.step == last]
    draw_heads(figure_paths(folder, name), shown, title=material.title(name, what, recipe))
    _write_heads(folder / f"{name}.parquet", run, "step", last)
    return []


def _write_heads(path: Path, run: Path, column: str, value: int) -> None:
    """Writes the rows of a run's heads that have a value in a column."""
    pa = optional_module("pyarrow.parquet", "train")
    filters = [(column, "==", value)]
    shown = pa.parquet.read_table(run / HEADS, columns=[*HEAD_COLUMNS], filters=filters)
    write_parquet(path, zip(*shown.to_pydict().values(), strict=True), HEAD_COLUMNS)


_COLUMNS = {
    **dict.fromkeys(("layer", "head", "query_row", "query_col", "key_row", "key_col"), "int64"),
    "attention": "float64",
}
"""Columns of the numbers behind a figure of attention; everything is counted from 0."""

_PANEL = 0.86
_LEAST_COLUMNS = 7
"""Panels that a title is wide."""


def mean_attention(
    network: nn.Module,
    images: Float[Tensor, "images channels rows cols"],
    queries: Sequence[tuple[int, int]],
) -> list[Float32[np.ndarray, "queries _ key_rows key_cols"]]:
    """Returns the attention of each layer averaged over normalised images: (queries, heads, rows, cols) of the keys.

    `queries` are the row and column of each query pixel in the layers' feature maps. Every layer must see every pixel
    from every pixel. A network without attention raises an error.
    """
    layers = []
    for weights in mean_maps(network, images).values():
        patch: Any = network.patch
        rows, cols = (side // patch for side in images.shape[2:])
        places = [row * cols + col for row, col in queries]
        maps = weights[0][:, places].unflatten(2, (rows, cols))
        layers.append(maps.movedim(1, 0).numpy())
    return layers


def make_attention(
    material: Material,
    name: str,
    folder: Path,
    *,
    recipe: str,
    places: Sequence[tuple[float, float]] = ((0.5, 0.5),),
    averaged: int = 0,
    image: int | None = None,
) -> list[str]:
    """Draws attention of some queries: by position alone, averaged over test images, or on one of them.

    `places` are the query pixels, as shares of rows and columns in [0, 1); `averaged` is the number of images, and
    `image` the number of one of the chosen images, from 0. Returns which images were taken, and whether they are those
    of the run.
    """
    network = material.attention_net(recipe)
    image_size = network.arguments["image_size"]
    size = image_size // network.patch
    queries = [(int(row * size), int(col * size)) for row, col in places]
    notes, picture = [], None
    if averaged or image is not None:
        data, notes = material.images(recipe)
        numbers = np.random.default_rng(_SEED).permutation(len(data.test))
        if image is None:
            numbers = numbers[:averaged]
            what = f"attention, mean of {len(numbers)} test images"
            which = f"permutation({len(data.test)})[:{len(numbers)}]"
            notes = [f"the test images numpy.random.default_rng(0).{which}, from 0", *notes]
        elif image >= len(data.test):
            raise DataError(
                f"{data.name} has {len(data.test)} test images, but {name} needs {image + 1}"
            )
        else:
            numbers = numbers[image : image + 1]
            number = int(numbers[0])
            shown = f"test image {number} (class {int(data.test.labels[number])})"
            what = f"attention on {shown}"
            notes = [f"{shown}, counted from 0", *notes]
            pixels = data.test.images[number].numpy()
            picture = rearrange(pixels, "channels rows cols -> rows cols channels") / 255
        images = normalise(data.test.images[torch.from_numpy(numbers)], data.mean, data.std)
    elif network.content:
        raise CheckpointError(f"{material.run_of(recipe).folder} attends by content as well")
    else:
        what = "attention by position"
        images = torch.zeros(1, network.in_channels, image_size, image_size)
    layers = mean_attention(network, images, queries)
    title = material.title(name, what, recipe)
    attention_grid(figure_paths(folder, name), layers, queries, title=title, image=picture)
    write_parquet(folder / f"{name}.parquet", _weights_of(layers, queries), _COLUMNS)
    return notes


def attention_grid(
    paths: Sequence[AnyPath],
    layers: Sequence[Float[np.ndarray, "queries _ rows cols"]],
    queries: Sequence[tuple[int, int]],
    *,
    title: str,
    image: Float[np.ndarray, "image_rows image_cols channels"] | None = None,
) -> None:
    """Draws the attention of each head (a column) of each layer (a row), for one query pixel or several.

    `layers` and `queries` are those of `mean_attention`; layers may differ in heads. Every map has its own scale, from
    0 to the largest weight, which stands below it. `image`, with one channel or three, is attended to; it is in [0, 1].

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figures 5 to 10.
    """
    columns = max(maps.shape[1] for maps in layers)
    rows, cols = layers[0].shape[2:]
    height = 0.35 + (_PANEL + 0.16) * len(layers)
    width = _PANEL * max(columns, _LEAST_COLUMNS) + 1.6 + (1.7 if image is not None else 0)
    with figure_files(paths, (width, height * len(queries) + 0.9)) as figure:
        figure.suptitle(title)
        place = figure
        if image is not None:
            left, place = figure.subfigures(1, 2, width_ratios=[1.7, width - 1.7])
            patch = np.array(image.shape[:2]) / (rows, cols)
            _draw_image(left.subplots(), image, queries[0], patch)
        parts = place.subfigures(len(queries), 1, squeeze=False)[:, 0]
        for number, (row, col) in enumerate(queries):
            words = f"query: row {row + 1}, column {col + 1} of {rows} × {cols}"
            parts[number].suptitle(words, fontsize=9)
            _draw_maps(parts[number], [maps[number] for maps in layers], (row, col), columns)


def _draw_maps(
    part: Any,
    layers: Sequence[Float[np.ndarray, "_ rows cols"]],
    query: tuple[int, int],
    columns: int,
) -> None:
    """Draws the grid of one query pixel."""
    axes = part.subplots(len(layers), columns, squeeze=False)
    for row, layer in enumerate(layers):
        for panel in axes[row, len(layer) :]:
            panel.set_axis_off()
        for head, weights in enumerate(layer):
            panel = axes[row, head]
            largest = float(weights.max())
            panel.imshow(weights / largest, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
            panel.plot(
                query[1],
                query[0],
                marker="s",
                color="none",
                markeredgecolor="#D55E00",
                markersize=4,
            )
            panel.set(xticks=[], yticks=[])
            panel.set_xlabel(f"{largest:.3f}", fontsize=8, labelpad=1)
            if row == 0:
                panel.set_title(f"head {head + 1}", fontsize=9)
        axes[row, 0].set_ylabel(f"layer {row + 1}", fontsize=9)
    bar = part.colorbar(axes[0, 0].images[0], ax=axes, aspect=30, shrink=0.9, pad=0.02)
    bar.set_label("attention / largest,\nwhich is below the map", fontsize=8)
    bar.set_ticks([0, 0.5, 1])


def _draw_image(
    panel: Any,
    image: Float[np.ndarray, "rows cols channels"],
    query: tuple[int, int],
    patch: Float[np.ndarray, "2"],
) -> None:
    """Draws the image, and a frame around the patch that is the query pixel."""
    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)])
    rows, cols = ((corners + query) * patch - 0.5).T
    panel.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=1)
    panel.plot(cols, rows, color="#D55E00", linewidth=1.5)
    panel.set(xticks=[], yticks=[])
    panel.set_xlabel("image; framed: the query", fontsize=8)


def _weights_of(
    layers: Sequence[Float[np.ndarray, "queries _ rows cols"]], queries: Sequence[tuple[int, int]]
) -> Iterator[tuple[float, ...]]:
    """Yields the rows of `_COLUMNS`."""
    for number, query in enumerate(queries):
        for layer, maps in enumerate(layers):
            for (head, row, col), weight in np.ndenumerate(maps[number]):
                yield layer, head, *query, row, col, float(weight)
