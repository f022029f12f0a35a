"""Time and memory: contenders take turns in one process, and each has a process of its own for its memory."""

import ctypes
import gc
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NO_COUNTER = "measured on CUDA and Linux only"
"""Why there is no memory where the system cannot tell."""

_WARM_UPS = 1
_CPU = torch.device("cpu")


def make_call(
    module: nn.Module, x: Tensor, *, training: bool, upstream: Tensor | None = None
) -> Callable[[], None]:
    """Makes the call that is measured.

    Args:
        module: The module.
        x: Its input.
        training: Whether gradients of input and parameters are taken too; else there is no graph.
        upstream: The gradient of the output; x if none is given, for an output of the same shape.

    Returns:
        A function without arguments or result.
    """
    if not training:

        def infer() -> None:
            with torch.no_grad():
                module(x)

        return infer
    leaf, parameters = x.detach().requires_grad_(), list(module.parameters())

    def train() -> None:
        for tensor in (leaf, *parameters):
            tensor.grad = None
        module(leaf).backward(x if upstream is None else upstream)

    return train


def time_rounds(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    device: torch.device = _CPU,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Times calls in turns: in one round each runs once, and another one begins in the next.

    Args:
        calls: Functions by name; one round more runs before, untimed.
        rounds: Number of rounds, ≥ 1.
        device: Device that is waited for.
        clock: Tells the seconds; `time.process_time` is disturbed less by other programs.

    Returns:
        Seconds of each round, by name.
    """
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with _without_collector():
        for number in range(_WARM_UPS + rounds):
            first = number % max(len(names), 1)
            for name in names[first:] + names[:first]:
                _wait(device)
                began = clock()
                calls[name]()
                _wait(device)
                seconds[name].append(clock() - began)
    return {name: tuple(times[_WARM_UPS:]) for name, times in seconds.items()}


def ratios(seconds: Mapping[str, Sequence[float]], baseline: str) -> dict[str, list[float]]:
    """Divides the times of each contender by those of one of them, round by round."""
    divided = {}
    for name, times in seconds.items():
        pairs = zip(times, seconds[baseline], strict=True)
        divided[name] = [own / base for own, base in pairs]
    return divided


def extra_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Measures the largest memory of a call beyond what is held before it.

    On the CPU this is the peak of the resident memory: right for the first large call of a process, since memory that
    was freed but not given back is used again unseen. The peak is the kernel's VmHWM, set back before the call;
    ru_maxrss cannot be set back, and a child inherits its parent's.

    Args:
        call: What is measured; a small call of the same kind should have loaded all code before.
        device: Where it allocates.

    Returns:
        Bytes; None where the system cannot tell (neither CUDA nor Linux).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if not sys.platform.startswith("linux"):
        return None
    _give_back()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    call()
    return max(_resident("VmHWM") - before, 0)


def in_a_process_of_its_own(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a fresh interpreter.

    Args:
        function: A function that can be found by its module and name, also in a package that was started by `-m`.
        *arguments: What it is called with.

    Returns:
        What it returns.

    Raises:
        MemoryError: The process was killed, as the system does where memory runs out.
    """
    spec = sys.modules[function.__module__].__spec__
    module = function.__module__ if spec is None else spec.name
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_call, module, function.__name__, *arguments).result()
        except BrokenProcessPool:
            raise MemoryError("the process was killed") from None


def _call(module: str, name: str, *arguments: Any) -> Any:
    """Calls a function of a module by its name: that of `python -m` has no other in a fresh interpreter."""
    return getattr(importlib.import_module(module), name)(*arguments)


@contextmanager
def _without_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _give_back() -> None:
    """Returns freed memory to the system, where the C library can, so that it is seen when it is used again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(field: str) -> int:
    """Reads a size of this process from the kernel, in bytes."""
    found = re.search(
        rf"^{field}:\s+(\d+) kB$",
        Path("/proc/self/status").read_text(encoding="ascii"),
        re.MULTILINE,
    )
    assert found is not None
    return int(found[1]) * 1024
