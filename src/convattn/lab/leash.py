"""Runs one training run on a leash: it ends when the process that holds the leash ends.

This file is run as a program, by its path, and needs only Python, so it starts quickly on any node. The leash is the
program's standard input. When the process at the other end dies, however it dies, standard input closes and the run is
stopped; otherwise it would go on writing into a folder that another attempt continues. A lock on the log is a second
guard: the run inherits it, so that no other attempt starts while this one is alive.
"""

import ctypes
import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import IO, Any

BUSY = 75
"""Exit code if another process is using the folder."""

_PATIENCE = 30.0
"""Seconds to wait for the lock: longer than a run may take to stop before it is killed."""

_GRACE = 10.0
_POLL = 0.1
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def is_finished(folder: Path) -> bool:
    """Returns whether a run's folder has its record, which is written last of all."""
    return (folder / "record.json").is_file()


def has_checkpoint(folder: Path) -> bool:
    """Returns whether a run's folder holds something to continue from."""
    place = folder / "checkpoints"
    return place.is_dir() and any(not item.name.startswith(".") for item in place.iterdir())


def lock(file: IO[Any], patience: float) -> bool:
    """Locks an open file until all its copies are closed, and returns whether it could within `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_POLL)
        else:
            return True


def main(text: str) -> int:
    """Runs a task to its end; returns its exit code, 0 if it was finished before, 75 if another process runs it.

    The task is JSON: "folder" and "log" of the run, its commands "start" and "resume", "place" to run them in and
    "environment" to add.
    """
    task = json.loads(text)
    folder = Path(task["folder"])
    with Path(task["log"]).open("ab", buffering=0) as log:
        if not lock(log, _PATIENCE):
            log.write(f"another process is using {folder}\n".encode())
            return BUSY
        if is_finished(folder):
            return 0
        command = task["resume"] if has_checkpoint(folder) else task["start"]
        if not has_checkpoint(folder):
            _set_aside(folder)
        log.write(f"$ {shlex.join(command)}\n".encode())
        try:
            return _hold(command, task, log)
        except OSError as error:
            log.write(f"cannot run {command[0]} in {task['place']}: {error.strerror}\n".encode())
            return 1


def _set_aside(folder: Path) -> None:
    """Renames the folder of a run that stopped before its first checkpoint: it cannot be continued, and is kept."""
    if folder.is_dir() and any(folder.iterdir()):
        names = (folder.with_name(f"{folder.name}.stopped-{number}") for number in count(1))
        folder.rename(next(name for name in names if not name.exists()))


def _hold(command: list[str], task: dict[str, Any], log: IO[bytes]) -> int:
    """Runs a command until it ends, standard input closes, or this process gets a signal to stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=task["place"],
        env={**os.environ, **task["environment"]},
        process_group=0,
        preexec_fn=_die_with_parent,  # noqa: PLW1509  (this process has one thread)
    )
    try:
        while child.poll() is None:
            if select.select([sys.stdin.buffer], [], [], _POLL)[0] and not os.read(sys.stdin.fileno(), 1):
                log.write(b"stopped\n")
                return 128 + signal.SIGTERM
    finally:
        _end(child)
    if child.returncode < 0:
        log.write(f"ended by {signal.Signals(-child.returncode).name}\n".encode())
    return abs(child.returncode)


def _die_with_parent() -> None:
    """Asks Linux to end the run if this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a run and all its processes: by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(_GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
