"""`python -m benchmarks SUITE`: layers, networks or sequences against their peers; correctness before time."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from convattn.cli.app import new_app, run_app
from convattn.cli.output import OutputOrDefault, WholeNumber, first_free, print_record
from convattn.errors import MissingDependencyError

if TYPE_CHECKING:
    from benchmarks.record import CaseResult


_PROGRAM = "python -m benchmarks"
_ROUNDS, _QUICK_ROUNDS = 7, 3


def bench(
    suite: str,
    *,
    output: OutputOrDefault = None,
    quick: bool = False,
    cases: Annotated[tuple[str, ...], Parameter(name="--case")] = (),
    repeats: WholeNumber | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    json: bool = False,
) -> int:
    """Measure layers, converted networks or long sequences against their peers, and write tables.

    Whatever computes the same function is first checked against float64; what is wrong gets no time, and the exit code
    is 1. Then the contenders take turns, with subnormal numbers counted as zero. The folder holds the record as JSON,
    with every raw time and the environment, a page, and figures of time over size.

    Args:
        suite: What to measure: layers, networks (whole networks of timm as they are and converted to attention), or
            sequences (long ones).
        output: Folder to make; it must be new or empty. Without it bench-SUITE, or the first of bench-SUITE-2, -3, …
            that is free.
        quick: Take tiny sizes, to see in a few seconds that everything works; the times say nothing about speed.
        cases: Name of a case or of a group of cases, for instance quadratic-16-forward, scaling or resnet50; may be
            given more than once. Without it all.
        repeats: Number of rounds; in each every contender runs once. Without it 7, with --quick 3. Networks on a single
            image run twenty times as many.
        dtype: Dtype of weights and images: float32, bfloat16 or float64.
        device: Where to compute: cpu, cuda or cuda:N.
        json: Print the record as JSON, and nothing else.

    Returns:
        0, or 1 where a check failed.

    Raises:
        MissingDependencyError: A package is not installed without which the suite cannot run.
    """
    from importlib.util import find_spec

    from benchmarks import runner
    from benchmarks.setting import Setting
    from benchmarks.suites import choose, find_suite
    from convattn.files import new_folder
    from convattn.grid import whole_number

    measured = find_suite(suite)
    if find_spec(measured.needs) is None:  # before anything is measured
        raise MissingDependencyError(measured.needs, "bench")
    named = choose(measured.cases(quick), cases)
    setting = Setting(device, dtype)
    usual = _QUICK_ROUNDS if quick else _ROUNDS
    rounds = whole_number("--repeats", usual if repeats is None else repeats)
    folder = first_free(Path(f"bench-{suite}")) if output is None else output
    words = [suite, "--quick"] if quick else [suite]
    for name in cases:
        words += ["--case", name]
    words += ["--repeats", str(rounds), "--dtype", setting.dtype, "--device", setting.device]
    with new_folder(folder, "--output") as temporary:
        record = runner.run_suite(
            measured,
            named,
            setting,
            rounds=rounds,
            quick=quick,
            command=f"{_PROGRAM} {shlex.join(words)}",
            listener=None if json else _table_printer(measured.baselines),
        )
        page = runner.write_files(record, temporary).name
    verdict = "FAILED: a contender is wrong, see the tables"
    if record.passed:
        verdict = "every check passed"
    print_record(record, f"{verdict}\nwrote {folder}; look at {folder / page}", json=json)
    return 0 if record.passed else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: What follows the program's name; None takes it from the process.

    Returns:
        The exit code.
    """
    app = new_app(_PROGRAM, None)
    app.default(bench)
    return run_app(app, arguments)


def _table_printer(baselines: Sequence[str]) -> "Callable[[CaseResult], None]":
    """Makes the function that prints a table of each case."""
    from benchmarks.report import table
    from convattn.lab.tables import markdown_table

    def show(result: "CaseResult") -> None:
        heads, rows = table([result], baselines)
        text = markdown_table(heads, rows)
        print(f"{result.name}: {result.title}\n\n{text}\n", flush=True)  # noqa: T201

    return show


if __name__ == "__main__":
    import torch

    # Some processors multiply subnormal numbers ten times as slowly, and the weights of peers are full of them.
    # Threads take over what is set when they start, so this comes first.
    torch.set_flush_denormal(True)
    sys.exit(main())
