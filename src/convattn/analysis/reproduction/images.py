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
    """Loads the data that runs name, each once."""

    def __init__(self, folder: Path | None = None) -> None:
        """Starts with nothing loaded.

        Args:
            folder: Folder with the files of CIFAR-10, in place of the one that a run's recipe names.
        """
        self._folder = folder
        self._loaded: dict[DataRecipe, ImageDataset] = {}

    def of(self, run: Run) -> tuple[ImageDataset, list[str]]:
        """Loads the images of a run.

        Args:
            run: The run; its recipe.toml says which images.

        Returns:
            The data set, and a note where its files are not those that the run has seen.

        Raises:
            DataError: The images cannot be loaded.
            MissingDependencyError: A package that the images come with is not installed.
            RecipeError: The run's recipe.toml cannot be read.
        """
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

        Args:
            data: The data set.
            count: How many, or all where there are fewer.

        Returns:
            Their numbers in the test split: the first of ``numpy.random.default_rng(0).permutation(len(data.test))``.
        """
        return np.random.default_rng(_SEED).permutation(len(data.test))[:count]
