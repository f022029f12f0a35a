"""What the tests take of the machine: how many processes, a CUDA device only where asked for, and what it may lack."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

MOST_WORKERS = 16
WORKER_MEMORY = 2.5 * 2**30  # A process grows to 2.3 GiB in the whole suite
LACKING = "Skipped: lacking: "  # Begins the reason of a test that was skipped for want of something
DEVICES = ("cpu", "cuda")  # Values of DEVICE: on which the tests of tests/cuda run
NO_DEVICE = "these tests need a CUDA device, and torch finds none; `DEVICE=cpu make test-cuda` runs them on the CPU"
WORKERS = pytest.StashKey[str]()  # How many processes run, and why


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Gives --numprocesses=auto as many processes as cores and memory allow; xdist's own variable comes first."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    cores = _cores()
    memory = _memory()
    workers = count_workers(cores, memory)
    config.stash[WORKERS] = (
        f"workers: {workers} ({cores} cores and {memory / 2**30:.1f} GiB free; "
        f"{WORKER_MEMORY / 2**30} GiB for each, {MOST_WORKERS} at most)"
    )
    return workers


def pytest_report_header(config):
    return config.stash.get(WORKERS, None)


def pytest_configure(config):
    """Hides CUDA devices from the tests and from every process that they start, unless asked for by `-m cuda`."""
    device = os.environ.get("DEVICE", "cuda")
    if device not in DEVICES:
        raise pytest.UsageError(f"DEVICE must be {' or '.join(DEVICES)}, but is {device!r}")
    if device == "cpu" or not _asks_for_cuda(config):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    import torch

    if not torch.cuda.is_available():
        raise pytest.UsageError(NO_DEVICE)


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests for a CUDA device, unless asked for by `-m cuda`, or to run on the CPU."""
    dropped = [item for item in items if item.get_closest_marker("cuda")]
    runs = _asks_for_cuda(config) or os.environ.get("DEVICE") == "cpu"
    if dropped and not runs:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Says at the very end what was not run for want of something."""
    yield
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    for reason, count in Counter(reasons).items():
        if reason.startswith(LACKING):
            lacking = reason.removeprefix(LACKING)
            terminalreporter.write_line(f"not run: {count} tests: {lacking}", yellow=True)


def count_workers(cores: int, memory: float) -> int:
    """Returns how many processes cores and bytes of free memory allow, at least one."""
    return max(1, min(cores, int(memory / WORKER_MEMORY), MOST_WORKERS))


def do_without(reason: str) -> NoReturn:
    """Fails a test that needs what this machine lacks where CI=true; elsewhere skips it, and the last lines say why."""
    __tracebackhide__ = True  # The line that is named is the caller's
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(f"lacking: {reason.splitlines()[0]}")


def _asks_for_cuda(config) -> bool:
    return config.option.markexpr == "cuda"


def _cores() -> int:
    """Counts the cores that this process may use, also in a container (control groups, version 2)."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota, _, period = _limit("cpu.max").partition(" ")
    if not quota.isdigit():
        return cores
    return min(cores, math.ceil(int(quota) / int(period)))


def _memory() -> int:
    """Returns the bytes of memory that are free, or that a container may use if they are fewer."""
    free = psutil.virtual_memory().available
    limit = _limit("memory.max")
    if not limit.isdigit():
        return free
    return min(free, int(limit))


def _limit(name: str, groups: Path = Path("/sys/fs/cgroup")) -> str:
    try:
        return (groups / name).read_text().strip()
    except OSError:
        return ""
