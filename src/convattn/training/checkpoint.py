"""Checkpoints of a run: folders that are either whole or not there, and are checked for damage before use."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from convattn.errors import CheckpointError, CheckpointWarning
from convattn.files import file_sha256, write_atomically

_MANIFEST = "checkpoint.json"
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The description of a checkpoint."""

    step: int  # Optimizer steps done
    processes: int  # Number of processes that wrote it
    files: dict[str, str]  # SHA-256 of each file, by its path inside the checkpoint


@final
class Checkpoints:
    """The checkpoints of one run, ``step-00000123`` and so on in a folder; the newest two are kept.

    A checkpoint is written under a temporary name, with the SHA-256 of each of its files, and then renamed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def begin(self, step: int) -> Path:
        """Makes an empty folder in which the checkpoint of a step can be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clear()
        place = self.folder / f".{_name(step)}.new"
        place.mkdir()
        return place

    def clear(self) -> None:
        """Removes unfinished checkpoints."""
        for left in self.folder.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)

    def finish(self, written: Path, *, step: int, processes: int) -> None:
        """Moves a checkpoint from the folder that `begin` made to its place, and drops all but the newest two.

        Checkpoints of later steps are dropped too: they must be damaged, or the run would have resumed there.
        """
        for path in _files(written):
            path.chmod(written.stat().st_mode & 0o666)  # safetensors keeps its files to their owner
        files = {str(path.relative_to(written)): file_sha256(path) for path in _files(written)}
        write_atomically(written / _MANIFEST, json.dumps(asdict(Checkpoint(step, processes, files)), indent=2) + "\n")
        place = self.folder / _name(step)
        if place.exists():
            _drop(place)
        os.replace(written, place)
        places = self._newest_first()
        kept = places[places.index(place) :][:_KEPT]
        for other in places:
            if other not in kept:
                _drop(other)

    def load_newest(self, load: Callable[[Path, Checkpoint], None]) -> Checkpoint:
        """Calls `load` with the newest undamaged checkpoint and its folder, and warns of newer ones that are damaged.

        Returns the description of the checkpoint; if none is left, this raises CheckpointError.
        """
        damaged = []
        for place in self._newest_first():
            try:
                checkpoint = read_checkpoint(place)
            except CheckpointError as error:
                damaged.append(str(error))
                warnings.warn(f"{error}; the one before it is used", CheckpointWarning, stacklevel=2)
                continue
            load(place, checkpoint)
            return checkpoint
        listed = f": {'; '.join(damaged)}" if damaged else ""
        raise CheckpointError(f"{self.folder} has no checkpoint to resume from{listed}")

    def drop_all(self) -> None:
        """Removes all checkpoints, once the run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"), reverse=True)


def read_checkpoint(place: Path) -> Checkpoint:
    """Reads the description of a checkpoint and checks its files; a damaged one raises CheckpointError."""
    try:
        content = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        checkpoint = Checkpoint(int(content["step"]), int(content["processes"]), dict(content["files"]))
        wrong = [name for name, stated in checkpoint.files.items() if file_sha256(place / name) != stated]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {place.name} is damaged ({type(error).__name__}: {error})") from None
    if wrong:
        raise CheckpointError(f"checkpoint {place.name} is damaged (changed since it was written: {', '.join(wrong)})")
    return checkpoint


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _drop(place: Path) -> None:
    """Removes a checkpoint under another name, so that no process finds half of it."""
    hidden = place.with_name(f".{place.name}.old")
    os.replace(place, hidden)
    shutil.rmtree(hidden, ignore_errors=True)
