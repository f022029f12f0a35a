"""Engines, which carry out the runs of a study: as processes on this machine, or as tasks of a Ray cluster."""

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
from types import ModuleType
from typing import Any, final

import torch

from convattn.errors import ArgumentError, DeviceError, MissingDependencyError, must_be
from convattn.lab.run_process import (
    RunCommand,
    carry_out,
    note_signal,
    start_run,
    stop_runs,
    threads_given,
)
from convattn.lab.study_plan import PlannedRun, train_command

CommandBuilder = Callable[[PlannedRun, bool], list[str]]
"""Makes the command of a run; the second argument says whether to continue it."""

_POLL = 0.05


@dataclass(frozen=True)
class Engine(ABC):
    """Carries out runs, each in its own process.

    Raises:
        ArgumentError: The number of workers or threads is below 1.
    """

    workers: int | None = None  # Runs at a time
    threads: int | None = None  # Threads of each run
    command: CommandBuilder = train_command  # Makes the command of a run
    # Called with a line of text when a run starts or ends
    tell: Callable[[str], None] = lambda _: None

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

    def _command_of(self, run: PlannedRun, environment: Mapping[str, str]) -> RunCommand:
        start, resume = (self.command(run, resumed) for resumed in (False, True))
        return RunCommand(run.folder, run.log, start, resume, Path.cwd(), environment)


@final
@dataclass(frozen=True)
class LocalEngine(Engine):
    """Carries out runs as processes on this machine, one at a time by default; they share the cores.

    CUDA devices are given to the workers in turn.
    """

    def run(self, runs: Sequence[PlannedRun]) -> Generator[PlannedRun, None, None]:
        """Carries out runs, at most `workers` at a time, and yields each when it has ended."""
        workers = self.workers or 1
        waiting, free = deque(runs), deque(_slots(workers))
        running: dict[subprocess.Popen[bytes], tuple[PlannedRun, RunCommand, dict[str, str]]] = {}
        try:
            with sigterm_raises():
                while waiting or running:
                    while waiting and free:
                        run, slot = waiting.popleft(), free.popleft()
                        command = self._command_of(
                            run, {"OMP_NUM_THREADS": str(self._threads(run, workers)), **slot}
                        )
                        running[start_run(command)] = run, command, slot
                        self.tell(f"{run.name}: started")
                    for process in [process for process in running if process.poll() is not None]:
                        run, command, slot = running.pop(process)
                        note_signal(command, process)
                        free.append(slot)
                        yield run
                    time.sleep(_POLL)
        finally:
            stop_runs(list(running))

    def _threads(self, run: PlannedRun, workers: int) -> int:
        """Returns the threads of a run: as the caller says, as the environment says, or by the size of its images."""
        return (
            self.threads
            or threads_given()
            or (1 if run.recipe.is_small else max(1, _cores() // workers))
        )


_STORE = 100 * 2**20
"""Bytes of the object store of a cluster started here; nothing but exit codes passes through it."""

_PATIENCE = 30.0
"""Seconds to wait until cancelled tasks have stopped their runs."""


@final
@dataclass(frozen=True)
class RayEngine(Engine):
    """Carries out runs as tasks of a Ray cluster, as many at a time as fit.

    A run whose node dies is given to another node and continued from its last checkpoint. For that the study's folder
    must lie on a file system that all nodes share, and Python, the package, the recipes' files and the data must have
    the same paths on all of them.

    If the cluster has GPUs, a run takes one. Without `threads` a run takes the processors of the smallest node divided
    by its GPUs.
    """

    # Address of the cluster; "auto" for one that runs on this machine; None starts one here while the study lasts
    address: str | None = None
    retries: int = 3  # How often a run is given to another node when its own has died

    def run(self, runs: Sequence[PlannedRun]) -> Generator[PlannedRun, None, None]:
        """Carries out runs as tasks; see `Engine.run`.

        Raises:
            ArgumentError: No node has as many processors as a run has threads.
            DeviceError: No cluster can be reached at the address.
            MissingDependencyError: Ray is not installed.
        """
        ray = _import_ray()
        waiting, running = deque(runs), {}
        # Connecting sets a handler of Ray's own: the inner one comes after it, the outer one puts back what was before.
        with sigterm_raises(), _connected(ray, self.address), sigterm_raises():
            try:
                submit = self._submitter(ray)
                while waiting or running:
                    while waiting and len(running) < (self.workers or len(runs)):
                        run = waiting.popleft()
                        running[submit(run)] = run
                        self.tell(f"{run.name}: submitted")
                    for reference in ray.wait(list(running), num_returns=1, timeout=1.0)[0]:
                        _await(ray, reference, running[reference])
                        yield running.pop(reference)
            finally:
                for reference in running:
                    ray.cancel(reference)
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=_PATIENCE)

    def _submitter(self, ray: Any) -> Callable[[PlannedRun], Any]:
        """Returns a function that submits a run as a task with the resources of the study."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        shares = [int(node.get("CPU", 0) // max(1, node.get("GPU", 0))) for node in nodes]
        threads = (
            self.threads or threads_given() or min((share for share in shares if share), default=1)
        )
        largest = int(max(node.get("CPU", 0) for node in nodes))
        if threads > largest:
            raise ArgumentError(
                must_be(
                    "threads", f"at most {largest}, the processors of the largest node", threads
                )
            )
        task = ray.remote(carry_out).options(
            num_cpus=threads,
            num_gpus=1 if any(node.get("GPU", 0) for node in nodes) else 0,
            max_retries=self.retries,
            scheduling_strategy="SPREAD",
        )
        return lambda run: task.remote(self._command_of(run, {"OMP_NUM_THREADS": str(threads)}))


def _import_ray() -> ModuleType:
    """Imports Ray, with its usage reports switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray", "cluster") from None
    return ray


@contextmanager
def _connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    """Connects to a cluster, or starts one, unless the caller has; disconnects at the end, also after an error."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    try:
        if address is None:
            ray.init("local", include_dashboard=False, object_store_memory=_STORE, **quiet)
        else:
            ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise DeviceError(
            f"cannot reach a Ray cluster at {address or 'this machine'}: {error}"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _await(ray: ModuleType, reference: Any, run: PlannedRun) -> None:
    """Waits for a task. If Ray itself gave up, its reason is written to the log of the run."""
    try:
        ray.get(reference)
    except ray.exceptions.RayError as error:
        with run.log.open("a", encoding="utf-8") as log:
            log.write(f"Ray gave up: {' '.join(str(error).split())}\n")


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
        # compiled code that was interrupted, such as Ray's, raises with a code of its own
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _slots(workers: int) -> list[dict[str, str]]:
    """Returns, for each worker, the environment variables that give it a device."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = (
        [str(number) for number in range(torch.cuda.device_count())]
        if named is None
        else named.split(",")
    )
    if not torch.cuda.device_count():
        return [{}] * workers
    return [{"CUDA_VISIBLE_DEVICES": devices[worker % len(devices)]} for worker in range(workers)]
