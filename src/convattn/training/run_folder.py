"""A run's folder: every file whole or not there, and the record last."""

import json
import os
import tempfile
from pathlib import Path

from convattn.files import require_new_folder, write_atomically
from convattn.models import AttentionNet, ConvNet, ResNet
from convattn.records import RunRecord
from convattn.training.heads import HeadTrace
from convattn.training.recipe import Recipe
from convattn.training.recipe_file import recipe_to_toml

__all__ = ["RunFolder"]


class RunFolder:
    """Writes what a run leaves behind.

    ``recipe.toml`` (resolved) is written at the start, ``metrics.jsonl`` and ``heads.parquet`` are replaced after every
    epoch, ``model.safetensors`` and ``config.json`` come at the end, and ``record.json`` last of all: a folder
    without it is a run that did not finish. Each file is written beside its place and then moved there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Checks that the folder can be made.

        Args:
            path: A folder that does not exist yet, or is empty.

        Raises:
            ArgumentError: The path is a file, or a folder that holds something.
        """
        self.path = require_new_folder(path, "output")
        self._metrics: list[str] = []

    def start(self, recipe: Recipe) -> None:
        """Makes the folder and writes the recipe as resolved."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "recipe.toml", recipe_to_toml(recipe))

    def add_epoch(self, metrics: dict[str, float], heads: HeadTrace) -> None:
        """Writes the metrics of one more epoch, and where the heads look so far."""
        self._metrics.append(json.dumps(metrics) + "\n")
        write_atomically(self.path / "metrics.jsonl", "".join(self._metrics))
        if heads.rows:
            write_atomically(self.path / "heads.parquet", heads.to_parquet())

    def finish(self, network: AttentionNet | ConvNet | ResNet, record: RunRecord) -> None:
        """Writes the network, then the record."""
        with tempfile.TemporaryDirectory(dir=self.path, prefix=".model.") as folder:
            network.save_pretrained(folder)
            for name in ("model.safetensors", "config.json"):
                os.replace(Path(folder) / name, self.path / name)
        record.save(self.path / "record.json")
