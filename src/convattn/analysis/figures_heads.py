"""Figures of quadratic heads: where they attend, at one moment or over a run."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from convattn.analysis.canvas import COLOURS, add_ellipse, figure_files, line_key, patch_key
from convattn.analysis.heads import HeadSnapshot
from convattn.errors import ArgumentError
from convattn.records.words import counted

_FLATTEST = 1e-4
"""Smallest eigenvalue of Σ⁻¹ that is drawn, in 1/pixel²: its 50 % ellipse is 118 pixels long, out of sight."""

_PANEL, _FRAME = 3.3, 0.4
"""Side of a panel, and what the labels of a row or column of panels take, in inches."""


def head_centres(path: str | os.PathLike[str], snapshots: Sequence[HeadSnapshot]) -> Path:
    """Draws where quadratic heads attend: their centres, and the ellipses that hold 50 % and 90 % of their attention.

    The mass p of the attention exp(−½ (δ − Δ)ᵀ Σ⁻¹ (δ − Δ)) in the plane lies within
    (δ − Δ)ᵀ Σ⁻¹ (δ − Δ) = −2 ln(1 − p).

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figures 3 and 4.

    Args:
        path: File to write; its ending is one of `FORMATS`.
        snapshots: Layers at one or more moments, from `read_heads`: a row of panels for each moment, a column for each
            layer.

    Returns:
        The path.

    Raises:
        ArgumentError: There is no snapshot, or the ending is another.
        MissingDependencyError: matplotlib is not installed.
    """
    _require_snapshots(snapshots)
    steps = sorted({snapshot.step for snapshot in snapshots})
    layers = sorted({snapshot.layer for snapshot in snapshots})
    size = (_PANEL * len(layers) + _FRAME, (_PANEL + 0.25) * len(steps) + 1.2)
    with figure_files([path], size) as figure:
        axes = figure.subplots(len(steps), len(layers), squeeze=False, sharex=True, sharey=True)
        for snapshot in snapshots:
            panel = axes[steps.index(snapshot.step), layers.index(snapshot.layer)]
            _draw_heads(panel, snapshot)
            panel.set_title(f"layer {snapshot.layer + 1}, {_moment(snapshot, snapshots)}")
        _set_axes(axes, _axis_limit([snapshot.centres for snapshot in snapshots]))
        figure.legend(handles=_legend(), loc="outside lower center", ncols=4)
    return Path(path)


def head_moves(path: str | os.PathLike[str], snapshots: Sequence[HeadSnapshot], *, columns: int = 3) -> Path:
    """Draws where the heads of each layer attend at the last moment, and the way of their centres from the first.

    Args:
        path: File to write; its ending is one of `FORMATS`.
        snapshots: Layers at one or more moments, from `read_heads`: a panel for each layer.
        columns: Panels side by side, at most.

    Returns:
        The path.

    Raises:
        ArgumentError: There is no snapshot, or the ending is another.
        MissingDependencyError: matplotlib is not installed.
    """
    layers = sorted({snapshot.layer for snapshot in snapshots})
    title = "heads at the end of the training, and the way of their centres from its start (○)"
    with _sheet([path], snapshots, len(layers), columns, title) as panels:
        for panel, layer in zip(panels, layers, strict=True):
            moments = sorted((item for item in snapshots if item.layer == layer), key=lambda item: item.step)
            first, last = moments[0], moments[-1]
            _draw_heads(panel, last)
            _draw_ways(panel, first, last)
            panel.set_title(f"layer {layer + 1}: α {_sharpness_range(first)} → {_sharpness_range(last)} per pixel²")
    return Path(path)


def head_layers(
    paths: Sequence[str | os.PathLike[str]], snapshots: Sequence[HeadSnapshot], *, title: str, columns: int = 3
) -> None:
    """Draws the heads of all layers at one moment, a panel for each snapshot, at most `columns` side by side.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figures 4 and 12 to 14.
    """
    with _sheet(paths, snapshots, len(snapshots), columns, title) as panels:
        for panel, snapshot in zip(panels, snapshots, strict=True):
            _draw_heads(panel, snapshot)
            panel.set_title(f"layer {snapshot.layer + 1}: {counted(len(snapshot.centres), 'head')}")


def head_paths(
    paths: Sequence[str | os.PathLike[str]],
    snapshots: Sequence[HeadSnapshot],
    moments: Sequence[HeadSnapshot],
    *,
    title: str,
) -> None:
    """Draws the path of each head's centre over the snapshots of one layer, and the heads at some moments.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figure 3.
    """
    with _sheet(paths, snapshots, 1 + len(moments), 3, title) as (first, *others):
        _draw_paths(first, np.stack([snapshot.centres for snapshot in snapshots]))
        first.set_title("centres from start (○) to end")
        for panel, snapshot in zip(others, moments, strict=True):
            _draw_heads(panel, snapshot)
            panel.set_title(_moment(snapshot, snapshots))


@contextmanager
def _sheet(
    paths: Sequence[str | os.PathLike[str]], snapshots: Sequence[HeadSnapshot], count: int, columns: int, title: str
) -> Iterator[list[Any]]:
    """Makes a figure of `count` panels, at most `columns` side by side, in which every centre is visible."""
    _require_snapshots(snapshots)
    across, down = min(count, columns), -(-count // columns)
    size = max(_PANEL * across + _FRAME, 6.0), (_PANEL + 0.25) * down + 1.2  # a narrow figure still holds its title
    with figure_files(paths, size) as figure:
        figure.suptitle(title)
        axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        yield list(axes.flat[:count])
        _set_axes(axes, _axis_limit([snapshot.centres for snapshot in snapshots]))
        for number in range(count, axes.size):  # the panels above empty ones get the labels of the bottom row
            axes.flat[number].set_visible(False)
            above = axes.flat[number - across]
            above.set_xlabel("column shift (pixels)")
            above.tick_params(labelbottom=True)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=min(across, 3))


def _require_snapshots(snapshots: Sequence[HeadSnapshot]) -> None:
    if not snapshots:
        raise ArgumentError("snapshots must hold at least one layer, but is empty")


def _moment(snapshot: HeadSnapshot, snapshots: Sequence[HeadSnapshot]) -> str:
    """Names a moment by its epoch, or by its step if several moments have the same epoch."""
    if snapshot.step == 0:
        return "start"
    alike = {other.step for other in snapshots if other.epoch == snapshot.epoch}
    if len(alike) == 1:
        return f"epoch {snapshot.epoch}"
    return f"step {snapshot.step:,} of {max(other.step for other in snapshots):,}"


def _axis_limit(centres: Sequence[Float[np.ndarray, "heads 2"]]) -> float:
    """Returns the range of the axes, in pixels, so that every centre is visible."""
    return max(float(np.abs(item).max(initial=0.0)) for item in centres) + 2.5


def _set_axes(axes: Any, reach: float) -> None:
    """Gives all panels the same square, and names the outer axes."""
    for panel in axes.flat:
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        panel.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        panel.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
        panel.locator_params(integer=True, nbins=8, steps=[1, 2, 5, 10])
    for panel in axes[-1]:
        panel.set_xlabel("column shift (pixels)")
    for panel in axes[:, 0]:
        panel.set_ylabel("row shift (pixels)")


def _draw_heads(panel: Any, snapshot: HeadSnapshot) -> None:
    """Draws the heads of one layer; at (0, 0) is the query."""
    for head, (centre, precision) in enumerate(zip(snapshot.centres, snapshot.precisions, strict=True)):
        colour = COLOURS[head % len(COLOURS)]
        values, vectors = np.linalg.eigh(precision)
        angle = np.degrees(np.arctan2(vectors[0, 0], vectors[1, 0]))
        for mass, style in ((0.5, {"facecolor": (colour, 0.2), "linewidth": 1.2}), (0.9, {"linestyle": "--"})):
            first, second = 2 * np.sqrt(-2 * np.log(1 - mass) / np.maximum(values, _FLATTEST))
            outline = {"facecolor": "none", "linewidth": 0.9, "edgecolor": colour, **style}
            add_ellipse(panel, (centre[1], centre[0]), (first, second), angle=angle, **outline)
    for head, (row, col) in enumerate(snapshot.centres):
        box = {"boxstyle": "circle,pad=0.1", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
        panel.text(col, row, str(head + 1), ha="center", va="center", fontsize=9, weight="bold", zorder=5, bbox=box)


def _draw_paths(panel: Any, centres: Float[np.ndarray, "moments heads 2"]) -> None:
    """Draws the path of each centre, with a ring at its start and the head's number at its end."""
    for head in range(centres.shape[1]):
        colour = COLOURS[head % len(COLOURS)]
        rows, cols = centres[:, head, 0], centres[:, head, 1]
        panel.plot(cols, rows, color=colour, linewidth=1.5)
        panel.plot(cols[0], rows[0], color=colour, marker="o", markersize=6, markerfacecolor="white")
        place = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 9, "weight": "bold", "color": colour}
        panel.annotate(str(head + 1), (cols[-1], rows[-1]), **place)


