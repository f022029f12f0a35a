"""Kills a process that overwrites a saved network at each of its steps; a program of its own, because it forks.

`python -m tests.networks.overwrite_kills FOLDER` prints how often the old and the new network were found afterwards,
and how often the next process had to put the old one back; then, as a control, what is said where it does not. A step
is an audit event of Python that concerns files: each opening, making, renaming and removing of a file or folder is one.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from convattn import files, load_network, save_network
from convattn.errors import ConvAttnError

FILES = ("fcntl.", "open", "os.", "shutil.")
"""Audit events that concern files."""


def network(value: float) -> nn.Sequential:
    layer = nn.Sequential(nn.Conv1d(2, 3, 5))
    with torch.no_grad():
        layer[0].weight.fill_(value)
    return layer


def overwrite_until(folder: Path, made: nn.Module, step: int) -> bool:
    """Overwrites in a process that is killed before the step of that number, and says whether it finished earlier."""
    child = os.fork()
    if not child:
        seen = 0

        def count(event: str, _: object) -> None:
            nonlocal seen
            seen += event.startswith(FILES)
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        save_network(made, folder, overwrite=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGKILL):
        sys.exit(f"step {step} ended with status {status}")
    return status == 0


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    old, new = network(1.0), network(2.0)
    save_network(old, folder, overwrite=True)
    save_network(
        old, folder, overwrite=True
    )  # whatever is imported on the way is there before the forks
    found, put_back, step, finished = {1.0: 0, 2.0: 0}, [], 0, False
    while not finished:
        step += 1
        finished = overwrite_until(folder, new, step)
        if not folder.exists():
            files.clear_leftovers(folder.parent)
            put_back.append(step)
        weight = load_network(folder, model=old)[0].weight  # type: ignore[index]
        (value,) = set(weight.flatten().tolist())
        found[value] += 1
        save_network(old, folder, overwrite=True)
        if [path.name for path in folder.parent.iterdir()] != [folder.name]:
            sys.exit(f"step {step} left {[*folder.parent.iterdir()]}")
    print(found[1.0], found[2.0], len(put_back))  # noqa: T201
    print(lose(folder, new, put_back[0] - 3))  # noqa: T201


def lose(folder: Path, new: nn.Module, step: int) -> str:
    """Kills from that step on until the old folder must be put back, forgets it, and returns what loading says."""
    files._discard = lambda hidden: shutil.rmtree(hidden, ignore_errors=True)
    finished = False
    while folder.exists() and not finished:
        finished = overwrite_until(folder, new, step)
        step += 1
    files.clear_leftovers(folder.parent)
    try:
        load_network(folder, model=new)
    except ConvAttnError as error:
        return str(error)
    return "nothing was lost"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
