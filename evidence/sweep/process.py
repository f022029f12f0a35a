"""One network in a process of its own, so that one that fails or takes too long costs no other."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from evidence.sweep.homes import HOMES

_PROCESSES = multiprocessing.get_context("forkserver")


def import_once(homes: Sequence[str]) -> None:
    """Lets all processes come from one that has imported torch and the homes.

    Args:
        homes: Names of the homes.
    """
    _PROCESSES.set_forkserver_preload(["evidence.sweep.convert", *(HOMES[home] for home in homes)])


def in_its_own_process(home: str, family: str, seconds: float) -> dict[str, Any]:
    """Converts a family's network in a child process.

    Args:
        home: Name of the home.
        family: Name of the family.
        seconds: Time that it may take.

    Returns:
        Its line, in any case.
    """
    line: dict[str, Any] = {"home": home, "family": family}
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    child = _PROCESSES.Process(target=_convert, args=(home, family, theirs))
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return {**line, "outcome": "too slow", "reason": f"over {seconds:g} seconds"}
        return {**line, **ours.recv()}
    except EOFError:
        child.join()
        return {
            **line,
            "outcome": "crashed",
            "reason": f"the process ended with exit code {child.exitcode}",
        }
    finally:
        child.kill()
        child.join()
        ours.close()


def _convert(home: str, family: str, answer: Connection) -> None:
    """Sends what became of a network."""
    from evidence.sweep.convert import convert_family

    try:
        line = convert_family(home, family)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs in the record
        line = {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"}
    answer.send(line)
