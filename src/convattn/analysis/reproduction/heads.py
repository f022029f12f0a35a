"""Figures 3, 4 and 12 to 14: where quadratic heads attend."""

from collections.abc import Sequence
from pathlib import Path

from convattn.analysis.figures_heads import head_layers, head_paths
from convattn.analysis.heads import HeadSnapshot, read_heads
from convattn.analysis.reproduction.material import Material, figure_paths, write_parquet
from convattn.errors import CheckpointError
from convattn.training.heads import HEAD_COLUMNS

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
