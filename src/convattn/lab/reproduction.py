"""The paper's tables and figures, made from training runs."""

import dataclasses
import io
import os
import shlex
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import torch
from einops import rearrange
from jaxtyping import Float, Int
from pyarrow import parquet

from convattn.errors import (
    ArgumentError,
    CheckpointError,
    ConvAttnError,
    DataError,
    MissingDependencyError,
    UnknownNameError,
    must_be,
)
from convattn.files import new_folder, require_new_folder, write_atomically
from convattn.heads.attention_maps import mean_attention, position_attention
from convattn.heads.head_snapshots import HeadSnapshot, read_heads
from convattn.lab.build import HEAD_COLUMNS, load_data
from convattn.lab.figures import COLOURS, figure_files, head_layers, head_paths
from convattn.lab.recipe import SCALES, DataRecipe, load_recipe
from convattn.lab.runs import Run, RunGroup, RunsFound, find_runs, group_runs, read_metrics
from convattn.lab.tables import csv_text, markdown_table
from convattn.models import AttentionNet, FlopCount
from convattn.networks import load_network
from convattn.networks.datasets import ImageDataset, normalise
from convattn.record import Record


@dataclass(frozen=True)
class MissingRun:
    """A missing run that a table or a figure needs.

    Attributes:
        recipe: Its recipe.
        command: What makes it.
    """

    recipe: str
    command: str


@dataclass(frozen=True)
class TargetResult:
    """Result for one table or figure.

    Attributes:
        target: Its name.
        files: Names of the files made; none where it could not be made.
        runs: Folders of the runs that it shows.
        missing: Recipes without a finished run.
        problem: Why it could not be made although the runs exist; None if nothing went wrong.
        notes: What to know when reading it.
    """

    target: str
    files: tuple[str, ...]
    runs: tuple[str, ...]
    missing: tuple[str, ...]
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every file of it was made, from all its runs."""
        return bool(self.files) and not self.missing and self.problem is None

    def summary(self) -> str:
        """Returns the result in one line of plain text, and one for each note."""
        without = [f"missing {', '.join(self.missing)}"] if self.missing else []
        without += [self.problem] if self.problem is not None else []
        verdict = "made" if self.complete else "incomplete" if self.files else "not made"
        line = f"{self.target}: {verdict}" + "".join(f"; {item}" for item in without)
        return "\n".join([line, *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True)
class Reproduction(Record):
    """Results for all tables and figures.

    Attributes:
        runs: Folder of the runs.
        scale: Scale of the recipes.
        finished: Folders of finished runs, of whatever scale and recipe.
        unfinished: Folders of runs that have no record.
        unreadable: Folders whose record cannot be read, each with the reason.
        targets: The tables and figures.
        notes: Runs whose settings are not their recipe's own, and runs that are not shown, with the reason.
        missing: Missing runs, in an order in which they can be made.
    """

    runs: str
    scale: str
    finished: tuple[str, ...]
    unfinished: tuple[str, ...]
    unreadable: tuple[str, ...]
    targets: tuple[TargetResult, ...]
    notes: tuple[str, ...]
    missing: tuple[MissingRun, ...]

    @property
    def complete(self) -> bool:
        """Whether everything was made completely."""
        return all(target.complete for target in self.targets)

    def summary(self) -> str:
        """Returns everything in a few lines of plain text."""
        others = f"{len(self.unfinished)} unfinished, {len(self.unreadable)} unreadable"
        lines = [f"{self.runs}: {len(self.finished)} finished runs of any scale, {others}; asked for: {self.scale}"]
        lines += [f"  unfinished: {folder}" for folder in self.unfinished]
        lines += [f"  unreadable: {reason}" for reason in self.unreadable]
        lines += [f"  {note}" for note in self.notes]
        lines += [target.summary() for target in self.targets]
        if self.missing:
            lines += ["missing runs, and what makes them:", *(f"  {run.command}" for run in self.missing)]
        return "\n".join(lines)


PAPER = (
    "Cordonnier, Loukas, Jaggi: On the Relationship between Self-Attention and Convolutional Layers, ICLR 2020, table 1"
)
REPLICATION = "Varma, Prabhu 2020, an independent replication of the paper"


@dataclass(frozen=True)
class PublishedRow:
    """A row of table 1, one of the paper's or one that the paper leaves open."""

    recipe: str  # Recipe that trains the row's network
    model: str  # What the row is called
    # The paper's test accuracy on CIFAR-10, one run, in [0, 1]; None where the paper has none
    accuracy: float | None = None
    parameters: str | None = None  # The paper's number of parameters, as printed
    flops: str | None = None  # The paper's number of operations, as printed; of the linear maps only
    replication: float | None = None  # Test accuracy of the replication, in [0, 1]; None where it has none


