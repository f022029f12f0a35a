"""Running the suite "layers": case after case, then what it was run on, and files that are whole or not there."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from convattn.analysis.figures_scaling import TimedCurve, time_over_size
from convattn.benchmark.build import Setting
from convattn.benchmark.cases import Case, LayerCase, ScalingCase
from convattn.benchmark.layer_case import run_layer_case
from convattn.benchmark.measure import plain_float32
from convattn.benchmark.page import layers_page
from convattn.benchmark.record import BenchmarkRecord, CaseResult, ScalingCurve
from convattn.benchmark.scaling import run_scaling
from convattn.benchmark.training_case import run_training_case
from convattn.files import write_atomically
from convattn.grid import whole_number
from convattn.provenance import describe_hardware, describe_versions, find_revision

__all__ = ["Listener", "run_layers", "write_layers"]

Listener = Callable[[Case, CaseResult | tuple[ScalingCurve, ...]], None]
"""What is told of each case when it is done."""

_PACKAGES = ("torch", "numpy", "timm", "torchvision")

_NOT_COVERED = (
    "other processors and accelerators, numbers of threads, dtypes and versions than those above",
    "torch.compile of the layers, quantised weights, CUDA graphs",
    "1-D and 3-D layers, groups, strides, dilations, padding modes other than zeros",
    "trained weights: heads stand where the initialisation puts them, or at the taps of a random convolution",
    "gradients of hard heads, of the paths in the scaling, and of large images",
    "energy, and time to load or convert a model",
)


def run_layers(
    cases: Sequence[Case],
    setting: Setting,
    *,
    rounds: int,
    quick: bool = False,
    command: str = "",
    listener: Listener | None = None,
) -> BenchmarkRecord:
    """Runs cases of the suite "layers".

    Args:
        cases: The cases, in the order in which they are to run.
        setting: Device and dtype.
        rounds: Number of rounds, ≥ 1.
        quick: Whether the cases are those of tiny sizes, for the record.
        command: Command that repeats the run, for the record.
        listener: Called after each case with what was found.

    Returns:
        The record.

    Raises:
        ArgumentError: `rounds` is no integer of at least 1.
    """
    whole_number("rounds", rounds)
    started, began = datetime.now(UTC), time.perf_counter()
    results: list[CaseResult] = []
    curves: tuple[ScalingCurve, ...] = ()
    title = ""
    with plain_float32():
        for case in cases:
            if isinstance(case, ScalingCase):
                fitting = case.fitting()
                found = curves = run_scaling(fitting, setting, rounds)
                title = fitting.title + ("" if fitting == case else f" (not {case.channels}, for want of memory)")
            else:
                run = run_layer_case if isinstance(case, LayerCase) else run_training_case
                found = run(case, setting, rounds)  # type: ignore[arg-type]
                results.append(found)
            if listener is not None:
                listener(case, found)
    return BenchmarkRecord(
        suite="layers",
        quick=quick,
        device=setting.device,
        dtype=setting.dtype,
        rounds=rounds,
        cases=tuple(results),
        scaling=curves,
        scaling_title=title,
        missing=_missing(results),
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        hardware=describe_hardware(setting.torch_device),
        versions=describe_versions(_PACKAGES),
        revision=find_revision(),
        passed=all(item.passed for item in (*results, *curves)),
        not_covered=_NOT_COVERED,
    )


def write_layers(record: BenchmarkRecord, folder: Path) -> None:
    """Writes layers.json, layers.md and, where time over size was measured, scaling.png and scaling.svg.

    Args:
        record: What was found.
        folder: An empty folder.
    """
    record.save(folder / "layers.json")
    lines = [
        TimedCurve(curve.path, [n for n, _ in points], [t for _, t in points], curve.exponent)
        for curve in record.scaling
        if (points := curve.medians())
    ]
    figures = [time_over_size(folder / f"scaling.{form}", lines).name for form in ("svg", "png") if lines]
    write_atomically(folder / "layers.md", layers_page(record, figures[-1] if figures else None))


def _missing(results: Sequence[CaseResult]) -> dict[str, str]:
    """Lists the peers whose package is not installed, with the line that installs it."""
    skipped = {
        item.contender: item.skipped for result in results for item in result.measurements if item.skipped is not None
    }
    return {name: text for name, text in skipped.items() if text.startswith("not installed")}
