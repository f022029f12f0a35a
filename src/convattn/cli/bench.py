"""`convattn bench`: layers against their peers, or converted networks against the original; correctness before time."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from convattn.cli.options import AsJson, OutputOrDefault, WholeNumber, first_free
from convattn.cli.output import print_record
from convattn.errors import MissingDependencyError

if TYPE_CHECKING:
    from convattn.benchmark import (
        BenchmarkRecord,
        Case,
        CaseResult,
        NetworkCase,
        NetworkResult,
        NetworksRecord,
        ScalingCurve,
        Setting,
    )

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
    """Measure the layers against their peers, or converted networks, and write tables.

    Whatever computes the same function is first checked against float64; what is wrong gets no time, and the exit code
    is 1. Then the contenders take turns. The folder holds layers.json with every raw time and the environment,
    layers.md, scaling.png and scaling.svg; of networks it holds networks-speed.json and networks-speed.md.

    Args:
        suite: What to measure: layers, or networks (whole networks of timm as they are and converted to attention).
        output: Folder to make; it must be new or empty. Without it bench-layers, or the first of bench-layers-2, -3, …
            that is free.
        quick: Take tiny sizes, to see in a few seconds that everything works; the times say nothing about speed.
        cases: Name of a case to measure, for instance quadratic-16-forward or resnet50; may be given more than once.
            Without it all.
        repeats: Number of rounds; in each every contender runs once. Without it 7, with --quick 3. Networks on a single
            image run twenty times as many.
        dtype: Dtype of weights and images: float32, bfloat16 or float64.
        device: Where to compute: cpu, cuda or cuda:N.
        json: Print the record as JSON, and nothing else.

    Returns:
        0, or 1 where a check failed.
    """
    from convattn.benchmark import Setting, choose, find_suite
    from convattn.files import new_folder
    from convattn.grid import whole_number

    _require_packages(suite)
    chosen, setting = choose(find_suite(suite, quick=quick), cases), Setting(device, dtype)
    usual = _QUICK_ROUNDS if quick else _ROUNDS
    rounds = whole_number("--repeats", usual if repeats is None else repeats)
    folder = first_free(Path(f"bench-{suite}")) if output is None else output
    command = _command(suite, quick, cases, rounds, setting.dtype, setting.device)
    with new_folder(folder, "--output") as temporary:
        record = _run(suite, chosen, setting, temporary, rounds=rounds, quick=quick, command=command, show=not json)
    verdict = "every check passed" if record.passed else "FAILED: a contender is wrong, see the tables"
    page = "networks-speed.md" if suite == "networks" else "layers.md"
    print_record(record, f"{verdict}\nwrote {folder}; look at {folder / page}", json=json)
    return 0 if record.passed else 1


def _run(
    suite: str,
    cases: "Sequence[Case]",
    setting: "Setting",
    folder: Path,
    *,
    rounds: int,
    quick: bool,
    command: str,
    show: bool,
) -> "BenchmarkRecord | NetworksRecord":
    """Runs cases of a suite, shows each when it is done, and writes the suite's files."""
    from convattn.benchmark import NetworkCase, run_layers, run_networks, write_layers, write_networks

    if suite == "networks":
        networks = [case for case in cases if isinstance(case, NetworkCase)]
        listener = _network_printer() if show else None
        found = run_networks(networks, setting, rounds=rounds, quick=quick, command=command, listener=listener)
        write_networks(found, folder)
        return found
    listener = _layer_printer() if show else None
    record = run_layers(cases, setting, rounds=rounds, quick=quick, command=command, listener=listener)
    write_layers(record, folder)
    return record


def _require_packages(suite: str) -> None:
    """Raises where what a suite needs is not installed, before anything is measured."""
    from importlib.util import find_spec

    needed = "timm" if suite == "networks" else "matplotlib"
    if find_spec(needed) is None:
        raise MissingDependencyError(needed, "bench")


def _command(suite: str, quick: bool, cases: Sequence[str], rounds: int, dtype: str, device: str) -> str:
    """Words the command that repeats the run."""
    words = ["convattn", "bench", "--suite", suite, *(["--quick"] if quick else [])]
    words += [word for name in cases for word in ("--case", name)]
    return shlex.join([*words, "--repeats", str(rounds), "--dtype", dtype, "--device", device])


def _layer_printer() -> "Callable[[Case, CaseResult | tuple[ScalingCurve, ...]], None]":
    """Makes the function that prints a table of each case of the suite "layers"."""
    from convattn.benchmark import COLUMNS, CaseResult, case_rows, scaling_columns, scaling_rows

    console = _console()

    def show(case: "Case", found: "CaseResult | tuple[ScalingCurve, ...]") -> None:
        if isinstance(found, CaseResult):
            _print_table(console, f"{found.name}: {found.title}", COLUMNS, case_rows(found))
            return
        _print_table(console, f"{case.name}: {case.title}", scaling_columns(found), scaling_rows(found))

    return show


def _network_printer() -> "Callable[[NetworkCase, tuple[NetworkResult, ...]], None]":
    """Makes the function that prints a table of each case of the suite "networks"."""
    from convattn.benchmark import NETWORK_COLUMNS, network_rows

    console = _console()

    def show(case: "NetworkCase", found: "tuple[NetworkResult, ...]") -> None:
        _print_table(console, f"{case.name}: {case.title}", NETWORK_COLUMNS, network_rows(found))

    return show


def _console() -> Any:
    """Makes the terminal, or what stands in its place."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, highlight=False, width=_WIDTH)


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