TABLE1 = (
    PublishedRow("resnet18", "ResNet18", 0.938, "11.2M", "1.1B", 0.9463),
    PublishedRow("sa-quadratic", "SA quadratic", 0.938, "12.1M", "6.2B", 0.9365),
    PublishedRow("sa-learned", "SA learned", 0.918, "12.3M", "6.2B", 0.9036),
    PublishedRow("sa-learned-content", "SA learned + content", 0.871, "29.5M", "15B", 0.8636),
    PublishedRow("sa-quadratic-16-heads", "SA quadratic, 16 heads", replication=0.9311),
    PublishedRow("sa-quadratic-generalized", "SA generalised quadratic"),
    PublishedRow("sa-quadratic-generalized-pruned", "SA generalised quadratic, pruned"),
    PublishedRow("convnet", "3×3 convolutions (control)"),
    PublishedRow("sa-sinusoidal", "SA sinusoidal"),
    PublishedRow("sa-distance", "SA function of distance"),
    PublishedRow("sa-distance-table-start", "SA function of distance, start of the table"),
    PublishedRow("sa-distance-content-gated", "SA function of distance, gated content"),
    PublishedRow("sa-quadratic-grid-init", "SA quadratic, centres start on a grid"),
    PublishedRow("sa-quadratic-strong", "SA quadratic, present-day training"),
)
"""Rows of table 1: the paper's in its order, then those that the paper leaves open."""


_SEED = 0


@dataclass(frozen=True, eq=False)
class Material:
    """Runs of one scale, and the images that they were trained on."""

    groups: Mapping[str, Sequence[RunGroup]]  # by recipe, the best group first; recipes without runs are left out
    scale: str
    folder: Path | None = None  # folder with the files of CIFAR-10, in place of the one that a run's recipe names
    _loaded: dict[DataRecipe, ImageDataset] = field(default_factory=dict)  # each data set is loaded once

    def run_of(self, recipe: str) -> Run:
        """Returns the run that figures of a recipe show: the one with the lowest seed."""
        return self.groups[recipe][0].first

    def title(self, name: str, what: str, recipe: str) -> str:
        """Returns the title of a figure of one run."""
        run = self.run_of(recipe)
        changed = ", settings changed" if run.changes else ""
        seed = f"seed {run.record.seed}, one of n = {len(self.groups[recipe][0].runs)}"
        return f"{figure_name(name)}: {what}\n{recipe}, scale {self.scale}{changed}, {seed}"

    def attention_net(self, recipe: str) -> tuple[AttentionNet, int]:
        """Loads the network of a recipe's first run, with the rows and columns of its feature maps.

        A network without attention on images of a known size raises CheckpointError.
        """
        run = self.run_of(recipe)
        network = load_network(run.folder)
        if not isinstance(network, AttentionNet) or run.image_size is None:
            kind = f"a {type(network).__name__} on {run.record.data.name}"
            raise CheckpointError(f"{run.folder} must hold an AttentionNet on images of a known size, but holds {kind}")
        return network, run.image_size // network.patch

    def images(self, recipe: str) -> tuple[ImageDataset, list[str]]:
        """Loads the data set of a recipe's first run; a note says if its files are not those that the run has seen."""
        run = self.run_of(recipe)
        data_recipe = load_recipe(run.folder / "recipe.toml").data
        if self.folder is not None:
            data_recipe = dataclasses.replace(data_recipe, folder=str(self.folder))
        if data_recipe not in self._loaded:
            self._loaded[data_recipe] = load_data(data_recipe)
        data = self._loaded[data_recipe]
        if data.record.hashes == run.record.data.hashes:
            return data, []
        return data, [f"the images are of {data.name}, but {run.folder} was trained on {run.record.data.name}"]


def choose_images(data: ImageDataset, count: int) -> Int[np.ndarray, " images"]:
    """Chooses test images at random, always the same ones; a larger choice begins with a smaller one.

    They are the first of ``numpy.random.default_rng(0).permutation(len(data.test))``, or all where there are fewer.
    """
    return np.random.default_rng(_SEED).permutation(len(data.test))[:count]


def figure_name(target: str) -> str:
    """Returns a figure's name: "Figure 3" for "fig3"."""
    return f"Figure {target.removeprefix('fig')}"


