"""The homes of the networks that are swept."""

from importlib import import_module
from pathlib import Path

from evidence.sweep.listed import listed
from evidence.sweep.subjects import Home

HOMES: dict[str, str] = {
    "timm": "evidence.sweep.timm_subjects",
    "torchvision": "evidence.sweep.torchvision_subjects",
    "others": "evidence.sweep.other_networks",
    "libraries": "library_networks.json",
    "packages": "package_networks.json",
}
"""Module that holds each home, or its list in this folder, in the order of the sweep."""


def home(name: str, code: str | None = None) -> Home:
    """Imports a home, and with it the library, or reads its list.

    Args:
        name: One of `HOMES`, or the path of a list.
        code: Folder of repositories from which networks of a list are imported.

    Returns:
        The home.
    """
    place = HOMES.get(name, name)
    if not place.endswith(".json"):
        return import_module(place).HOME
    file = Path(__file__).parent / place
    own_name = name if name in HOMES else file.stem
    return listed(own_name, file, code=None if code is None else Path(code))
