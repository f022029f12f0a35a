"""Running a case with contenders: who takes part, who is right, how long they take, how much memory."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from convattn.benchmark.build import Setting, draw_images
from convattn.benchmark.cases import LayerCase
from convattn.benchmark.contenders import CONTENDERS, OURS, Contender
from convattn.benchmark.correctness import Truth
from convattn.benchmark.measure import NO_COUNTER, extra_memory, in_a_process_of_its_own, make_call, time_rounds
from convattn.benchmark.record import CaseResult, Check, Measurement
from convattn.benchmark.report import first_line
from convattn.errors import DeviceError, MissingDependencyError, install_hint

__all__ = ["measure_contender", "run_layer_case"]


def run_layer_case(case: LayerCase, setting: Setting, rounds: int) -> CaseResult:
    """Checks the contenders of a case, times those that are right in turns, and measures their memory.

    Args:
        case: The case.
        setting: Device and dtype.
        rounds: Number of rounds.

    Returns:
        What was found; a contender that is wrong has no times.
    """
    truth = Truth.of_case(case, setting)
    images = draw_images(case, setting)
    found = {name: _enter(name, case, setting, truth, images) for name in case.contenders}
    valid = {name: item for name, (item, note) in found.items() if item is not None and note.skipped is None}
    valid = {name: item for name, item in valid.items() if _right(found[name][1].check)}
    calls = {name: make_call(item.module, item.prepare(images), training=case.training) for name, item in valid.items()}
    seconds = time_rounds(calls, rounds=rounds, device=setting.torch_device)
    measurements = []
    for name, (_, measurement) in found.items():
        timed = replace(measurement, seconds=seconds.get(name, ()))
        measurements.append(_with_memory(timed, case, setting) if name in seconds and case.memory else timed)
    return CaseResult(case.name, case.title, case.batch, tuple(measurements))


def measure_contender(name: str, case: LayerCase, setting: Setting, threads: int) -> int | None:
    """Measures the memory of one call of one contender; meant for a process of its own.

    Args:
        name: Name of the contender.
        case: The case.
        setting: Device and dtype.
        threads: Number of threads.

    Returns:
        Bytes beyond weights and images; None where the system cannot tell.
    """
    torch.set_num_threads(threads)
    contender = CONTENDERS[name](case, setting)
    images = contender.prepare(draw_images(case, setting))
    small = contender.prepare(draw_images(replace(case, size=4, batch=1), setting))
    make_call(contender.module, small, training=case.training)()
    return extra_memory(make_call(contender.module, images, training=case.training), setting.torch_device)


def _enter(
    name: str, case: LayerCase, setting: Setting, truth: Truth, images: Tensor
) -> tuple[Contender | None, Measurement]:
    """Builds a contender, checks it, and if it is right calls it once on all images; or says why it does not run."""
    blank = Measurement(name, "", None, None, (), None, "", None)
    try:
        contender = CONTENDERS[name](case, setting)
    except MissingDependencyError as error:
        return None, replace(blank, skipped=f"not installed: {install_hint(error.package, error.extra)}")
    except DeviceError as error:
        return None, replace(blank, skipped=str(error))
    entered = replace(blank, note=contender.note, path=contender.path(case.batch, case.size))

    def attempt() -> Check | None:
        check = truth.check(contender) if contender.same_function else None
        if _right(check):
            make_call(contender.module, contender.prepare(images), training=case.training)()
        return check

    if name in OURS:
        return contender, replace(entered, check=attempt())
    check, skipped = _unless_it_fails(attempt)
    return contender, replace(entered, check=check, skipped=skipped)


def _unless_it_fails(attempt: Callable[[], Check | None]) -> tuple[Check | None, str | None]:
    """Tries a peer, which may lack a kernel for the case or need more memory than there is."""
    try:
        return attempt(), None
    except (RuntimeError, ValueError) as error:
        return None, f"did not run: {first_line(error)}"


def _right(check: Check | None) -> bool:
    return check is None or check.passed


def _with_memory(measurement: Measurement, case: LayerCase, setting: Setting) -> Measurement:
    threads = torch.get_num_threads()
    try:
        extra = in_a_process_of_its_own(measure_contender, measurement.contender, case, setting, threads)
    except (MemoryError, RuntimeError) as error:
        return replace(measurement, memory_note=f"not measured: {first_line(error)}")
    return replace(measurement, extra_memory=extra, memory_note=NO_COUNTER if extra is None else "")
