"""Figures of conversions and of trained heads; every figure is written whole or not at all."""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, UInt8

from convattn.errors import ArgumentError, MissingDependencyError, must_be
from convattn.files import write_atomically
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.wording import counted

FORMATS = ("png", "svg", "pdf")
"""What a figure can be written as, by the ending of its file."""

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6D31",
    "#7F7F7F",
)
"""Colours of lines, in the order of their use."""

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "svg.hashsalt": "convattn",
}


@contextmanager
def figure_files(
    paths: Sequence[str | os.PathLike[str]], size: tuple[float, float]
) -> Iterator[Any]:
    """Makes an empty figure of matplotlib, and writes it to all paths when the block ends, each whole or not at all.

    `size` is its width and height in inches. An ending that is not in `FORMATS` raises ArgumentError, and
    MissingDependencyError says that matplotlib is not installed.
    """
    forms = [Path(path).suffix.removeprefix(".").lower() for path in paths]
    for path, form in zip(paths, forms, strict=True):
        if form not in FORMATS:
            raise ArgumentError(
                must_be("path", f"a file that ends in {', '.join(FORMATS)}", str(path))
            )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("matplotlib", "train") from None
    buffers = [io.BytesIO() for _ in paths]
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        for form, buffer in zip(forms, buffers, strict=True):
            undated = {
                "png": {"Software": None},
                "svg": {"Date": None},
                "pdf": {"CreationDate": None},
            }[form]
            figure.savefig(buffer, format=form, dpi=150, metadata=undated)
    for path, buffer in zip(paths, buffers, strict=True):
        write_atomically(path, buffer.getvalue())


def add_ellipse(
    panel: Any, centre: tuple[float, float], axes: tuple[float, float], **style: Any
) -> None:
    """Adds an ellipse at a horizontal and vertical place, with the lengths of its axes and a style of matplotlib."""
    from matplotlib.patches import Ellipse

    panel.add_patch(Ellipse(centre, *axes, **style))


@dataclass(frozen=True, eq=False)
class Comparison:
    """A convolution and the attention layer made from it, on one photograph."""

    photograph: Float[np.ndarray, "rows cols 3"]  # Red, green, blue in [0, 1]
    names: Sequence[str]  # What each output shows
    kernels: Float[
        np.ndarray, "outputs kernel_rows kernel_cols"
    ]  # On grey pixels: summed over the input's channels
    convolution: Float64[np.ndarray, "outputs rows cols"]  # The convolution's outputs
    attention: Float[np.ndarray, "outputs rows cols"]  # The attention layer's outputs
    heads: Float[
        np.ndarray, "heads key_rows key_cols"
    ]  # Attention of one query in the middle; keys around it
    sharpness: float | None  # α of the heads, in 1/pixel²; None of hard heads
    unit: float  # What rounding changes an output by, in units of the outputs


def convolution_and_attention(path: str | os.PathLike[str], comparison: Comparison) -> Path:
    """Draws photograph, attention of one pixel, and for each output kernel, convolution, attention and difference."""
    outputs = len(comparison.names)
    heights = (2.6, 1.65 * outputs + 0.2)
    with figure_files([path], (11, sum(heights))) as figure:
        top, below = figure.subfigures(2, 1, height_ratios=heights)
        _draw_photograph(top, comparison)
        axes = below.subplots(outputs, 4, squeeze=False, width_ratios=[0.66, 1, 1, 1])
        for panel, title in zip(
            axes[0], ("kernel", "convolution", "attention", "attention − convolution"), strict=True
        ):
            panel.set_title(title)
        differences = comparison.attention - comparison.convolution
        limit = max(float(np.abs(differences).max()), comparison.unit)
        scale = {"cmap": "PuOr", "vmin": -limit, "vmax": limit, "interpolation": "nearest"}
        for output, (*row, last) in enumerate(axes):
            _draw_output(row, comparison, output)
            last.imshow(differences[output], **scale)
            last.set_axis_off()
        bar = below.colorbar(axes[0, 3].images[0], ax=axes[:, 3], aspect=40)
        bar.set_label(f"difference (one rounding: {comparison.unit:.7f})")
    return Path(path)


