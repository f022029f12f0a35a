"""Training by recipe: one file with a claim, one run, one record."""

from convattn.training.loop import train
from convattn.training.recipe import Recipe
from convattn.training.recipe_file import load_recipe, recipe_names, recipe_to_toml
from convattn.training.studies import study

__all__ = ["Recipe", "load_recipe", "recipe_names", "recipe_to_toml", "study", "train"]
