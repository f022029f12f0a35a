"""Figure of time over size."""

from pathlib import Path

from benchmarks.record import CaseResult, fit_exponent
from benchmarks.report import medians
from convattn.lab.figures import COLOURS, figure_files

_MARKERS = "os^Dv*XP"


def draw_time_over_size(path: Path, results: tuple[CaseResult, ...], *, fitted: bool) -> None:
    """Draws time against the number of pixels, on logarithmic scales."""
    with figure_files([path], (6.4, 4.4)) as figure:
        panel = figure.subplots()
        panel.set(xscale="log", yscale="log")
        panel.set(xlabel="number of pixels N", ylabel="time of one call (ms)")
        for number, (name, points) in enumerate(medians(results).items()):
            exponent = fit_exponent(points) if fitted else None
            fit = "" if exponent is None else f": time ∝ $N^{{{exponent:.2f}}}$"
            sizes, times = zip(*points, strict=True)
            panel.plot(
                sizes,
                [1000 * time for time in times],
                label=name + fit,
                color=COLOURS[number % len(COLOURS)],
                marker=_MARKERS[number % len(_MARKERS)],
            )
        panel.legend()
