"""Kills training runs at random moments and takes them up again; a program of its own, because it forks.

`python -m tests.lab.kills RECIPE FOLDER COUNT SEED` leaves one finished run that nothing disturbed in
FOLDER/whole, and COUNT runs in FOLDER/0, FOLDER/1, … each killed once, with SIGKILL, at a moment drawn evenly from the
time that a run takes; a run that had finished by then is begun anew, so that all COUNT are killed under way.
"""

import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import accelerate  # noqa: F401 - loaded once, before the forks
import torch
from tests.lab.tiny import tiny_data, tiny_recipe, tiny_speed_recipe

from convattn.lab import Recipe, train

RECIPES = {"attention": tiny_recipe(epochs=4, dropout=0.2), "speed": tiny_speed_recipe(epochs=4)}


def start(recipe: Recipe, folder: Path, *, resume: bool) -> int:
    """Trains in a process of its own and returns its number; nothing is computed here, so that forking is safe."""
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        train(
            recipe,
            output=folder,
            data=tiny_data(),
            progress=False,
            resume=resume,
            checkpoint_every=1,
        )
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def finish(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"a run ended with status {status}")


def main(recipe: Recipe, folder: Path, count: int, seed: int) -> None:
    began = time.perf_counter()
    finish(start(recipe, folder / "whole", resume=False))
    length, moments = time.perf_counter() - began, random.Random(seed)
    for number in range(count):
        run = folder / str(number)
        while not killed_under_way(recipe, run, moments.uniform(0, length)):
            shutil.rmtree(run)
        finish(start(recipe, run, resume=run.exists()))


def killed_under_way(recipe: Recipe, run: Path, moment: float) -> bool:
    """Kills a run at a moment, and says whether it was not finished before."""
    child = start(recipe, run, resume=False)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return not (run / "record.json").exists()


if __name__ == "__main__":
    main(RECIPES[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
