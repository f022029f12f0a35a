"""Engines, which carry out the runs of a study: local processes here, a Ray cluster in `ray_engine`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from convattn.errors import ArgumentError, must_be
from convattn.lab.study_plan import PlannedRun, train_command
from convattn.lab.threads import is_small, threads_given

CommandBuilder = Callable[[PlannedRun, bool], list[str]]
"""Makes the command of a run; the second argument says whether to continue it."""

_POLL = 0.05
_LEASH = Path(__file__).with_name("leash.py")


@dataclass(frozen=True)
class Engine(ABC):
    """Carries out runs, each in its own process.

    Raises:
        ArgumentError: The number of workers or threads is below 1.
    """

    workers: int | None = None  # Runs at a time
    threads: int | None = None  # Threads of each run
    command: CommandBuilder = train_command  # Makes the command of a run
    tell: Callable[[str], None] = lambda _: None  # Called with a line of text when a run starts or ends

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(must_be(name, "at least 1", value))

    @abstractmethod
    def run(self, runs: Sequence[PlannedRun]) -> Generator[PlannedRun, None, None]:
        """Carries out runs. If the iteration ends early, running ones are stopped and can be continued later.

        Args:
            runs: The runs that are not finished.

        Yields:
            Each run when it has ended, successful or not.
        """


@final
@dataclass(frozen=True)
class LocalEngine(Engine):
    """Carries out runs as processes on this machine, one at a time by default; they share the cores.

    CUDA devices are given to the workers in turn.
    """

    def run(self, runs: Sequence[PlannedRun]) -> Generator[PlannedRun, None, None]:
        """Carries out runs, at most `workers` at a time, and yields each when it has ended."""
        workers = self.workers or 1
        waiting, free, running = deque(runs), deque(_slots(workers)), {}
        try:
            with sigterm_raises():
                while waiting or running:
                    while waiting and free:
                        run, slot = waiting.popleft(), free.popleft()
                        environment = {"OMP_NUM_THREADS": str(self._threads(run, workers)), **slot}
                        running[_start(leash_command(run, self.command, environment))] = run, slot
                        self.tell(f"{run.name}: started")
                    for process in [process for process in running if process.poll() is not None]:
                        run, slot = running.pop(process)
                        _release(process)
                        free.append(slot)
                        yield run
                    time.sleep(_POLL)
        finally:
            for process in running:
                _release(process)
            for process in running:
                process.wait()

    def _threads(self, run: PlannedRun, workers: int) -> int:
        """Returns the threads of a run: as requested, as the environment says, or by the size of its images."""
        return self.threads or threads_given() or (1 if is_small(run.recipe) else max(1, _cores() // workers))


def leash_command(run: PlannedRun, command: CommandBuilder, environment: Mapping[str, str]) -> list[str]:
    """Returns the command that carries out a run for as long as its standard input is open."""
    task = {
        "folder": str(run.folder),
        "log": str(run.log),
        "start": command(run, False),
        "resume": command(run, True),
        "place": str(Path.cwd()),
        "environment": dict(environment),
    }
    return [sys.executable, "-P", str(_LEASH), json.dumps(task)]


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turns SIGTERM into SystemExit with code 143, so that runs can be stopped in order, as by Ctrl-C.

    Outside the main thread, which alone receives signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    received = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except SystemExit:
        if received:  # compiled code that was interrupted, such as Ray's, raises with a code of its own
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Starts a leash in its own session, so that Ctrl-C at the terminal reaches only the study."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _release(process: subprocess.Popen[bytes]) -> None:
    """Closes the standard input of a leash, which then ends its run."""
    if process.stdin is not None:
        process.stdin.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _slots(workers: int) -> list[dict[str, str]]:
    """Returns, for each worker, the environment variables that give it a device."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [str(number) for number in range(torch.cuda.device_count())] if named is None else named.split(",")
    if not torch.cuda.device_count():
        return [{}] * workers
    return [{"CUDA_VISIBLE_DEVICES": devices[worker % len(devices)]} for worker in range(workers)]
