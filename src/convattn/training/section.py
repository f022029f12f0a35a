"""Tables of a recipe: frozen dataclasses that check every value."""

from dataclasses import dataclass
from typing import Annotated

from convattn.errors import RecipeError, must_be
from convattn.fields import Range, explain, fits, hints

Count = Annotated[int, Range(1)]
"""A whole number of at least 1."""

Share = Annotated[float, Range(0, 1, without_high=True)]
"""A number in [0, 1)."""


@dataclass(frozen=True)
class Section:
    """A table of a recipe.

    Raises:
        RecipeError: A value is of another type than its key demands, or out of range.
    """

    def __post_init__(self) -> None:
        """Checks every value against the annotation of its field."""
        for key, hint in hints(type(self)).items():
            if not fits(getattr(self, key), hint):
                raise RecipeError(must_be(key, explain(hint), getattr(self, key)))
