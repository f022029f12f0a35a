"""The tables and figures of the paper, and how each is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from convattn.analysis.reproduction.attention import make_average, make_learned, make_one_image
from convattn.analysis.reproduction.curves import make_curves
from convattn.analysis.reproduction.heads import make_end, make_ways
from convattn.analysis.reproduction.material import Material
from convattn.analysis.reproduction.published import TABLE1
from convattn.analysis.reproduction.table1 import make_table1


@dataclass(frozen=True, eq=False)
class Target:
    """A table or a figure."""

    recipes: tuple[str, ...]  # Recipes whose runs it shows
    # Writes files into a folder, under names that begin with the target's, and returns what to note on them
    make: Callable[[Material, str, Path], list[str]]
    least: int = 1  # Number of these recipes without whose runs there is nothing to show


def _one_recipe(recipe: str, make: Callable[..., list[str]], **options: object) -> Target:
    return Target((recipe,), partial(make, recipe=recipe, **options))


_ALL = tuple(row.recipe for row in TABLE1)
_CONTENT = "sa-learned-content"
_AT_THE_END = "heads of each layer after training"

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "table1": Target(_ALL, make_table1, least=0),
        "fig2": Target(_ALL, make_curves),
        "fig3": _one_recipe("sa-quadratic", make_ways),
        "fig4": _one_recipe("sa-quadratic", make_end, what=_AT_THE_END),
        "fig5": _one_recipe("sa-learned", make_learned),
        "fig6": _one_recipe(_CONTENT, make_average, places=[(0.5, 0.5)]),
        "fig7": _one_recipe(_CONTENT, make_average, places=[(0.25, 0.25), (0.75, 0.75)]),
        "fig8": _one_recipe(_CONTENT, make_one_image, number=0),
        "fig9": _one_recipe(_CONTENT, make_one_image, number=1),
        "fig10": _one_recipe(_CONTENT, make_one_image, number=2),
        "fig12": _one_recipe("sa-quadratic-generalized", make_end, what="generalised heads before pruning"),
        "fig13": _one_recipe("sa-quadratic-generalized-pruned", make_end, what="generalised heads after pruning"),
        "fig14": _one_recipe("sa-quadratic-16-heads", make_end, what=_AT_THE_END),
    }
)
"""Every table and figure by its name, in the paper's order."""
