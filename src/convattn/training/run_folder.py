"""The folder of a run: every file is whole or not there, and the record is written last."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from convattn.errors import ArgumentError, CheckpointError, RecipeError
from convattn.files import (
    as_path,
    clear_leftovers,
    hidden_folder,
    new_folder,
    require_new_folder,
    sole_use,
    write_atomically,
)
from convattn.networks import save_network
from convattn.records import RunRecord
from convattn.training.build import Network
from convattn.training.card import model_card
from convattn.training.checkpoint import Checkpoints
from convattn.training.heads import HEAD_COLUMNS, HeadTrace
from convattn.training.recipe import Recipe
from convattn.training.recipe_file import differing_keys, load_recipe, recipe_to_toml
from convattn.training.trainer import EpochResult


class RunFolder:
    """Writes the files of a run, and reads those of an unfinished run.

    ``recipe.toml`` (resolved) and the first of the ``checkpoints`` come with the folder itself; ``metrics.jsonl`` and
    ``heads.parquet`` are replaced after every epoch and before every checkpoint; ``model.safetensors``, ``config.json``
    and ``README.md`` (the card) come at the end, and ``record.json`` last of all: a folder without it is a run that did
    not finish. Each file is written under a temporary name and then renamed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path, "output")
        self._held = ExitStack()
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._metrics: list[str] = []

    def require_new(self) -> None:
        """Raises ArgumentError unless the folder is new or empty; the message says how to continue a run in it."""
        if (self.path / "recipe.toml").is_file():
            raise ArgumentError(
                f"output must be new or empty, but {str(self.path)!r} holds a run: continue it with resume=True"
                " (command: --resume), or choose another folder"
            )
        require_new_folder(self.path, "output")

    def find_unfinished(self, recipe: Recipe) -> RunRecord | None:
        """Returns the record of the run in the folder, or None if that run can be resumed.

        If the folder holds no run, one of another recipe, or files that cannot be read, this raises CheckpointError.
        """
        file = self.path / "recipe.toml"
        if not file.is_file():
            raise CheckpointError(f"{self.path} holds no run to resume: it has no recipe.toml")
        try:
            there = load_recipe(file)
        except RecipeError as error:
            raise CheckpointError(f"{self.path} holds no run to resume: {error}") from None
        differing = differing_keys(there.to_dict(), recipe.to_dict())
        if differing:
            raise CheckpointError(f"{self.path} holds a run of another recipe: {'; '.join(differing)}")
        record = self.path / "record.json"
        return RunRecord.load(record) if record.is_file() else None

    @contextmanager
    def new(self, recipe: Recipe) -> Iterator[Path]:
        """Makes the folder with the recipe and what the block writes; until the block ends, its name is temporary."""
        with new_folder(self.path, "output") as folder:
            write_atomically(folder / "recipe.toml", recipe_to_toml(recipe))
            yield folder

    def hold(self) -> None:
        """Locks the folder for this process until `release`, and removes leftovers of killed processes."""
        self._held.enter_context(sole_use(self.path))
        clear_leftovers(self.path)

    def release(self) -> None:
        """Unlocks the folder."""
        self._held.close()

    def rewind(self, steps: Sequence[int], epoch: int, measured: str, heads: HeadTrace) -> list[EpochResult]:
        """Drops what was written after a checkpoint: returns the epochs before it, and fills the trace of the heads.

        `steps` are those after which heads were recorded, up to the checkpoint's. A missing or damaged file raises
        CheckpointError.
        """
        file, step = self.path / "metrics.jsonl", max(steps)
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
            kept = [metrics for metrics in map(json.loads, lines) if metrics["step"] <= step]
            results = [EpochResult.from_metrics(metrics, measured) for metrics in kept]
            if (self.path / "heads.parquet").is_file():
                table = parquet.read_table(self.path / "heads.parquet", page_checksum_verification=True)
                rows = table.select(HEAD_COLUMNS.names).cast(HEAD_COLUMNS).to_pylist()
                heads.rows = [row for row in rows if row["step"] <= step]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
            raise CheckpointError(f"cannot resume {self.path}: {type(error).__name__}: {error}") from None
        if [result.epoch for result in results] != list(range(1, epoch + 1)):
            raise CheckpointError(f"cannot resume {self.path}: {file.name} must hold {epoch} epochs, each once")
        if (step > 0 or heads.rows) and not heads.complete(steps):
            raise CheckpointError(
                f"cannot resume {self.path}: heads.parquet must hold every head after {len(steps)} steps, each once, in"
                " finite numbers"
            )
        self._metrics = [json.dumps(metrics) + "\n" for metrics in kept]
        return results

    def add_epoch(self, metrics: dict[str, float]) -> None:
        """Writes the metrics of one more epoch."""
        self._metrics.append(json.dumps(metrics) + "\n")
        write_atomically(self.path / "metrics.jsonl", "".join(self._metrics))

    def write_heads(self, heads: HeadTrace) -> None:
        """Writes the trace of the heads, if any have centres."""
        if heads.rows:
            write_atomically(self.path / "heads.parquet", heads.to_parquet())

    def finish(self, network: Network, record: RunRecord) -> None:
        """Writes the network and its card, then the record, and drops the checkpoints."""
        with hidden_folder(self.path, "model") as hidden:
            folder = hidden / "network"
            if record.recipe.get("convert"):
                save_network(network, folder)
            else:
                network.save_pretrained(folder)
            for name in ("model.safetensors", "config.json"):
                os.replace(folder / name, self.path / name)
        write_atomically(self.path / "README.md", model_card(record))
        record.save(self.path / "record.json")
        self.checkpoints.drop_all()
