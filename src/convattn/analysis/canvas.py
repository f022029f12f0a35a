"""Figures of matplotlib that are written to files; the state of matplotlib does not change.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; no meaning is carried by colour alone.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convattn.errors import ArgumentError, MissingDependencyError, must_be
from convattn.files import write_atomically

FORMATS = ("png", "svg", "pdf")
"""What a figure can be written as, by the ending of its file."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31", "#7F7F7F")
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
def figure_files(paths: Sequence[str | os.PathLike[str]], size: tuple[float, float]) -> Iterator[Any]:
    """Makes an empty figure of matplotlib, and writes it to all paths when the block ends, each whole or not at all.

    `size` is its width and height in inches. An ending that is not in `FORMATS` raises ArgumentError, and
    MissingDependencyError says that matplotlib is not installed.
    """
    forms = [Path(path).suffix.removeprefix(".").lower() for path in paths]
    for path, form in zip(paths, forms, strict=True):
        if form not in FORMATS:
            raise ArgumentError(must_be("path", f"a file that ends in {', '.join(FORMATS)}", str(path)))
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
            undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
            figure.savefig(buffer, format=form, dpi=150, metadata=undated)
    for path, buffer in zip(paths, buffers, strict=True):
        write_atomically(path, buffer.getvalue())


def add_ellipse(panel: Any, centre: tuple[float, float], axes: tuple[float, float], **style: Any) -> None:
    """Adds an ellipse at a horizontal and vertical place, with the lengths of its axes and a style of matplotlib."""
    from matplotlib.patches import Ellipse

    panel.add_patch(Ellipse(centre, *axes, **style))


def line_key(label: str, **style: Any) -> Any:
    """Makes the handle of a legend's entry that shows a line or a marker, as `matplotlib.lines.Line2D` draws it."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def patch_key(label: str, **style: Any) -> Any:
    """Makes the handle of a legend's entry that shows a coloured box, as `matplotlib.patches.Patch` draws it."""
    from matplotlib.patches import Patch

    return Patch(label=label, **style)
