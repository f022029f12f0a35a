"""`convattn bench`: the layers against their peers, correctness before time."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from convattn.cli.options import AsJson, OutputOrDefault, WholeNumber, first_free
from convattn.cli.output import print_record
from convattn.errors import MissingDependencyError

if TYPE_CHECKING:
    from convattn.benchmark import Case, CaseResult, ScalingCurve

__all__ = ["bench"]

_ROUNDS, _QUICK_ROUNDS = 7, 3
_WIDTH = 180
"""Columns of a table that no terminal limits."""


def bench(
    *,
    suite: str = "layers",
    output: OutputOrDefault = None,
    quick: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    cases: Annotated[tuple[str, ...], Parameter(name="--case", negative="", show_default=False)] = (),
    repeats: Annotated[WholeNumber | None, Parameter(show_default=False)] = None,
    dtype: str = "float32",
    device: str = "cpu",
    json: AsJson = False,
) -> int:
    """Measure the layers against their peers, and write tables and a figure.

    Whatever computes the same function is first checked against the definition in float64; what is wrong gets no time,
    and the exit code is 1. Then the contenders take turns. The folder holds layers.json with every raw time and the
    environment, layers.md, scaling.png and scaling.svg.

    Args:
        suite: What to measure: layers.
        output: Folder to make; it must be new or empty. Without it bench-layers, or the first of bench-layers-2, -3, …
            that is free.
        quick: Take tiny sizes, to see in a few seconds that everything works; the times say nothing about speed.
        cases: Name of a case to measure, for instance quadratic-16-forward; may be given more than once. Without it
            all.
        repeats: Number of rounds; in each every contender runs once. Without it 7, with --quick 3.
        dtype: Dtype of weights and images: float32, bfloat16 or float64.
        device: Where to compute: cpu, cuda or cuda:N.
        json: Print the record as JSON, and nothing else.

    Returns:
        0, or 1 where a check failed.
    """
    from convattn.benchmark import Setting, choose, find_suite, run_layers, write_layers
    from convattn.files import new_folder

    _require_figures()
    chosen, setting = choose(find_suite(suite, quick=quick), cases), Setting(device, dtype)
    rounds = repeats if repeats is not None else _QUICK_ROUNDS if quick else _ROUNDS
    folder = first_free(Path(f"bench-{suite}")) if output is None else output
    with new_folder(folder, "--output") as temporary:
        record = run_layers(
            chosen,
            setting,
            rounds=rounds,
            quick=quick,
            command=_command(suite, quick, cases, rounds, setting.dtype, setting.device),
            listener=None if json else _table_printer(),
        )
        write_layers(record, temporary)
    verdict = "every check passed" if record.passed else "FAILED: a contender is wrong, see the tables"
    print_record(record, f"{verdict}\nwrote {folder}; look at {folder / 'layers.md'}", json=json)
    return 0 if record.passed else 1


def _require_figures() -> None:
    """Raises where matplotlib is not installed, before anything is measured."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingDependencyError("matplotlib", "bench")


def _command(suite: str, quick: bool, cases: Sequence[str], rounds: int, dtype: str, device: str) -> str:
    """Words the command that repeats the run."""
    words = ["convattn", "bench", "--suite", suite, *(["--quick"] if quick else [])]
    words += [word for name in cases for word in ("--case", name)]
    return shlex.join([*words, "--repeats", str(rounds), "--dtype", dtype, "--device", device])


def _table_printer() -> "Callable[[Case, CaseResult | tuple[ScalingCurve, ...]], None]":
    """Makes the function that prints a table of each case when it is done."""
    from rich.console import Console

    from convattn.benchmark import COLUMNS, SCALING_COLUMNS, CaseResult, case_rows, scaling_rows

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, emoji=False, highlight=False, width=_WIDTH)

    def show(case: "Case", found: "CaseResult | tuple[ScalingCurve, ...]") -> None:
        if isinstance(found, CaseResult):
            _print_table(console, f"{found.name}: {found.title}", COLUMNS, case_rows(found))
            return
        positions = max((curve.positions for curve in found), key=len)
        heads = (*SCALING_COLUMNS, *(f"ms, N = {number:,}" for number in positions))
        _print_table(console, f"{case.name}: {case.title}", heads, scaling_rows(found))

    return show


def _print_table(console: Any, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; a verdict that is bad is red on a terminal."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, title=title, title_justify="left", box=SIMPLE)
    for row in rows:
        table.add_row(*(Text(cell, style="red" if "FAILED" in cell else "") for cell in row))
    console.print(table)
    console.file.flush()
