"""Runs and images for the tables and figures, and names of their files."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from convattn.analysis.reproduction.images import RunImages
from convattn.analysis.runs import RunGroup
from convattn.errors import CheckpointError
from convattn.files import write_atomically
from convattn.models import AttentionNet
from convattn.networks import load_network

__all__ = ["Material", "figure_paths", "write_csv", "write_parquet"]


@dataclass(frozen=True, eq=False)
class Material:
    """Runs and images."""

    groups: Mapping[str, Sequence[RunGroup]]  # Runs by recipe, the best group first; recipes without runs are left out
    scale: str  # Their scale
    images: RunImages  # Where test images come from

    def title(self, name: str, what: str, recipe: str) -> str:
        """Returns the title of a figure of one run, the one with the lowest seed."""
        group = self.groups[recipe][0]
        changed = ", settings changed" if group.first.changes else ""
        seed = f"seed {group.first.record.seed}, one of n = {len(group.runs)}"
        return f"{figure_name(name)}: {what}\n{recipe}, scale {self.scale}{changed}, {seed}"

    def attention_net(self, recipe: str) -> tuple[AttentionNet, int]:
        """Loads the network of a recipe's first run, with the rows and columns of its feature maps.

        A network without attention on images of a known size raises CheckpointError.
        """
        run = self.groups[recipe][0].first
        network = load_network(run.folder)
        if not isinstance(network, AttentionNet) or run.image_size is None:
            kind = f"a {type(network).__name__} on {run.record.data.name}"
            raise CheckpointError(f"{run.folder} must hold an AttentionNet on images of a known size, but holds {kind}")
        return network, run.image_size // network.patch


def figure_name(target: str) -> str:
    """Returns a figure's name: "Figure 3" for "fig3"."""
    return f"Figure {target.removeprefix('fig')}"


def figure_paths(folder: Path, name: str) -> list[str | os.PathLike[str]]:
    """Returns the files that a figure is written to: for the screen and for print."""
    return [folder / f"{name}.png", folder / f"{name}.svg"]


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Writes rows as a parquet file, whole or not at all."""
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer)
    write_atomically(path, buffer.getvalue())


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Writes rows as CSV, whole or not at all."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_atomically(path, buffer.getvalue())