def figure_paths(folder: Path, name: str) -> list[Path]:
    """Returns the files that a figure is written to: for the screen and for print."""
    return [folder / f"{name}.png", folder / f"{name}.svg"]


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Writes rows as a parquet file, whole or not at all."""
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer)
    write_atomically(path, buffer.getvalue())


@runtime_checkable
class _CountsFlops(Protocol):
    def flops(self, image_size: int = 32) -> FlopCount: ...


@dataclass(frozen=True)
class TableRow:
    """A row of the table; None is "not measured", "not published" or "not countable"."""

    model: str  # What the row is called
    recipe: str  # The recipe that was trained
    changes: str | None = None  # What was changed in it
    accuracy: float | None = None  # Mean test accuracy over seeds, in [0, 1]
    accuracy_std: float | None = None  # Standard deviation over seeds, with n − 1; None for one seed
    n: int = 0  # Number of seeds
    seeds: str | None = None  # The seeds
    paper_accuracy: float | None = None  # The paper's, in [0, 1]
    replication_accuracy: float | None = None  # The replication's, in [0, 1]
    parameters: int | None = None  # Number of trainable parameters, counted
    paper_parameters: str | None = None  # The paper's, as printed
    flops_linear: int | None = None  # Operations per image of the linear maps, which the paper counts
    flops_total: int | None = None  # Those of mixing and scores as well
    paper_flops: str | None = None  # The paper's, as printed
    data: str | None = None  # Data set and copy
    seconds: float | None = None  # Mean time of a run, in seconds
    hardware: str | None = None  # What the runs ran on
    folders: str | None = None  # The runs' folders


def make_table1(material: Material, name: str, folder: Path) -> list[str]:
    """Writes the table as Markdown and as CSV; returns which operations could not be counted."""
    rows, problems = _table_rows(material.groups)
    write_atomically(folder / f"{name}.md", _to_markdown(rows, material.scale))
    write_atomically(folder / f"{name}.csv", _to_csv(rows))
    return problems


def _table_rows(groups: Mapping[str, Sequence[RunGroup]]) -> tuple[list[TableRow], list[str]]:
    """Makes the rows in the order of `TABLE1`, and says which networks could not be read to count their operations.

    A recipe with runs of several settings has a row for each, one without runs a row that says so.
    """
    problems: list[str] = []
    rows = [row for published in TABLE1 for row in _rows_of(published, groups.get(published.recipe, ()), problems)]
    return rows, problems


def _rows_of(published: PublishedRow, groups: Sequence[RunGroup], problems: list[str]) -> Iterator[TableRow]:
    known: dict[str, Any] = {
        "model": published.model,
        "recipe": published.recipe,
        "paper_accuracy": published.accuracy,
        "replication_accuracy": published.replication,
        "paper_parameters": published.parameters,
        "paper_flops": published.flops,
    }
    if not groups:
        yield TableRow(**known)
    for group in groups:
        runs = group.runs
        accuracies = [run.record.results["test_accuracy"] for run in runs]
        flops = _flops(group.first, problems)
        yield TableRow(
            **known,
            changes="; ".join(group.first.changes) or "none",
            accuracy=statistics.fmean(accuracies),
            accuracy_std=statistics.stdev(accuracies) if len(runs) > 1 else None,
            n=len(runs),
            seeds=" ".join(str(run.record.seed) for run in runs),
            parameters=group.first.record.parameters,
            flops_linear=flops.linear if flops else None,
            flops_total=flops.total if flops else None,
            data=group.first.record.data.name,
            seconds=statistics.fmean(run.record.seconds for run in runs),
            hardware="; ".join(sorted({_hardware(run) for run in runs})),
            folders="; ".join(str(run.folder) for run in runs),
        )


def _to_csv(rows: Sequence[TableRow]) -> str:
    """Writes the rows as CSV; what is None stays empty."""
    return csv_text([[field.name for field in fields(TableRow)], *(asdict(row).values() for row in rows)])


def _to_markdown(rows: Sequence[TableRow], scale: str) -> str:
    """Writes the rows as a page: accuracies and sizes, then what was run on what."""
    numbers = [
        [
            row.model,
            _accuracy(row),
            str(row.n),
            _percent(row.paper_accuracy),
            _percent(row.replication_accuracy),
            "–" if row.parameters is None else f"{row.parameters:,}",
            row.paper_parameters or "–",
            _operations(row.flops_linear),
            row.paper_flops or "–",
            _operations(row.flops_total),
        ]
        for row in rows
    ]
    heads = ["model", "test accuracy (%)", "n", "paper (%)", "replication (%)", "parameters", "paper's parameters"]
    heads += ["operations, linear maps", "paper's operations", "operations, all"]
    runs = [
        [
            row.model,
            f"`{row.recipe}`",
            row.changes or "–",
            row.seeds or "–",
            row.data or "–",
            _time(row.seconds),
            row.hardware or "–",
        ]
        for row in rows
        if row.n
    ]
    parts = [
        f"# Table 1, scale {scale}",
        markdown_table(heads, numbers),
        _WHAT_IS_COUNTED,
        *([_FULL_SIZE] if scale != "paper" else []),
        f"Paper: {PAPER}; one run each. Replication: {REPLICATION}.",
        "Accuracies on different copies of the data are not comparable.",
    ]
    if runs:
        columns = ["model", "recipe", "changed in the recipe", "seeds", "data", "time per run", "hardware"]
        parts += ["## Runs", markdown_table(columns, runs)]
    return "\n\n".join(parts) + "\n"


_WHAT_IS_COUNTED = (
    "Mean ± standard deviation (with n − 1) over n seeds. Operations are of one forward pass on one image, a "
    "multiplication and its addition counted as two; the paper counts the linear maps only."
)
_FULL_SIZE = (
    "**The paper's and the replication's numbers are of the full networks on CIFAR-10; the networks here are smaller "
    "and trained for a shorter time, so that only the rows measured here compare with each other.**"
)


def _flops(run: Run, problems: list[str]) -> FlopCount | None:
    """Counts the operations of a run's network, or says why that cannot be."""
    try:
        network = load_network(run.folder)
    except ConvAttnError as error:
        problems.append(f"operations of {run.folder} are not counted: {error}")
        return None
    return network.flops(run.image_size) if run.image_size and isinstance(network, _CountsFlops) else None


