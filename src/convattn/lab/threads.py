"""Threads of a run: as the environment says, or one for tiny images, or all cores."""

import os

from convattn.lab.recipe import Recipe


def threads_given() -> int | None:
    """Returns the number of threads that the environment sets, in the variables that torch reads, or None.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict("os.environ", {"OMP_NUM_THREADS": "3,2"}):
        ...     threads_given()
        3
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            return int(first)
    return None


def is_small(recipe: Recipe) -> bool:
    """Returns whether steps take only microseconds, as for 8 x 8 digits, so that more threads would not help."""
    return recipe.data.name == "digits"
