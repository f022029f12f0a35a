"""Running a suite: case after case, then what it was run on, and files that are whole or not there."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.cases.case import Case, Contender
from benchmarks.figure import draw_time_over_size
from benchmarks.measure import (
    NO_COUNTER,
    extra_memory,
    in_a_process_of_its_own,
    time_rounds,
)
from benchmarks.page import figure_of, suite_page
from benchmarks.record import BenchmarkRecord, CaseResult, Check, Measurement
from benchmarks.setting import Setting
from benchmarks.suites import Suite, find_suite
from convattn.files import write_atomically
from convattn.functional.torch_modes import plain_float32
from convattn.grid import whole_number
from convattn.provenance import describe_hardware, describe_versions, find_revision


def run_suite(
    suite: Suite,
    cases: Sequence[Case],
    setting: Setting,
    *,
    rounds: int,
    quick: bool = False,
    command: str = "",
    listener: Callable[[CaseResult], None] | None = None,
) -> BenchmarkRecord:
    """Runs cases of a suite.

    Args:
        suite: The suite.
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
        MissingDependencyError: A package is not installed that a whole case needs.
    """
    whole_number("rounds", rounds)
    started, began = datetime.now(UTC), time.perf_counter()
    results: list[CaseResult] = []
    with plain_float32():
        for case in cases:
            results.append(run_case(case, setting, rounds))
            if listener is not None:
                listener(results[-1])
    return BenchmarkRecord(
        suite=suite.name,
        quick=quick,
        device=setting.device,
        dtype=setting.dtype,
        rounds=rounds,
        cases=tuple(results),
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        hardware=describe_hardware(setting.torch_device) | _subnormal_numbers(),
        versions=describe_versions(suite.packages),
        revision=find_revision(),
        passed=all(result.passed for result in results),
        not_covered=suite.not_covered,
    )


def run_case(case: Case, setting: Setting, rounds: int) -> CaseResult:
    """Checks the contenders of a case, times those that are right in turns, and measures their memory."""
    entered = {name: _enter(name, build) for name, build in case.contenders(setting).items()}
    calls = {name: item.call for name, (item, found) in entered.items() if found.right}
    seconds = time_rounds(calls, rounds=rounds * case.turns, device=setting.torch_device)
    measurements = []
    for name, (_, found) in entered.items():
        timed = replace(found, seconds=seconds.get(name, ()))
        measurements.append(
            _with_memory(timed, case, setting) if name in calls and case.memory else timed
        )
    images, _, *spatial = case.shape
    pixels = torch.Size(spatial).numel()
    return CaseResult(
        case.name, case.group or case.name, case.title, images, pixels, tuple(measurements)
    )


def measure_memory(name: str, case: Case, setting: Setting, threads: int) -> int | None:
    """Measures the memory of one call of one contender, in bytes; meant for a process of its own."""
    torch.set_num_threads(threads)
    contender = case.contenders(setting)[name]()
    if contender.warm_up is not None:
        contender.warm_up()
    return extra_memory(contender.call, setting.torch_device)


def write_files(record: BenchmarkRecord, folder: Path) -> Path:
    """Writes the record, its page and its figures into an empty folder, and returns the path of the page."""
    suite = find_suite(record.suite)
    record.save(folder / f"{suite.file}.json")
    for name, results in record.groups().items():
        if figure_of(results):
            draw_time_over_size(folder / f"{name}.png", results, fitted=not record.quick)
    return write_atomically(folder / f"{suite.file}-tables.md", suite_page(record))


def _enter(name: str, build: Callable[[], Contender]) -> tuple[Contender, Measurement]:
    """Builds a contender, checks it, and if it is right calls it once; or says why it does not run."""
    contender = build()
    note, path = contender.describe()
    entered = Measurement(name, note, path, None, (), contender.weights, None, "", None)
    try:
        return contender, replace(entered, check=_attempt(contender))
    except (RuntimeError, ValueError) as error:
        if contender.ours:
            raise
        # a peer may lack a kernel for the case, or need more memory than there is
        return contender, replace(entered, skipped=f"did not run: {_first_line(error)}")


def _attempt(contender: Contender) -> Check | None:
    check = None if contender.check is None else contender.check()
    if check is None or check.passed:
        contender.call()
    return check


def _with_memory(measurement: Measurement, case: Case, setting: Setting) -> Measurement:
    threads = torch.get_num_threads()
    try:
        extra = in_a_process_of_its_own(
            measure_memory, measurement.contender, case, setting, threads
        )
    except (MemoryError, RuntimeError) as error:
        return replace(measurement, memory_note=f"not measured: {_first_line(error)}")
    return replace(measurement, extra_memory=extra, memory_note=NO_COUNTER if extra is None else "")


def _subnormal_numbers() -> dict[str, str]:
    """Tells, for the record, what the processor does with numbers below the smallest normal one."""
    smallest = torch.full((2,), torch.finfo(torch.float32).tiny)
    return {
        "subnormal_numbers": "kept"
        if (smallest / 2).any()
        else "counted as zero, for every contender"
    }


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's message; what follows in torch's is for those who work on torch."""
    return str(error).strip().partition("\n")[0]
