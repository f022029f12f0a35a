"""Figures of conversions, and what they show: outputs on a photograph, errors over sharpness."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from convattn.analysis.canvas import COLOURS, figure_files
from convattn.errors import ArgumentError
from convattn.records import Record


@dataclass(frozen=True, eq=False)
class Comparison:
    """A convolution and the attention layer made from it, on one photograph.

    Attributes:
        photograph: Red, green, blue in [0, 1].
        names: What each output shows.
        kernels: The kernel of each output on grey pixels (summed over the input's channels).
        convolution: The convolution's outputs, in float64.
        attention: The attention layer's outputs.
        heads: Attention of one query pixel in the middle, by head; keys around that pixel.
        sharpness: α of the heads, in 1/pixel²; None of hard heads.
        unit: What rounding changes an output by, in units of the outputs.
    """

    photograph: Float[np.ndarray, "rows cols 3"]
    names: Sequence[str]
    kernels: Float[np.ndarray, "outputs kernel_rows kernel_cols"]
    convolution: Float64[np.ndarray, "outputs rows cols"]
    attention: Float[np.ndarray, "outputs rows cols"]
    heads: Float[np.ndarray, "heads key_rows key_cols"]
    sharpness: float | None
    unit: float


@dataclass(frozen=True)
class SharpnessCurve(Record):
    """Errors of converted convolutions over the sharpness of their heads, largest over convolutions and inputs.

    All errors are in units of `max|x̃| · max_o Σ_h ‖W_h[o]‖₁`, the largest output that an input of that size can have;
    so the a-priori bound is 2ε(α) for every convolution.

    Attributes:
        dims: Number of axes.
        dtype: "float32" or "float64".
        samples: Number of convolutions, each with an input of its own.
        sharpness: α in 1/pixel², rising.
        bound: 2ε(α).
        measured: Largest difference to the convolution in float64, over samples and outputs.
        relative: The same, in units of the convolution's own largest output.
        rounding: Largest difference that rounding explains, by the error budget.
    """

    dims: int
    dtype: str
    samples: int
    sharpness: tuple[float, ...]
    bound: tuple[float, ...]
    measured: tuple[float, ...]
    relative: tuple[float, ...]
    rounding: float

    def soft_until(self) -> float | None:
        """α from which the bound is below 1: below, it promises nothing; None where that is never."""
        return next((a for a, bound in zip(self.sharpness, self.bound, strict=True) if bound < 1), None)

    def floor_from(self) -> float | None:
        """α from which the bound is below rounding, so that a sharper head gains nothing; None where that is never."""
        return next((a for a, bound in zip(self.sharpness, self.bound, strict=True) if bound < self.rounding), None)


def convolution_and_attention(path: str | os.PathLike[str], comparison: Comparison) -> Path:
    """Draws photograph, attention of one pixel, and for each output kernel, convolution, attention and difference.

    Args:
        path: File to write; its ending is one of `FORMATS`.
        comparison: What to draw.

    Returns:
        The path.

    Raises:
        ArgumentError: The ending is another.
        MissingDependencyError: matplotlib is not installed.
    """
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
        differences = (comparison.attention - comparison.convolution) / comparison.unit
        limit = max(float(np.abs(differences).max()), 1.0)
        scale = {"cmap": "PuOr", "vmin": -limit, "vmax": limit, "interpolation": "nearest"}
        for output, (*row, last) in enumerate(axes):
            _draw_output(row, comparison, output)
            last.imshow(differences[output], **scale)
            last.set_axis_off()
        bar = below.colorbar(axes[0, 3].images[0], ax=axes[:, 3], aspect=40)
        bar.set_label(f"difference, in units of rounding (ε · largest output = {comparison.unit:.2g})")
    return Path(path)


def sharpness_regimes(path: str | os.PathLike[str], curves: Sequence[SharpnessCurve]) -> Path:
    """Draws measured error and a-priori bound over sharpness, and marks the regimes: soft, exponential decay, floor.

    Args:
        path: File to write; its ending is one of `FORMATS`.
        curves: A panel for each number of axes, a line for each dtype.

    Returns:
        The path.

    Raises:
        ArgumentError: There is no curve, or the ending is another.
        MissingDependencyError: matplotlib is not installed.
    """
    if not curves:
        raise ArgumentError("curves must hold at least one curve, but is empty")
    dims = sorted({curve.dims for curve in curves})
    with figure_files([path], (3.6 * len(dims) + 0.4, 4.4)) as figure:
        axes = figure.subplots(1, len(dims), squeeze=False, sharey=True)[0]
        for panel, number in zip(axes, dims, strict=True):
            _draw_regimes(panel, [curve for curve in curves if curve.dims == number])
            panel.set_title(f"{number}-D, {3**number} heads")
            panel.set_xlabel("sharpness α (1/pixel²)")
        axes[0].set_ylabel("largest error / largest possible output")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
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
    for panel, weights, title in zip((one, mean), (comparison.heads[0], comparison.heads.mean(0)), titles, strict=True):
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
        kernel.text(col, row, f"{weight:.3g}".replace("-", "−"), ha="center", va="center", fontsize=8)
    kernel.set(xticks=[], yticks=[], ylabel=comparison.names[output])
    kernel.spines[:].set_visible(False)
    low, high = np.quantile(convolution, [0.005, 0.995])
    for panel, image in ((left, convolution), (right, comparison.attention[output])):
        panel.imshow(image, cmap="gray", vmin=low, vmax=high)
        panel.set_axis_off()


def _draw_regimes(panel: Any, curves: Sequence[SharpnessCurve]) -> None:
    """Draws the curves of one number of axes, and the borders of the regimes."""
    first = curves[0]
    panel.set(xscale="log", yscale="log", ylim=(1e-18, 30), xlim=(first.sharpness[0], first.sharpness[-1]))
    panel.set_xticks([1, 3, 10, 30, 100], labels=["1", "3", "10", "30", "100"])
    panel.plot(first.sharpness, first.bound, color="black", linestyle="--", label="a-priori bound 2ε(α)")
    start = first.soft_until()
    if start is not None:
        panel.axvspan(first.sharpness[0], start, color="0.9", linewidth=0)
        panel.text(first.sharpness[0] * 1.05, 3e-18, "soft", rotation=90, va="bottom", fontsize=9)
        panel.text(start * 1.1, 1e-14, "exponential\ndecay", va="bottom")
    for curve, colour, size, height in zip(curves, COLOURS, (6, 3), (12, 4e-5), strict=False):
        line = {"marker": "o", "markersize": size, "markerfacecolor": "white"}
        panel.plot(curve.sharpness, curve.measured, color=colour, label=f"measured, {curve.dtype}", **line)
        panel.axhline(curve.rounding, color=colour, linestyle=":", label=f"rounding, {curve.dtype}")
        floor = curve.floor_from()
        if floor is not None:
            panel.axvline(floor, color=colour, linewidth=0.8)
            panel.text(floor * 1.08, height, f"{curve.dtype}\nfloor", color=colour, fontsize=8, va="top")
