"""Reads the folder of a study: the state of each run before it starts, and its record after it ended."""

import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from convattn.errors import ArgumentError, CheckpointError, RecipeError
from convattn.records import RunRecord
from convattn.records.words import some
from convattn.training.recipe import Recipe
from convattn.training.recipe_file import differing_keys
from convattn.training.studies.leash import has_checkpoint, is_finished, lock
from convattn.training.studies.plan import PlannedRun

State = Literal["finished", "under way", "stopped early", "new"]

_LOCK = ".study.lock"

_SHOWN = 4
"""Differences between two recipes that a message names."""


def find_state(run: PlannedRun) -> State:
    """Returns the state of a run; "stopped early" is before its first checkpoint.

    A folder that holds a run of another recipe raises RecipeError; one that holds no run, CheckpointError.
    """
    folder = run.folder
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, but must be the folder of a run")
    if not folder.exists() or not any(folder.iterdir()):
        return "new"
    if is_finished(folder):
        _require_same(folder, RunRecord.load(folder / "record.json").recipe, run.recipe)
        return "finished"
    try:
        found = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CheckpointError(f"{folder} holds no run: recipe.toml cannot be read ({error})") from None
    _require_same(folder, found, run.recipe)
    return "under way" if has_checkpoint(folder) else "stopped early"


def read_run(run: PlannedRun) -> tuple[RunRecord, str]:
    """Returns the record of a finished run, and the SHA-256 of its file."""
    content = (run.folder / "record.json").read_bytes()
    return RunRecord.from_json(content.decode()), hashlib.sha256(content).hexdigest()


def last_line(log: Path) -> str:
    """Returns the last non-empty line of a log, or "no log"."""
    if not log.is_file():
        return "no log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no log")


def require_own(place: Path, runs: Sequence[PlannedRun]) -> None:
    """Raises ArgumentError if a folder has contents, and none of them is of a study or of one of the runs."""
    own = {"study.json", _LOCK, *(run.folder.name for run in runs)}
    found = sorted(item.name for item in place.iterdir()) if place.is_dir() else []
    if found and own.isdisjoint(found):
        expected = "output must be new, empty or the folder of a study"
        raise ArgumentError(f"{expected}, but {str(place)!r} holds {some(found)}")


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Locks a folder, which is made if it is missing, for one study; if another uses it, raises CheckpointError."""
    if place.exists() and not place.is_dir():
        raise ArgumentError(f"output must be a folder, but {str(place)!r} is a file")
    place.mkdir(parents=True, exist_ok=True)
    with (place / _LOCK).open("ab") as file:
        if not lock(file, patience=0):
            raise CheckpointError(f"another study is using {place}")
        yield


def _require_same(folder: Path, found: Mapping[str, Any], wanted: Recipe) -> None:
    differing = differing_keys(found, wanted.to_dict())
    if differing:
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise RecipeError(f"{folder} holds a run of another recipe: {'; '.join(differing[:_SHOWN])}{more}")
