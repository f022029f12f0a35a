"""Trains in two processes that share every batch, as `torchrun` starts them; a program of its own, because it forks.

`python -m tests.lab.pair FOLDER PORT` trains by FOLDER/recipe.toml into FOLDER/run. Both are forked from a process
that has loaded everything and computed nothing, so that torch is loaded once rather than three times.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import accelerate  # noqa: F401 - loaded once, before the forks
from tests.lab.tiny import tiny_data

from convattn.lab import load_recipe, train

PROCESSES = 2


def start(rank: int, folder: Path, port: str) -> int:
    """Trains as one of the two and returns the process's number."""
    child = os.fork()
    if child:
        return child
    try:
        names = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": PROCESSES,
            "LOCAL_WORLD_SIZE": PROCESSES,
        }
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        train(
            load_recipe(str(folder / "recipe.toml")),
            output=folder / "run",
            data=tiny_data(),
            progress=False,
        )
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def main(folder: Path, port: str) -> None:
    running = {start(rank, folder, port) for rank in range(PROCESSES)}
    while running:
        child, status = os.wait()
        running.remove(child)
        if status:  # the other would wait for it
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a process ended with status {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
