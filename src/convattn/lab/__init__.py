"""The laboratory: training by recipe, studies over seeds, and the paper's tables and figures made again."""

from convattn.lab.loop import train
from convattn.lab.recipe import Recipe, load_recipe, recipe_names, recipe_to_toml
from convattn.lab.studies import study

__all__ = ["Recipe", "load_recipe", "recipe_names", "recipe_to_toml", "study", "train"]