def _draw_ways(panel: Any, first: HeadSnapshot, last: HeadSnapshot) -> None:
    """Draws a straight line from each centre at one moment, a ring, to the same at another."""
    for head, (start, end) in enumerate(zip(first.centres, last.centres, strict=True)):
        colour = COLOURS[head % len(COLOURS)]
        panel.plot([start[1], end[1]], [start[0], end[0]], color=colour, linewidth=1.5)
        panel.plot(start[1], start[0], color=colour, marker="o", markersize=6, markerfacecolor="white", zorder=4)


def _sharpness_range(snapshot: HeadSnapshot) -> str:
    """Words the least and the largest sharpness of heads, α = tr Σ⁻¹ / 4."""
    sharpness = np.trace(snapshot.precisions, axis1=1, axis2=2) / 4
    low, high = f"{sharpness.min():.2g}", f"{sharpness.max():.2g}"
    return low if low == high else f"{low}–{high}"


def _legend() -> list[Any]:
    return [
        line_key("centre, with the head's number", linestyle="none", marker="$1$", color="black"),
        patch_key("holds 50 % of its attention", facecolor=(COLOURS[0], 0.2), edgecolor=COLOURS[0]),
        patch_key("90 %", facecolor="none", edgecolor=COLOURS[0], linestyle="--"),
    ]