def _hardware(run: Run) -> str:
    hardware = run.record.hardware
    threads = f", threads: {hardware['threads']}" if "threads" in hardware else ""
    return f"{hardware.get('accelerator') or hardware.get('processor', 'unknown')}{threads}"


def _accuracy(row: TableRow) -> str:
    if row.accuracy is None:
        return "not yet measured"
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    return f"{100 * row.accuracy:.2f}{spread}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.4g}"


def _operations(count: int | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 36000
        else f"{seconds / 3600:.1f} h"
    )


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


_LAYER = 3
"""The paper's layer 4, counted from 0."""

_MOMENTS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Shares of all steps at which figure 3 shows the heads."""


def make_ways(material: Material, name: str, folder: Path, recipe: str) -> list[str]:
    """Draws the heads of layer 4 over training, and writes where they were at every moment.

    A network without a layer 4 shows its last layer, and a note says so.
    """
    snapshots = _read(material, recipe)
    depth = 1 + max(snapshot.layer for snapshot in snapshots)
    layer = shown_layer(depth)
    shown = [snapshot for snapshot in snapshots if snapshot.layer == layer]
    title = material.title(name, f"heads of layer {layer + 1} of {depth} over training", recipe)
    head_paths(figure_paths(folder, name), shown, [shown[number] for number in shown_moments(shown)], title=title)
    write_parquet(folder / f"{name}.parquet", _numbers(shown), HEAD_COLUMNS)
    return [] if layer == _LAYER else [f"the network has {depth} layers: layer {layer + 1} stands for the paper's 4"]


def make_end(material: Material, name: str, folder: Path, recipe: str, what: str) -> list[str]:
    """Draws the heads of all layers at the end of training, and writes where they are; `what` is part of the title."""
    snapshots = _read(material, recipe)
    shown = [snapshot for snapshot in snapshots if snapshot.step == snapshots[-1].step]
    head_layers(figure_paths(folder, name), shown, title=material.title(name, what, recipe))
    write_parquet(folder / f"{name}.parquet", _numbers(shown), HEAD_COLUMNS)
    return []


def _read(material: Material, recipe: str) -> list[HeadSnapshot]:
    folder = material.run_of(recipe).folder
    snapshots = read_heads(folder)
    if not snapshots:
        raise CheckpointError(f"{folder / 'heads.parquet'} holds no heads")
    return snapshots


def shown_layer(depth: int) -> int:
    """Returns the layer of figure 3, from 0, in a network of so many layers."""
    return min(_LAYER, depth - 1)


def shown_moments(snapshots: Sequence[HeadSnapshot]) -> list[int]:
    """Returns which moments of a layer figure 3 shows: those nearest to given shares of the steps, each once."""
    last = snapshots[-1].step
    nearest = {
        min(range(len(snapshots)), key=lambda number: abs(snapshots[number].step - share * last)) for share in _MOMENTS
    }
    return sorted(nearest)


def _numbers(snapshots: Sequence[HeadSnapshot]) -> list[dict[str, float]]:
    """Returns rows as `heads.parquet` of a run has them."""
    return [
        {
            "step": snapshot.step,
            "epoch": snapshot.epoch,
            "layer": snapshot.layer,
            "head": head,
            "centre_row": float(centre[0]),
            "centre_col": float(centre[1]),
            "sharpness": float(precision.trace()) / 4,
            "precision_row_row": float(precision[0, 0]),
            "precision_row_col": float(precision[0, 1]),
            "precision_col_col": float(precision[1, 1]),
        }
        for snapshot in snapshots
        for head, (centre, precision) in enumerate(zip(snapshot.centres, snapshot.precisions, strict=True))
    ]


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
    write_parquet(folder / f"{name}.parquet", list(_numbers_of_maps(maps)), _COLUMNS)


def _numbers_of_maps(maps: Sequence[QueryMaps]) -> Iterator[dict[str, float]]:
    for item in maps:
        for layer, heads in enumerate(item.layers):
            for (head, row, col), weight in np.ndenumerate(heads):
                indices = zip(_INDICES, (layer, head, *item.query, row, col), strict=True)
                yield {**dict(indices), "attention": float(weight)}


@dataclass(frozen=True, eq=False)
class Target:
    """A table or a figure."""

    recipes: tuple[str, ...]  # Recipes whose runs it shows
    # Writes files into a folder, under names that begin with the target's, and returns what to note on them
    make: Callable[[Material, str, Path], list[str]]
    least: int = 1  # Number of these recipes without whose runs there is nothing to show


def _one_recipe(recipe: str, make: Callable[..., list[str]], **options: object) -> Target:
    return Target((recipe,), partial(make, recipe=recipe, **options))


_ALL = tuple(row.recipe for row in TABLE1)
_CONTENT = "sa-learned-content"
_AT_THE_END = "heads of each layer after training"

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "table1": Target(_ALL, make_table1, least=0),
        "fig2": Target(_ALL, make_curves),
        "fig3": _one_recipe("sa-quadratic", make_ways),
        "fig4": _one_recipe("sa-quadratic", make_end, what=_AT_THE_END),
        "fig5": _one_recipe("sa-learned", make_learned),
        "fig6": _one_recipe(_CONTENT, make_average, places=[(0.5, 0.5)]),
        "fig7": _one_recipe(_CONTENT, make_average, places=[(0.25, 0.25), (0.75, 0.75)]),
        "fig8": _one_recipe(_CONTENT, make_one_image, number=0),
        "fig9": _one_recipe(_CONTENT, make_one_image, number=1),
        "fig10": _one_recipe(_CONTENT, make_one_image, number=2),
        "fig12": _one_recipe("sa-quadratic-generalized", make_end, what="generalised heads before pruning"),
        "fig13": _one_recipe("sa-quadratic-generalized-pruned", make_end, what="generalised heads after pruning"),
        "fig14": _one_recipe("sa-quadratic-16-heads", make_end, what=_AT_THE_END),
    }
)
"""Every table and figure by its name, in the paper's order."""


