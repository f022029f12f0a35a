"""Carries out the runs of a study as processes on this machine."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import torch

from convattn.files import write_atomically
from convattn.lab.recipe import recipe_to_toml
from convattn.lab.run_process import THREADS, note_signal, start_run, stop_runs, threads_given
from convattn.lab.study_plan import PlannedRun, train_command

_POLL = 0.05


def carry_out(
    runs: Sequence[PlannedRun], *, workers: int, threads: int | None, tell: Callable[[str], None]
) -> Generator[PlannedRun, None, None]:
    """Carries out runs, each in its own process; they share the cores, and take CUDA devices in turn.

    If the iteration ends early, running ones are stopped and can be continued later.

    Args:
        runs: The runs that are not finished.
        workers: Runs at a time.
        threads: Threads of each run; None takes those of the environment, or a share of the cores.
        tell: Called with a line of text when a run starts.

    Yields:
        Each run when it has ended, successful or not.
    """
    waiting, free = deque(runs), deque(_devices(workers))
    running: dict[subprocess.Popen[bytes], tuple[PlannedRun, dict[str, str]]] = {}
    try:
        with signals_raise():
            while waiting or running:
                while waiting and free:
                    run, device = waiting.popleft(), free.popleft()
                    count = threads_of(run, threads, workers)
                    environment = {**dict.fromkeys(THREADS, str(count)), **device}
                    write_atomically(run.file, recipe_to_toml(run.recipe))
                    process = start_run(run.log, train_command(run), environment)
                    running[process] = run, device
                    tell(f"{run.name}: started")
                for process in [process for process in running if process.poll() is not None]:
                    run, device = running.pop(process)
                    note_signal(run.log, process)
                    free.append(device)
                    yield run
                time.sleep(_POLL)
    finally:
        stop_runs(list(running))


@contextmanager
def signals_raise() -> Iterator[None]:
    """Turns SIGTERM, and SIGHUP of a closed terminal, into SystemExit, so that runs are stopped in order, as by Ctrl-C.

    SIGHUP that is ignored, as under nohup, still is. Outside the main thread, which alone receives signals, nothing is
    changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def threads_of(run: PlannedRun, threads: int | None, workers: int) -> int:
    """Returns the threads of a run: those given, or one for tiny images, or its share of the cores."""
    given = threads or threads_given()
    if given is not None:
        return given
    if run.recipe.is_small:
        return 1
    cores = os.cpu_count() or 1
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    return max(1, cores // workers)


def _devices(workers: int) -> list[dict[str, str]]:
    """Returns, for each worker, the environment variables that give it a device."""
    count = torch.cuda.device_count()
    if not count:
        return [{}] * workers
    everything = ",".join(map(str, range(count)))
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", everything).split(",")[:count]
    return [{"CUDA_VISIBLE_DEVICES": devices[worker % len(devices)]} for worker in range(workers)]
