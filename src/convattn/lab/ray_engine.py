"""Carries out the runs of a study as tasks of a Ray cluster; Ray is imported only when needed."""

import os
import subprocess
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from convattn.errors import ArgumentError, DeviceError, MissingDependencyError, must_be
from convattn.lab.leash import lock
from convattn.lab.study_engines import Engine, leash_command, sigterm_raises
from convattn.lab.study_plan import PlannedRun
from convattn.lab.threads import threads_given

_STORE = 100 * 2**20
"""Bytes of the object store of a cluster started here; nothing but exit codes passes through it."""

_PATIENCE = 30.0


@final
@dataclass(frozen=True)
class RayEngine(Engine):
    """Carries out runs as tasks of a Ray cluster, as many at a time as fit.

    A run whose node dies is given to another node and continued from its last checkpoint. For that the study's folder
    must lie on a file system that all nodes share, and Python, the package, the recipes' files and the data must have
    the same paths on all of them. Ray's workers call `subprocess.call` and load nothing of convattn. The run is on the
    same leash as with local processes, and ends with its worker.

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
                _stop(ray, running)

    def _submitter(self, ray: Any) -> Any:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        shares = [int(node.get("CPU", 0) // max(1, node.get("GPU", 0))) for node in nodes]
        threads = self.threads or threads_given() or min((share for share in shares if share), default=1)
        largest = int(max(node.get("CPU", 0) for node in nodes))
        if threads > largest:
            raise ArgumentError(must_be("threads", f"at most {largest}, the processors of the largest node", threads))
        task = ray.remote(subprocess.call).options(
            num_cpus=threads,
            num_gpus=1 if any(node.get("GPU", 0) for node in nodes) else 0,
            max_retries=self.retries,
            scheduling_strategy="SPREAD",
        )

        def submit(run: PlannedRun) -> Any:
            words = leash_command(run, self.command, {"OMP_NUM_THREADS": str(threads)})
            return task.remote(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

        return submit


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
        raise DeviceError(f"cannot reach a Ray cluster at {address or 'this machine'}: {error}") from None
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


def _stop(ray: ModuleType, running: dict[Any, PlannedRun]) -> None:
    """Stops tasks, and waits until no process holds their logs."""
    for reference in running:
        ray.cancel(reference, force=True)
    end = time.monotonic() + _PATIENCE
    for run in running.values():
        if run.log.exists():
            with run.log.open("ab") as log:
                lock(log, max(0.0, end - time.monotonic()))