_STARTS_FROM = {"sa-quadratic-generalized-pruned": "sa-quadratic-generalized"}
"""Recipes that train the network of another one's run further."""


def reproduce(
    targets: Sequence[str],
    runs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    scale: str = "paper",
    data: str | os.PathLike[str] | None = None,
) -> Reproduction:
    """Makes tables and figures from the runs in a folder, and says which runs are missing.

    Args:
        targets: Names of `TARGETS`.
        runs: Folder of runs, at most two folders deep.
        output: Folder to make; it appears when all is done, and not at all where no target can be made.
        scale: Scale of the recipes, one of `SCALES`.
        data: Folder with the files of CIFAR-10, for figures that show images; None takes what the runs name.

    Returns:
        The result for each target; saved as ``reproduction.json`` beside the files.

    Raises:
        ArgumentError: A folder is not there, or the output folder is not empty.
        MissingDependencyError: A package that the figures need is not installed.
        UnknownNameError: There is no such target or scale.
    """
    for kind, names, known in (("target", targets, TARGETS), ("scale", [scale], SCALES)):
        for name in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    if data is not None and not Path(data).is_dir():
        raise ArgumentError(must_be("data", "a folder that exists", str(data)))
    require_new_folder(output, "output")
    found = find_runs(runs)
    groups = {row.recipe: group_runs(found.finished, row.recipe, scale) for row in TABLE1}
    groups = {recipe: alike for recipe, alike in groups.items() if alike}
    material = Material(groups, scale, None if data is None else Path(data))
    can_be_made = any(_has_runs(name, groups) for name in targets)
    with new_folder(output, "output") if can_be_made else nullcontext() as folder:
        results = [_make_target(name, material, folder) for name in targets]
        report = _make_record(results, found, material, Path(runs))
        if folder is not None:
            report.save(folder / "reproduction.json")
    return report


