"""What a table or figure is made from and written to: runs, their networks and images, and files."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int
from pyarrow import parquet

from convattn.analysis.runs import Run, RunGroup
from convattn.data import ImageDataset
from convattn.errors import CheckpointError
from convattn.files import write_atomically
from convattn.models import AttentionNet
from convattn.networks import load_network
from convattn.training.build import load_data
from convattn.training.recipe import DataRecipe
from convattn.training.recipe_file import load_recipe

_SEED = 0


@dataclass(frozen=True, eq=False)
class Material:
    """Runs of one scale, and the images that they were trained on."""

    groups: Mapping[str, Sequence[RunGroup]]  # by recipe, the best group first; recipes without runs are left out
    scale: str
    folder: Path | None = None  # folder with the files of CIFAR-10, in place of the one that a run's recipe names
    _loaded: dict[DataRecipe, ImageDataset] = field(default_factory=dict)  # each data set is loaded once

    def run_of(self, recipe: str) -> Run:
        """Returns the run that figures of a recipe show: the one with the lowest seed."""
        return self.groups[recipe][0].first

    def title(self, name: str, what: str, recipe: str) -> str:
        """Returns the title of a figure of one run."""
        run = self.run_of(recipe)
        changed = ", settings changed" if run.changes else ""
        seed = f"seed {run.record.seed}, one of n = {len(self.groups[recipe][0].runs)}"
        return f"{figure_name(name)}: {what}\n{recipe}, scale {self.scale}{changed}, {seed}"

    def attention_net(self, recipe: str) -> tuple[AttentionNet, int]:
        """Loads the network of a recipe's first run, with the rows and columns of its feature maps.

        A network without attention on images of a known size raises CheckpointError.
        """
        run = self.run_of(recipe)
        network = load_network(run.folder)
        if not isinstance(network, AttentionNet) or run.image_size is None:
            kind = f"a {type(network).__name__} on {run.record.data.name}"
            raise CheckpointError(f"{run.folder} must hold an AttentionNet on images of a known size, but holds {kind}")
        return network, run.image_size // network.patch

    def images(self, recipe: str) -> tuple[ImageDataset, list[str]]:
        """Loads the data set of a recipe's first run; a note says if its files are not those that the run has seen."""
        run = self.run_of(recipe)
        data_recipe = load_recipe(run.folder / "recipe.toml").data
        if self.folder is not None:
            data_recipe = dataclasses.replace(data_recipe, folder=str(self.folder))
        if data_recipe not in self._loaded:
            self._loaded[data_recipe] = load_data(data_recipe)
        data = self._loaded[data_recipe]
        if data.record.hashes == run.record.data.hashes:
            return data, []
        return data, [f"the images are of {data.name}, but {run.folder} was trained on {run.record.data.name}"]


def choose_images(data: ImageDataset, count: int) -> Int[np.ndarray, " images"]:
    """Chooses test images at random, always the same ones; a larger choice begins with a smaller one.

    They are the first of ``numpy.random.default_rng(0).permutation(len(data.test))``, or all where there are fewer.
    """
    return np.random.default_rng(_SEED).permutation(len(data.test))[:count]


def figure_name(target: str) -> str:
    """Returns a figure's name: "Figure 3" for "fig3"."""
    return f"Figure {target.removeprefix('fig')}"


def figure_paths(folder: Path, name: str) -> list[Path]:
    """Returns the files that a figure is written to: for the screen and for print."""
    return [folder / f"{name}.png", folder / f"{name}.svg"]


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Writes rows as a parquet file, whole or not at all."""
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer)
    write_atomically(path, buffer.getvalue())