def _draw_photograph(figure: Any, comparison: Comparison) -> None:
    """Draws the photograph, and where the query in the middle attends: its first head, and all heads together."""
    photograph, one, mean = figure.subplots(1, 3, width_ratios=[1.55, 1, 1])
    photograph.imshow(comparison.photograph)
    photograph.set_title("photograph")
    photograph.set_axis_off()
    heads, rows, cols = comparison.heads.shape
    extent = (-cols / 2, cols / 2, rows / 2, -rows / 2)
    kind = "hard" if comparison.sharpness is None else f"α = {comparison.sharpness:g}"
    titles = (f"head 1 of {heads}, {kind}", f"mean of {heads} heads")
    for panel, weights, title in zip(
        (one, mean), (comparison.heads[0], comparison.heads.mean(0)), titles, strict=True
    ):
        shown = panel.imshow(weights, cmap="cividis", vmin=0, extent=extent)
        panel.set(title=title, xlabel="column shift (pixels)", ylabel="row shift (pixels)")
        ticks = range(-(min(rows, cols) // 4) * 2, min(rows, cols) // 2 + 1, 2)
        panel.set(xticks=ticks, yticks=ticks)
        figure.colorbar(shown, ax=panel, label="attention of one pixel", shrink=0.9)


def _draw_output(panels: Sequence[Any], comparison: Comparison, output: int) -> None:
    """Draws kernel, convolution and attention of one output; the last two share their grey scale."""
    kernel, left, right = panels
    weights, convolution = comparison.kernels[output], comparison.convolution[output]
    limit = float(np.abs(weights).max())
    kernel.imshow(weights, cmap="RdBu_r", vmin=-1.6 * limit, vmax=1.6 * limit)
    for (row, col), weight in np.ndenumerate(weights):
        kernel.text(
            col, row, f"{weight:.3g}".replace("-", "−"), ha="center", va="center", fontsize=8
        )
    kernel.set(xticks=[], yticks=[], ylabel=comparison.names[output])
    kernel.spines[:].set_visible(False)
    low, high = np.quantile(convolution, [0.005, 0.995])
    for panel, image in ((left, convolution), (right, comparison.attention[output])):
        panel.imshow(image, cmap="gray", vmin=low, vmax=high)
        panel.set_axis_off()


_COLUMNS = 10
_PANEL_OF_IMAGE = (1.1, 1.55)
"""Width and height of an image with its words, in inches."""


def classified_images(
    path: str | os.PathLike[str],
    images: UInt8[np.ndarray, "images rows cols 3"],
    classes: Sequence[str],
    predictions: Sequence[str],
) -> Path:
    """Draws images, each with the name of its class above it and of the class that a network predicts below.

    Raises ArgumentError without images, or without both names for each.
    """
    count = len(images)
    if not count == len(classes) == len(predictions) > 0:
        numbers = f"{count} images, {len(classes)} classes and {len(predictions)} predictions"
        raise ArgumentError(
            f"there must be at least one image, and two names for each, but there are {numbers}"
        )
    across, down = min(count, _COLUMNS), -(-count // _COLUMNS)
    with figure_files([path], (_PANEL_OF_IMAGE[0] * across, _PANEL_OF_IMAGE[1] * down)) as figure:
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for panel in panels:
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        for panel, image, own, predicted in zip(panels, images, classes, predictions, strict=False):
            panel.imshow(image, interpolation="nearest")
            panel.set_title(own)
            right = predicted == own
            colour, weight = (COLOURS[2], "normal") if right else (COLOURS[1], "bold")
            panel.set_xlabel(f"{'✓' if right else '✗'} {predicted}", color=colour, weight=weight)
    return Path(path)


_FLATTEST = 1e-4
"""Smallest eigenvalue of Σ⁻¹ that is drawn, in 1/pixel²: its 50 % ellipse is 118 pixels long, out of sight."""

_PANEL, _FRAME = 3.3, 0.4
"""Side of a panel, and what the labels of a row or column of panels take, in inches."""


def head_moves(
    path: str | os.PathLike[str], snapshots: Sequence[HeadSnapshot], *, columns: int = 3
) -> Path:
    """Draws where the heads of each layer attend at the last moment, and the moves of their centres since the first.

    Around each centre are the ellipses that hold 50 % and 90 % of the attention. The mass p of the attention
    exp(−½ (δ − Δ)ᵀ Σ⁻¹ (δ − Δ)) in the plane lies within (δ − Δ)ᵀ Σ⁻¹ (δ − Δ) = −2 ln(1 − p).
    """
    layers = sorted({snapshot.layer for snapshot in snapshots})
    title = "heads at the end of the training, and the way of their centres from its start (○)"
    with _sheet([path], snapshots, len(layers), columns, title) as panels:
        for panel, layer in zip(panels, layers, strict=True):
            moments = sorted(
                (item for item in snapshots if item.layer == layer), key=lambda item: item.step
            )
            first, last = moments[0], moments[-1]
            _draw_heads(panel, last)
            _draw_moves(panel, first, last)
            panel.set_title(
                f"layer {layer + 1}: α {_sharpness_range(first)} → {_sharpness_range(last)} per pixel²"
            )
    return Path(path)


def head_layers(
    paths: Sequence[str | os.PathLike[str]],
    snapshots: Sequence[HeadSnapshot],
    *,
    title: str,
    columns: int = 3,
) -> None:
    """Draws a panel for each snapshot, at most `columns` side by side; those of several moments name theirs.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figures 3, 4 and 12 to 14.
    """
    several = len({snapshot.step for snapshot in snapshots}) > 1
    with _sheet(paths, snapshots, len(snapshots), columns, title) as panels:
        for panel, snapshot in zip(panels, snapshots, strict=True):
            _draw_heads(panel, snapshot)
            heads = counted(len(snapshot.centres), "head")
            panel.set_title(
                f"layer {snapshot.layer + 1}: {_moment(snapshot, snapshots) if several else heads}"
            )


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
    paths: Sequence[str | os.PathLike[str]],
    snapshots: Sequence[HeadSnapshot],
    count: int,
    columns: int,
    title: str,
) -> Iterator[list[Any]]:
    """Makes a figure of `count` panels, at most `columns` side by side, in which every centre is visible."""
    if not snapshots:
        raise ArgumentError("snapshots must hold at least one layer, but is empty")
    across, down = min(count, columns), -(-count // columns)
    size = (
        max(_PANEL * across + _FRAME, 6.0),
        (_PANEL + 0.25) * down + 1.2,
    )  # a narrow figure still holds its title
    with figure_files(paths, size) as figure:
        figure.suptitle(title)
        axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        yield list(axes.flat[:count])
        _set_axes(axes, _axis_limit([snapshot.centres for snapshot in snapshots]))
        for number in range(
            count, axes.size
        ):  # the panels above empty ones get the labels of the bottom row
            axes.flat[number].set_visible(False)
            above = axes.flat[number - across]
            above.set_xlabel("column shift (pixels)")
            above.tick_params(labelbottom=True)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=min(across, 3))


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
    """Draws the heads of one layer around the query, which is at (0, 0)."""
    for head, (centre, precision) in enumerate(
        zip(snapshot.centres, snapshot.precisions, strict=True)
    ):
        colour = COLOURS[head % len(COLOURS)]
        values, vectors = np.linalg.eigh(precision)
        angle = np.degrees(np.arctan2(vectors[0, 0], vectors[1, 0]))
        for mass, style in (
            (0.5, {"facecolor": (colour, 0.2), "linewidth": 1.2}),
            (0.9, {"linestyle": "--"}),
        ):
            first, second = 2 * np.sqrt(-2 * np.log(1 - mass) / np.maximum(values, _FLATTEST))
            outline = {"facecolor": "none", "linewidth": 0.9, "edgecolor": colour, **style}
            add_ellipse(panel, (centre[1], centre[0]), (first, second), angle=angle, **outline)
    for head, (row, col) in enumerate(snapshot.centres):
        box = {"boxstyle": "circle,pad=0.1", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
        panel.text(
            col,
            row,
            str(head + 1),
            ha="center",
            va="center",
            fontsize=9,
            weight="bold",
            zorder=5,
            bbox=box,
        )


def _draw_paths(panel: Any, centres: Float[np.ndarray, "moments heads 2"]) -> None:
    """Draws the path of each centre, with a ring at its start and the head's number at its end."""
    for head in range(centres.shape[1]):
        colour = COLOURS[head % len(COLOURS)]
        rows, cols = centres[:, head, 0], centres[:, head, 1]
        panel.plot(cols, rows, color=colour, linewidth=1.5)
        panel.plot(
            cols[0], rows[0], color=colour, marker="o", markersize=6, markerfacecolor="white"
        )
        place = {
            "textcoords": "offset points",
            "xytext": (4, 4),
            "fontsize": 9,
            "weight": "bold",
            "color": colour,
        }
        panel.annotate(str(head + 1), (cols[-1], rows[-1]), **place)


def _draw_moves(panel: Any, first: HeadSnapshot, last: HeadSnapshot) -> None:
    """Draws a straight line from each centre at one moment, marked by a ring, to the same centre at another."""
    for head, (start, end) in enumerate(zip(first.centres, last.centres, strict=True)):
        colour = COLOURS[head % len(COLOURS)]
        panel.plot([start[1], end[1]], [start[0], end[0]], color=colour, linewidth=1.5)
        panel.plot(
            start[1],
            start[0],
            color=colour,
            marker="o",
            markersize=6,
            markerfacecolor="white",
            zorder=4,
        )


def _sharpness_range(snapshot: HeadSnapshot) -> str:
    """Formats the smallest and the largest sharpness of heads, α = tr Σ⁻¹ / 4."""
    sharpness = np.trace(snapshot.precisions, axis1=1, axis2=2) / 4
    low, high = f"{sharpness.min():.2g}", f"{sharpness.max():.2g}"
    return low if low == high else f"{low}–{high}"


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D(
            [],
            [],
            label="centre, with the head's number",
            linestyle="none",
            marker="$1$",
            color="black",
        ),
        Patch(
            label="holds 50 % of its attention", facecolor=(COLOURS[0], 0.2), edgecolor=COLOURS[0]
        ),
        Patch(label="90 %", facecolor="none", edgecolor=COLOURS[0], linestyle="--"),
    ]