def _has_runs(name: str, groups: Mapping[str, Sequence[RunGroup]]) -> bool:
    return sum(recipe in groups for recipe in TARGETS[name].recipes) >= TARGETS[name].least


def _make_target(name: str, material: Material, folder: Path | None) -> TargetResult:
    """Makes one target, all of its files or none."""
    target, groups = TARGETS[name], material.groups
    missing = tuple(recipe for recipe in target.recipes if recipe not in groups)
    if folder is None or not _has_runs(name, groups):
        return TargetResult(name, files=(), runs=(), missing=missing)
    problem, notes, files = None, [], []
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}.") as place:
        try:
            notes = target.make(material, name, Path(place))
        except MissingDependencyError:
            raise
        except ConvAttnError as error:
            problem = str(error)
        else:
            files = sorted(item.name for item in Path(place).iterdir())
            for file in files:
                os.replace(Path(place) / file, folder / file)
    runs = tuple(str(run.folder) for group in _shown(name, groups) for run in group.runs)
    return TargetResult(name, tuple(files), runs, missing, problem, tuple(notes))


def _shown(name: str, groups: Mapping[str, Sequence[RunGroup]]) -> list[RunGroup]:
    """Returns the groups that a target shows: the table all of them, a figure the best one of each recipe."""
    alike = [groups[recipe] for recipe in TARGETS[name].recipes if recipe in groups]
    return [group for several in alike for group in (several if name == "table1" else several[:1])]


def _notes(targets: Sequence[str], groups: Mapping[str, Sequence[RunGroup]]) -> tuple[str, ...]:
    """Says which runs have changed settings, and which are not shown."""
    notes = []
    for recipe in {recipe: None for name in targets for recipe in TARGETS[name].recipes if recipe in groups}:
        for number, group in enumerate(groups[recipe]):
            if group.first.changes:
                notes.append(f"changed settings of {group.first.folder}: {'; '.join(group.first.changes)}")
            if number:
                notes += [f"not in figures, because settings or data differ: {run.folder}" for run in group.runs]
            notes += [f"left out, because another run has the same seed: {run.folder}" for run in group.repeats]
    return tuple(notes)


def _make_record(results: Sequence[TargetResult], found: RunsFound, material: Material, runs: Path) -> Reproduction:
    missing = {recipe for result in results for recipe in result.missing}
    return Reproduction(
        runs=str(runs),
        scale=material.scale,
        finished=tuple(str(run.folder) for run in found.finished),
        unfinished=tuple(map(str, found.unfinished)),
        unreadable=tuple(f"{folder}: {reason}" for folder, reason in found.unreadable),
        targets=tuple(results),
        notes=_notes([result.target for result in results], material.groups),
        missing=tuple(
            MissingRun(row.recipe, _command(row.recipe, material, runs)) for row in TABLE1 if row.recipe in missing
        ),
    )


def _command(recipe: str, material: Material, runs: Path) -> str:
    """Returns the command that makes a missing run: seed 0, in a new folder."""
    words = ["convattn", "train", recipe, "--scale", material.scale]
    if material.folder is not None and material.scale != "tiny":
        words += ["--set", f"data.folder={material.folder}"]
    start = _STARTS_FROM.get(recipe)
    if start is not None:
        there = material.groups.get(start)
        words += ["--set", f"start.folder={there[0].first.folder if there else _free(runs / f'{start}-0')}"]
    return shlex.join([*words, "-o", str(_free(runs / f"{recipe}-0"))])


def _free(folder: Path) -> Path:
    """Returns the path, or the first of PATH-2, PATH-3, … that does not exist."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in count(1))
    return next(path for path in names if not path.exists())
