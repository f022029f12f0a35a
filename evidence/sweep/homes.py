"""The homes of the networks that are swept."""

from importlib import import_module

from evidence.sweep.subjects import Home

HOMES: dict[str, str] = {
    "timm": "evidence.sweep.timm_subjects",
    "torchvision": "evidence.sweep.torchvision_subjects",
    "others": "evidence.sweep.other_subjects",
    "libraries": "evidence.sweep.library_subjects",
}
"""Modules by the name of the home that they hold, in the order of the sweep."""


def home(name: str) -> Home:
    """Imports a home, and with it the library.

    Args:
        name: One of `HOMES`.

    Returns:
        The home.
    """
    return import_module(HOMES[name]).HOME
