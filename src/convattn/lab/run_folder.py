"""The folder of a run: every file is whole or not there, and the record is written last."""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, final

from safetensors import SafetensorError

from convattn.errors import ArgumentError, CheckpointError, CheckpointWarning, RecipeError
from convattn.files import (
    AnyPath,
    as_path,
    clear_leftovers,
    hidden_folder,
    new_folder,
    require_new_folder,
    sole_use,
    write_atomically,
)
from convattn.heads.head_snapshots import HEAD_COLUMNS, HEADS
from convattn.lab.model_card import model_card
from convattn.lab.recipe import Recipe, differing_keys, load_recipe, recipe_to_toml
from convattn.lab.tables import write_parquet
from convattn.lab.trainer import Trainer
from convattn.networks import save_network
from convattn.networks.pictures import PREPARATION
from convattn.provenance import RunRecord
from convattn.sealed import file_sha256

if TYPE_CHECKING:
    from accelerate import Accelerator

_MANIFEST = "checkpoint.json"
_NEWEST = 2


@final
class Checkpoints:
    """The checkpoints of one run, ``step-00000123`` and so on in a folder; the newest two are kept.

    A checkpoint is written under a temporary name, with the SHA-256 of each of its files, and then renamed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, trainer: Trainer) -> None:
        """Writes a checkpoint, all processes together; the main one makes its folder."""
        trainer.share_losses()
        accelerator = trainer.accelerator
        if accelerator.is_main_process:
            with self._new(trainer.step, accelerator.num_processes) as place:
                _save_state(accelerator, place)
        else:
            _save_state(accelerator, None)
        accelerator.wait_for_everyone()

    def load_newest(self, trainer: Trainer) -> None:
        """Gives a trainer the state of the newest undamaged checkpoint.

        Newer checkpoints that are damaged give a warning. If none is left, or it was written by another version or
        number of processes, this raises CheckpointError.
        """
        damaged = []
        for place in self._newest_first():
            try:
                processes = _processes_of_intact(place)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for reason in damaged:
                warnings.warn(f"{reason}; {place.name} is used", CheckpointWarning, stacklevel=2)
            _load_state(trainer.accelerator, place, processes)
            return
        listed = f": {'; '.join(damaged)}" if damaged else ""
        raise CheckpointError(f"{self.folder} has no checkpoint to resume from{listed}")

    @contextmanager
    def _new(self, step: int, processes: int) -> Iterator[Path]:
        """Yields the folder of a step's checkpoint, which is in its place when the block ends.

        Then all others but the newest before it are dropped. Those of later steps must be damaged, or the run would
        have resumed there.
        """
        place = self.folder / f"step-{step:08d}"
        with new_folder(place, replace=True) as written:
            yield written
            hashes = {}
            for path in sorted(written.rglob("*")):
                if path.is_file():
                    path.chmod(written.stat().st_mode & 0o666)  # safetensors keeps them private
                    hashes[str(path.relative_to(written))] = file_sha256(path)
            manifest = {"processes": processes, "files": hashes}
            write_atomically(written / _MANIFEST, json.dumps(manifest, indent=2) + "\n")
        kept = [other for other in self._newest_first() if other <= place][:_NEWEST]
        with hidden_folder(self.folder, "old") as old:
            for other in {*self._newest_first()}.difference(kept):
                os.replace(other, old / other.name)  # so that no process finds half of it

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"), reverse=True)


def _save_state(accelerator: "Accelerator", place: Path | None) -> None:
    """Saves the state of all processes into the folder that the main process names; every process must call it."""
    from accelerate.utils import broadcast_object_list

    shared = [None if place is None else str(place)]
    broadcast_object_list(shared)
    accelerator.save_state(shared[0])
    accelerator.wait_for_everyone()


def _load_state(accelerator: "Accelerator", place: Path, processes: int) -> None:
    """Loads a checkpoint that so many processes have written."""
    now = accelerator.num_processes
    if processes != now:
        raise CheckpointError(
            f"checkpoint {place.name} was written by {processes} processes, but there are {now}"
        )
    try:
        accelerator.load_state(str(place))
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError, ImportError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise CheckpointError(
            f"checkpoint {place.name} is complete, but this version cannot load it ({reason})"
        ) from None


def _processes_of_intact(place: Path) -> int:
    """Returns how many processes wrote a checkpoint; raises CheckpointError if its files have changed since."""
    try:
        manifest = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        processes, hashes = int(manifest["processes"]), dict(manifest["files"])
        changed = [name for name, stated in hashes.items() if file_sha256(place / name) != stated]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"checkpoint {place.name} is damaged ({reason})") from None
    if changed:
        listed = ", ".join(changed)
        raise CheckpointError(
            f"checkpoint {place.name} is damaged (changed since it was written: {listed})"
        )
    return processes


@final
class RunFolder:
    """Writes the files of a run, and continues an unfinished run.

    ``recipe.toml`` (resolved) and the first of the ``checkpoints`` come with the folder itself; ``metrics.jsonl`` and
    ``heads.parquet`` are replaced before every checkpoint, which holds their content as well; ``model.safetensors``,
    ``config.json`` and ``README.md`` (the card) come at the end, and ``record.json`` last of all: a folder without it
    is a run that did not finish. Each file is written under a temporary name and then renamed. Every process has a
    RunFolder if one does, but only the main process writes.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = as_path(path, "output")
        self._checkpoints = Checkpoints(self.path / "checkpoints")
        self._held = ExitStack()

    def require_new(self) -> None:
        """Raises ArgumentError unless the folder is new or empty; the message says how to continue a run in it."""
        if (self.path / "recipe.toml").is_file():
            raise ArgumentError(
                f"output must be new or empty, but {str(self.path)!r} holds a run: continue it with resume=True"
                " (command: --resume), or choose another folder"
            )
        require_new_folder(self.path, "output")

    def find_finished(self, recipe: Recipe) -> RunRecord | None:
        """Returns the record of the finished run in the folder, or None if the run can be resumed.

        If the folder holds no run, one of another recipe, or files that cannot be read, this raises CheckpointError.
        The data may lie in another folder: checkpoints know them by their hash.
        """
        record, record_file = None, self.path / "record.json"
        if record_file.is_file():
            record = RunRecord.load(record_file)
            recipe_there = record.recipe
        else:
            try:
                recipe_there = load_recipe(self.path / "recipe.toml").to_dict()
            except RecipeError as error:
                raise CheckpointError(f"{self.path} holds no run to resume: {error}") from None
        differing = differing_keys(recipe_there, recipe.to_dict())
        if differing:
            listed = "; ".join(differing)
            raise CheckpointError(f"{self.path} holds a run of another recipe: {listed}")
        return record

    def begin(self, trainer: Trainer) -> None:
        """Makes the folder, with the recipe and a first checkpoint at step 0; if that fails, nothing is left of it."""
        with self._errors_told(f"the checkpoint of step {trainer.step}", "the folder is not made"):
            if trainer.accelerator.is_main_process:
                with new_folder(self.path, "output") as folder:
                    write_atomically(folder / "recipe.toml", recipe_to_toml(trainer.recipe))
                    Checkpoints(folder / "checkpoints").save(trainer)
                self._hold()
            else:
                self._checkpoints.save(trainer)
        trainer.accelerator.wait_for_everyone()

    def resume(self, trainer: Trainer) -> None:
        """Continues the run from its newest checkpoint, written by this version and as many processes."""
        if trainer.accelerator.is_main_process:
            self._hold()
        self._checkpoints.load_newest(trainer)
        trainer.accelerator.wait_for_everyone()  # the main process may now replace what all have read

    def save(self, trainer: Trainer) -> None:
        """Writes the epochs so far, where the heads looked, and a checkpoint."""
        with self._errors_told(f"the checkpoint of step {trainer.step}", "earlier ones are kept"):
            if trainer.accelerator.is_main_process:
                if trainer.history:
                    lines = [json.dumps(metrics) + "\n" for metrics in trainer.history]
                    write_atomically(self.path / "metrics.jsonl", "".join(lines))
                if trainer.heads.rows:
                    write_parquet(self.path / HEADS, trainer.heads.rows, HEAD_COLUMNS)
            self._checkpoints.save(trainer)

    def finish(self, trainer: Trainer, record: RunRecord) -> None:
        """Writes the network and its card, then the record, and drops the checkpoints; the main process calls it.

        If a file cannot be written, this raises CheckpointError.
        """
        network = trainer.result
        vars(network).pop("forward", None)  # accelerate's own, of mixed precision
        with self._errors_told("the network and the record", "resume the run to write them again"):
            with hidden_folder(self.path, "model") as hidden:
                folder = hidden / "network"
                save_network(network, folder)
                for name in ("model.safetensors", "config.json"):
                    os.replace(folder / name, self.path / name)
            write_atomically(self.path / "README.md", model_card(record))
            if trainer.data.preparation is not None:
                trainer.data.preparation.save(self.path / PREPARATION)
            record.save(self.path / "record.json")
        shutil.rmtree(self._checkpoints.folder, ignore_errors=True)

    def release(self) -> None:
        """Unlocks the folder."""
        self._held.close()

    def _hold(self) -> None:
        """Locks the folder for this process until `release`, and removes leftovers of killed processes."""
        self._held.enter_context(sole_use(self.path))
        clear_leftovers(self.path)

    @contextmanager
    def _errors_told(self, what: str, otherwise: str) -> Iterator[None]:
        """Turns errors in writing into one CheckpointError."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot write {what} to {self.path} ({error}); {otherwise}"
            ) from None
