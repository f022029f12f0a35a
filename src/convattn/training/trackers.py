"""Trackers of a run, through accelerate."""

import importlib.util
from collections.abc import Sequence

from convattn.errors import MissingDependencyError, UnknownNameError

TRACKERS = ("tensorboard", "wandb", "trackio")
"""Trackers by name; each is the name of its package as well."""

_EXTRAS = {"tensorboard": "train", "wandb": "track", "trackio": "track"}


def require_trackers(names: Sequence[str]) -> None:
    """Checks that trackers are known and installed.

    Args:
        names: Names of trackers.

    Raises:
        UnknownNameError: There is no such tracker.
        MissingDependencyError: Its package is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError(name, _EXTRAS[name])
