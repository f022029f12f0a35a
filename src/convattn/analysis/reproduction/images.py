"""The test images of a run, loaded once for all figures that show them."""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Int

from convattn.analysis.runs import Run
from convattn.data import ImageDataset
from convattn.training.build import load_data
from convattn.training.recipe import DataRecipe
from convattn.training.recipe_file import load_recipe

__all__ = ["RunImages"]

_SEED = 0


class RunImages:
    """The images that runs were trained on, each data set loaded once."""

    def __init__(self, folder: Path | None = None) -> None:
        """Starts with nothing loaded; `folder` replaces the folder with CIFAR-10 that a run's recipe names."""
        self._folder = folder
        self._loaded: dict[DataRecipe, ImageDataset] = {}

    def of(self, run: Run) -> tuple[ImageDataset, list[str]]:
        """Loads the data set of a run; a note says if its files are not those that the run has seen."""
        recipe = load_recipe(run.folder / "recipe.toml").data
        if self._folder is not None:
            recipe = dataclasses.replace(recipe, folder=str(self._folder))
        if recipe not in self._loaded:
            self._loaded[recipe] = load_data(recipe)
        data = self._loaded[recipe]
        if data.record.hashes == run.record.data.hashes:
            return data, []
        return data, [f"the images are of {data.name}, but {run.folder} was trained on {run.record.data.name}"]

    @staticmethod
    def choose(data: ImageDataset, count: int) -> Int[np.ndarray, " images"]:
        """Chooses test images at random, always the same ones; a larger choice begins with a smaller one.

        They are the first of ``numpy.random.default_rng(0).permutation(len(data.test))``, or all where there are fewer.
        """
        return np.random.default_rng(_SEED).permutation(len(data.test))[:count]
