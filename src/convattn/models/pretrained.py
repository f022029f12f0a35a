"""Trained networks that come with the package, and where their folders are."""

import os
from importlib import resources
from pathlib import Path

from convattn.errors import UnknownNameError
from convattn.files import as_path
from convattn.records import PretrainedCard
from convattn.sealed import CONFIG

_HOME = "convattn:"
CARD = "card.json"
"""File of the folder of a trained network that holds its `PretrainedCard`."""


def pretrained_names() -> list[str]:
    """Returns the names of the trained networks that come with the package, sorted."""
    folder = _folder()
    return sorted(item.name for item in folder.iterdir() if (item / CONFIG).is_file()) if folder.is_dir() else []


def pretrained_card(name: str) -> PretrainedCard:
    """Reads what is known of a trained network that comes with the package."""
    return PretrainedCard.load(network_folder(f"{_HOME}{name}") / CARD)


def network_folder(value: str | os.PathLike[str], argument: str = "folder") -> Path:
    """Reads an argument that names the folder of a network, or as "convattn:NAME" a network of the package.

    What is no path raises ArgumentError, and a name that the package does not have UnknownNameError.

    Example:
        >>> network_folder("runs/first").as_posix()
        'runs/first'
    """
    path = as_path(value, argument)
    home, colon, name = str(path).partition(":")
    if home + colon != _HOME:
        return path
    if name not in pretrained_names():
        raise UnknownNameError("trained network", name, pretrained_names())
    return _folder() / name


def _folder() -> Path:
    return Path(str(resources.files("convattn") / "pretrained"))
