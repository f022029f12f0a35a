"""One training run as a process: how it starts, and how it is stopped."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_POLL = 0.1


THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables with the number of torch's threads; with MKL, the first is stronger."""


def threads_given() -> int | None:
    """Returns the number of threads that the environment sets, or None; of torch's two variables MKL's comes first.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict("os.environ", {"OMP_NUM_THREADS": "3,2"}):
        ...     threads_given()
        3
    """
    for name in THREADS:
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            return int(first)
    return None


@contextmanager
def computing_with(threads: int | None) -> Iterator[None]:
    """Computes with a number of threads, or with as many as before."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def start_run(
    log: Path, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a run in a session of its own, so that Ctrl-C at the terminal does not reach it.

    If the command cannot be started, this raises OSError.

    Args:
        log: File to which everything that the run prints is added.
        command: The command that starts or continues it.
        environment: Variables that are added to the environment.

    Returns:
        The process.
    """
    with log.open("ab", buffering=0) as file:
        file.write(f"$ {shlex.join(command)}\n".encode())
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def note_signal(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Writes to the log which signal has ended a process; nothing if it has exited."""
    if process.returncode < 0:
        with log.open("ab") as file:
            file.write(f"ended by {signal.Signals(-process.returncode).name}\n".encode())


def stop_runs(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends runs with all of their processes: by SIGTERM, then by SIGKILL; on Windows, at once, the process of each."""
    for name in ("SIGTERM", "SIGKILL"):
        living = [process for process in processes if process.poll() is None]
        for process in living:
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, getattr(signal, name))
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and any(process.poll() is None for process in living):
            time.sleep(_POLL)
