"""Figures of trained heads; every figure is written whole or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from convattn.errors import ArgumentError, optional_module, require_name
from convattn.files import AnyPath, new_file
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.wording import counted

FORMATS: dict[str, Any] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""What a figure can be written as, by the ending of its file, and what is left out, so that bytes do not change."""

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
def figure_files(paths: Sequence[AnyPath], size: tuple[float, float]) -> Iterator[Any]:
    """Makes an empty figure of matplotlib, and writes it to all paths when the block ends, each whole or not at all.

    `size` is its width and height in inches. An ending that is not in `FORMATS` raises UnknownNameError, and
    MissingDependencyError says that matplotlib is not installed.
    """
    forms = {path: Path(path).suffix.removeprefix(".").lower() for path in paths}
    for path, form in forms.items():
        require_name(f"ending of the figure {path}:", form, FORMATS)
    matplotlib = optional_module("matplotlib.figure", "analyze")
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        yield figure
        for path, form in forms.items():
            with new_file(path) as file:
                figure.savefig(file, format=form, dpi=150, metadata=FORMATS[form])


_FLATTEST = 1e-4
"""Smallest eigenvalue of Σ⁻¹ that is drawn, in 1/pixel²: its 50 % ellipse is 118 pixels long, out of sight."""

_ALIKE = 0.25
"""Pixels along an axis up to which the centres of heads count as one place."""

_TAPS = {"color": "0.6", "linewidth": 0.8, "zorder": 2}
"""Style of the pixels of a 3 x 3 kernel."""

_PANEL, _FRAME = 3.3, 0.4
"""Side of a panel, and what the labels of a row or column of panels take, in inches."""


def draw_heads(
    paths: Sequence[AnyPath],
    snapshots: Sequence[HeadSnapshot],
    *,
    title: str,
    trace: Sequence[HeadSnapshot] = (),
    columns: int = 3,
) -> None:
    """Draws a panel for each snapshot, at most `columns` side by side; those of several moments name theirs.

    With a `trace`, the snapshots of one layer over training, the first panel shows the path of each head's centre.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, figures 3, 4 and 12 to 14.
    """
    drawn = [*trace, *snapshots]
    if not drawn:
        raise ArgumentError("snapshots must hold at least one layer, but is empty")
    count = len(snapshots) + bool(trace)
    across, down = min(count, columns), -(-count // columns)
    size = (
        max(_PANEL * across + _FRAME, 6.0),
        (_PANEL + 0.25) * down + 1.2,
    )  # a narrow figure still holds its title
    with figure_files(paths, size) as figure:
        figure.suptitle(title)
        axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        panels = list(axes.flat[:count])
        if trace:
            first = panels.pop(0)
            _draw_paths(first, np.stack([snapshot.centres for snapshot in trace]))
            first.set_title("centres from start (○) to end")
        for panel, snapshot in zip(panels, snapshots, strict=True):
            _draw_layer(panel, snapshot)
            panel.set_title(f"layer {snapshot.layer + 1}: {_moment(snapshot, drawn)}")
        farthest = max(float(np.abs(one.centres).max(initial=0.0)) for one in drawn)
        reach = farthest + 2.5
        for panel in axes.flat:  # the same square for all
            for edge in (-1.5, -0.5, 0.5, 1.5):  # of the taps of a 3 x 3 kernel
                panel.plot([edge, edge], [-1.5, 1.5], **_TAPS)
                panel.plot([-1.5, 1.5], [edge, edge], **_TAPS)
            panel.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
            panel.locator_params(integer=True, nbins=8, steps=[1, 2, 5, 10])
        for panel in axes.flat[count:]:
            panel.set_visible(False)
        for panel in axes.flat[count - across : count]:  # the lowest of each column
            panel.set_xlabel("column shift (pixels)")
            panel.tick_params(labelbottom=True)
        figure.supylabel("row shift (pixels)", fontsize=10)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=min(across, 3))


def _moment(snapshot: HeadSnapshot, snapshots: Sequence[HeadSnapshot]) -> str:
    """Names a moment by its epoch, or by its step if several have the same epoch; of only one, counts its heads."""
    steps = {other.step for other in snapshots}
    if len(steps) == 1:
        return counted(len(snapshot.centres), "head")
    if snapshot.step == 0:
        return "start"
    alike = {other.step for other in snapshots if other.epoch == snapshot.epoch}
    if len(alike) == 1:
        return f"epoch {snapshot.epoch}"
    return f"step {snapshot.step:,} of {max(steps):,}"


def _draw_layer(panel: Any, snapshot: HeadSnapshot) -> None:
    """Draws the heads of one layer around the query, which is at (0, 0)."""
    from matplotlib.patches import Ellipse

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
            panel.add_patch(Ellipse(centre[::-1], first, second, angle=angle, **outline))
    for (row, col), heads in _labels(snapshot.centres):
        box = {"boxstyle": "circle,pad=0.1", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
        panel.text(
            col,
            row,
            heads,
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
        panel.plot(cols[0], rows[0], "o", color=colour, markersize=6, markerfacecolor="white")
    for (row, col), heads in _labels(centres[-1]):
        place = {"xytext": (4, 4), "fontsize": 9, "weight": "bold"}
        panel.annotate(heads, (col, row), textcoords="offset points", **place)


def _labels(
    centres: Float[np.ndarray, "heads 2"],
) -> Iterator[tuple[Float[np.ndarray, "2"], str]]:
    """Yields places, and the numbers of the heads with centres there; of more than three, how many there are."""
    left = dict(enumerate(centres, start=1))
    while left:
        first = next(iter(left.values()))
        here = [head for head, centre in left.items() if np.abs(centre - first).max() <= _ALIKE]
        for head in here:
            del left[head]
        yield first, "+".join(map(str, here)) if len(here) <= 3 else f"{len(here)} heads"


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D(
            [],
            [],
            label="centre, with its heads' numbers; squares: 3 x 3 taps",
            linestyle="none",
            marker="$1$",
            color="black",
        ),
        Patch(
            label="holds 50 % of its attention", facecolor=(COLOURS[0], 0.2), edgecolor=COLOURS[0]
        ),
        Patch(label="90 %", facecolor="none", edgecolor=COLOURS[0], linestyle="--"),
    ]
