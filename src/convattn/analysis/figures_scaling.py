"""Figure of time against size."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convattn.analysis.canvas import COLOURS, figure_file
from convattn.errors import ArgumentError

__all__ = ["TimedCurve", "time_over_size"]

_MARKERS = "os^Dv*XP"


@dataclass(frozen=True)
class TimedCurve:
    """Times of one way to compute.

    Attributes:
        name: Its name.
        positions: Numbers of pixels N.
        seconds: Time of each, in seconds.
        exponent: p of the fit of time to N^p; None without a fit.
    """

    name: str
    positions: Sequence[int]
    seconds: Sequence[float]
    exponent: float | None


def time_over_size(path: str | os.PathLike[str], curves: Sequence[TimedCurve]) -> Path:
    """Draws time against the number of pixels, both on logarithmic scales, with the fitted exponents in the legend.

    Args:
        path: File to write; its ending is one of `convattn.analysis.canvas.FORMATS`.
        curves: What to draw.

    Returns:
        The path.

    Raises:
        ArgumentError: There is no curve, or the ending is another.
        MissingDependencyError: matplotlib is not installed.
    """
    if not curves:
        raise ArgumentError("curves must hold at least one curve, but is empty")
    with figure_file(path, (6.4, 4.4)) as figure:
        panel = figure.subplots()
        panel.set(xscale="log", yscale="log", xlabel="number of pixels N", ylabel="time of one image (ms)")
        for number, curve in enumerate(curves):
            fit = "" if curve.exponent is None else f": time ∝ $N^{{{curve.exponent:.2f}}}$"
            look = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
            panel.plot(curve.positions, [1000 * time for time in curve.seconds], label=curve.name + fit, **look)
        panel.legend()
    return Path(path)
