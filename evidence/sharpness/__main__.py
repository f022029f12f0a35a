"""How far attention of finite sharpness is from its convolution: measured errors against the a-priori bound.

Converts random 3-wide convolutions of one, two and three axes at each sharpness α, runs each on an input of its own,
and compares with the convolution in float64. Every single error must be within bound + rounding, or the script fails.
Writes sharpness.json and sharpness.png:

    python -m evidence.sharpness
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn.budget import budget, roundings
from convattn.convert import conv_to_attention
from convattn.convert.taps import AnyConvolution
from convattn.encodings import off_centre_mass
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.tables import markdown_table
from convattn.record import Record
from evidence.results import PAGES, environment, new_parser, publish

SHARPNESS = (
    1,
    1.5,
    2,
    2.5,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    16,
    18,
    20,
    23,
    26,
    30,
    35,
    40,
    46,
    60,
    80,
    100,
    150,
    200,
)
TABULATED = (1, 2, 3, 5, 10, 20, 46, 100, 200)
SAMPLES = 10
CHANNELS = (3, 5)
SIZES = {1: (61,), 2: (13, 11), 3: (7, 5, 6)}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class SharpnessCurve(Record):
    """Errors of converted convolutions over the sharpness of their heads, largest over convolutions and inputs.

    All errors are in units of `max|x̃| · max_o Σ_h ‖W_h[o]‖₁`, the largest output that an input of that size can have;
    so the a-priori bound is 2ε(α) for every convolution.
    """

    dims: int  # Number of axes
    dtype: str  # "float32" or "float64"
    samples: int  # Number of convolutions, each with an input of its own
    sharpness: tuple[float, ...]  # α in 1/pixel², rising
    bound: tuple[float, ...]  # 2ε(α)
    measured: tuple[
        float, ...
    ]  # Largest difference to the convolution in float64, over samples and outputs
    relative: tuple[float, ...]  # The same, in units of the convolution's own largest output
    rounding: float  # Largest difference that rounding explains, by the error budget

    def soft_until(self) -> float | None:
        """α from which the bound is below 1: below, it promises nothing; None where that is never."""
        return self._bound_below(1.0)

    def floor_from(self) -> float | None:
        """α from which the bound is below rounding, so that a sharper head gains nothing; None where that is never."""
        return self._bound_below(self.rounding)

    def _bound_below(self, limit: float) -> float | None:
        for sharpness, bound in zip(self.sharpness, self.bound, strict=True):
            if bound < limit:
                return sharpness
        return None


@dataclass(frozen=True)
class Case:
    """A convolution, an input, and what the convolution gives: in float64, and by a second road in its own dtype."""

    conv: nn.Conv1d | nn.Conv2d | nn.Conv3d
    x: Tensor
    high: Tensor
    lows: list[Tensor]

    @property
    def unit(self) -> float:
        """The largest output that an input of this size can have, bias apart: max|x| · max_o Σ_t ‖W[t][o]‖₁."""
        weights = self.conv.weight.double().abs().flatten(1).sum(1)
        return (self.x.double().abs().max() * weights.max()).item()


def in_one_product(conv: AnyConvolution, x: Tensor) -> Tensor:
    """Computes a zero-padded convolution of 3 taps along each axis as one product of matrices."""
    dims = x.ndim - 2
    taps = nn.functional.pad(x, (1, 1) * dims)
    for axis in range(dims):
        taps = taps.unfold(2 + axis, 3, 1)
    windows = taps.movedim(1, 1 + dims).flatten(1 + dims)
    return nn.functional.linear(windows, conv.weight.flatten(1), conv.bias).movedim(-1, 1)


def cases(dims: int, dtype: torch.dtype) -> Iterator[Case]:
    """Draws convolutions as PyTorch initialises them, zero-padded, and standard normal inputs."""
    for seed in range(SAMPLES):
        torch.manual_seed(seed)
        conv = CONVOLUTIONS[dims](*CHANNELS, kernel_size=3, padding=1).to(dtype)
        x = torch.randn(2, CHANNELS[0], *SIZES[dims], dtype=dtype)
        exact = copy.deepcopy(conv).double()
        yield Case(conv, x, exact(x.double()), roundings(in_one_product, conv, x))


def measure(dims: int, dtype: torch.dtype) -> SharpnessCurve:
    """Measures one curve, and checks every error against bound and rounding."""
    drawn = list(cases(dims, dtype))
    allowed = [budget(case.high, case.lows) for case in drawn]
    measured, relative, bounds = [], [], []
    for sharpness in SHARPNESS:
        bound = 2 * off_centre_mass(sharpness, dims)
        in_units, in_outputs = [], []
        for case, rounding in zip(drawn, allowed, strict=True):
            layer, certificate = conv_to_attention(case.conv, sharpness=sharpness)
            assert certificate.verdict != "failed", certificate.summary()
            error = (layer(case.x).double() - case.high).abs().max().item()
            assert error <= bound * case.unit + rounding, (dims, dtype, sharpness, error)
            in_units.append(error / case.unit)
            in_outputs.append(error / case.high.abs().max().item())
        bounds.append(bound)
        measured.append(max(in_units))
        relative.append(max(in_outputs))
    return SharpnessCurve(
        dims=dims,
        dtype=str(dtype).removeprefix("torch."),
        samples=SAMPLES,
        sharpness=tuple(map(float, SHARPNESS)),
        bound=tuple(bounds),
        measured=tuple(measured),
        relative=tuple(relative),
        rounding=max(error / case.unit for error, case in zip(allowed, drawn, strict=True)),
    )


def sharpness_regimes(path: Path, curves: Sequence[SharpnessCurve]) -> None:
    """Draws measured error and a-priori bound over sharpness, and marks the regimes: soft, exponential decay, floor.

    There is a panel for each number of axes, and a line for each dtype.
    """
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


def _draw_regimes(panel: Any, curves: Sequence[SharpnessCurve]) -> None:
    """Draws the curves of one number of axes, and the borders of the regimes."""
    first = curves[0]
    panel.set(
        xscale="log", yscale="log", ylim=(1e-18, 30), xlim=(first.sharpness[0], first.sharpness[-1])
    )
    panel.set_xticks([1, 3, 10, 30, 100], labels=["1", "3", "10", "30", "100"])
    panel.plot(
        first.sharpness, first.bound, color="black", linestyle="--", label="a-priori bound 2ε(α)"
    )
    start = first.soft_until()
    if start is not None:
        panel.axvspan(first.sharpness[0], start, color="0.9", linewidth=0)
        panel.text(first.sharpness[0] * 1.05, 3e-18, "soft", rotation=90, va="bottom", fontsize=9)
        panel.text(start * 1.1, 1e-14, "exponential\ndecay", va="bottom")
    for curve, colour, size, height in zip(curves, COLOURS, (6, 3), (12, 4e-5), strict=False):
        line = {"marker": "o", "markersize": size, "markerfacecolor": "white"}
        panel.plot(
            curve.sharpness, curve.measured, color=colour, label=f"measured, {curve.dtype}", **line
        )
        panel.axhline(curve.rounding, color=colour, linestyle=":", label=f"rounding, {curve.dtype}")
        floor = curve.floor_from()
        if floor is not None:
            panel.axvline(floor, color=colour, linewidth=0.8)
            panel.text(
                floor * 1.08, height, f"{curve.dtype}\nfloor", color=colour, fontsize=8, va="top"
            )


def table(curves: Sequence[SharpnessCurve]) -> str:
    """Tabulates errors at some sharpnesses."""
    by_kind = {(curve.dims, curve.dtype): curve for curve in curves}
    planar = by_kind[2, "float32"]
    columns = {
        "bound 2ε(α), 2-D": planar.bound,
        "1-D float32": by_kind[1, "float32"].measured,
        "2-D float32": planar.measured,
        "3-D float32": by_kind[3, "float32"].measured,
        "2-D float64": by_kind[2, "float64"].measured,
        "2-D float32, relative": planar.relative,
    }
    rows = []
    for sharpness in TABULATED:
        place = SHARPNESS.index(sharpness)
        rows.append([f"{sharpness}", *(f"{numbers[place]:.1e}" for numbers in columns.values())])
    return markdown_table(["α (1/pixel²)", *columns], rows)


def regimes(curves: Sequence[SharpnessCurve]) -> str:
    """Tabulates where each curve changes its regime."""
    rows = []
    for curve in curves:
        borders = [f"{curve.soft_until():g}", f"{curve.floor_from():g}"]
        rows.append([f"{curve.dims}", curve.dtype, *borders, f"{curve.rounding:.1e}"])
    names = ["axes", "dtype", "bound below 1 from α =", "bound below rounding from α =", "rounding"]
    return markdown_table(names, rows)


def read_curves(content: Mapping[str, Any]) -> list[SharpnessCurve]:
    """Reads the curves of a record."""
    return [SharpnessCurve.from_json(json.dumps(curve)) for curve in content["curves"]]


def decay(curves: Sequence[SharpnessCurve]) -> list[float]:
    """Lists errors as shares of the bound, where it is below 1 and far above rounding."""
    shares = []
    for curve in curves:
        for error, bound in zip(curve.measured, curve.bound, strict=True):
            if curve.rounding * 100 < bound < 1:
                shares.append(error / bound)
    return shares


def soft_until(curves: Sequence[SharpnessCurve]) -> str:
    """Words the sharpness below which the bound of two dimensions promises nothing."""
    return f"{next(curve.soft_until() for curve in curves if curve.dims == 2):g}"


def main() -> None:
    """Measures all curves, and writes record, figure and page."""
    new_parser(__doc__).parse_args()
    with torch.inference_mode():
        curves = [measure(dims, dtype) for dims in SIZES for dtype in DTYPES]
    sharpness_regimes(PAGES / "sharpness.png", curves)
    rows = [json.loads(curve.to_json()) for curve in curves]
    publish(__file__, {**environment(__file__), "curves": rows})


if __name__ == "__main__":
    main()
