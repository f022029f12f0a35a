"""Kills training runs at random moments and takes them up again; a program of its own, because it forks.

`python -m tests.training.kills FOLDER COUNT SEED` leaves one finished run that nothing disturbed in FOLDER/whole, and
COUNT runs in FOLDER/0, FOLDER/1, … each killed once, with SIGKILL, at a moment drawn evenly from the time that a run
takes. It prints how many of them were under way when they were killed.
"""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import accelerate  # noqa: F401 - loaded once, before the forks
import torch
from tests.training.tiny import tiny_data, tiny_recipe

from convattn.training import train

RECIPE = tiny_recipe(epochs=4, dropout=0.2)


def start(folder: Path, *, resume: bool) -> int:
    """Trains in a process of its own and returns its number; nothing is computed here, so that forking is safe."""
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        train(RECIPE, output=folder, data=tiny_data(), progress=False, resume=resume, checkpoint_every=1)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def finish(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"a run ended with status {status}")


def main(folder: Path, count: int, seed: int) -> None:
    began = time.perf_counter()
    finish(start(folder / "whole", resume=False))
    length, moments = time.perf_counter() - began, random.Random(seed)
    interrupted = 0
    for number in range(count):
        run = folder / str(number)
        child = start(run, resume=False)
        time.sleep(moments.uniform(0, length))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        interrupted += not (run / "record.json").exists()
        finish(start(run, resume=run.exists()))
    sys.stdout.write(f"{interrupted}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
