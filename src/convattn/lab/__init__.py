"""The laboratory: training by recipe, studies over seeds, and the paper's tables and figures made again.

Names are imported when they are first used, so that augmentation needs no package of the trainer.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convattn.lab.loop import train
    from convattn.lab.pruning import degenerate_heads, prune_heads
    from convattn.lab.recipe import Recipe, load_recipe, recipe_names, recipe_to_toml
    from convattn.lab.studies import study

__all__ = [
    "Recipe",
    "degenerate_heads",
    "load_recipe",
    "prune_heads",
    "recipe_names",
    "recipe_to_toml",
    "study",
    "train",
]

_HOMES = {
    "degenerate_heads": "pruning",
    "prune_heads": "pruning",
    "study": "studies",
    "train": "loop",
}

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name at all

    def __getattr__(name: str) -> object:
        """Imports a public name from its home when it is first used."""
        if name not in __all__:
            message = f"module 'convattn.lab' has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(f"convattn.lab.{_HOMES.get(name, 'recipe')}"), name)
