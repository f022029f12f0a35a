"""Three scales of a recipe: as in the paper, minutes on a CPU, and seconds."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from convattn.errors import RecipeError, UnknownNameError, must_be

SCALES = ("paper", "small", "tiny")
"""Every scale, the largest first."""


def change_scale(content: Mapping[str, Any], scale: str, own: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Changes the scale of a recipe of CIFAR-10.

    `scales.toml` holds the changes for every recipe; those in the recipe's own table ``scales`` are applied after them.
    For a section with several kinds (model, schedule), `scales.toml` has a table for each kind.

    Args:
        content: The recipe's tables, at the scale "paper".
        scale: One of `SCALES`.
        own: The recipe's own changes, by scale.
        source: Name of the recipe's file, for messages.

    Returns:
        The changed tables.

    Raises:
        UnknownNameError: There is no such scale.
        RecipeError: The recipe already has another scale, or is not a recipe of CIFAR-10.

    Example:
        >>> recipe = {"model": {"kind": "conv_net", "width": 400}, "data": {"name": "cifar10"}}
        >>> change_scale(recipe, "tiny", {}, "mine.toml")["data"]["name"]
        'digits'
    """
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, SCALES)
    if content.get("scale", "paper") != "paper":
        raise RecipeError(f"{source}: {must_be('scale', repr(content['scale']) + ', as the file says', scale)}")
    data = content.get("data", {})
    if isinstance(data, dict) and data.get("name", "cifar10") != "cifar10":
        expectation = "paper, because only recipes of cifar10 have other scales"
        raise RecipeError(f"{source}: {must_be('scale', expectation, scale)}")
    shared = tomllib.loads((resources.files("convattn.training") / "scales.toml").read_text(encoding="utf-8"))
    changed = dict(content) | {"scale": scale}
    for changes in (shared[scale], own.get(scale, {})):
        for section, table in changes.items():
            changed[section] = _change(changed.get(section, {}), table)
    return changed


def require_scales(own: object, source: str) -> None:
    """Checks the form of a recipe's own table ``scales``, whether it is used or not.

    Args:
        own: The table.
        source: Name of the recipe's file, for messages.

    Raises:
        RecipeError: It is not a table of tables of sections, or names an unknown scale.
    """
    if not isinstance(own, dict):
        raise RecipeError(f"{source}: {must_be('scales', 'a table', own)}")
    for scale, sections in own.items():
        if scale not in SCALES[1:]:
            raise RecipeError(f"{source}: {must_be('the key in scales', ' or '.join(map(repr, SCALES[1:])), scale)}")
        if not isinstance(sections, dict) or not all(isinstance(table, dict) for table in sections.values()):
            raise RecipeError(f"{source}: {must_be(f'scales.{scale}', 'tables of sections', sections)}")


def _change(section: Any, changes: dict[Any, Any]) -> Any:
    """Lays changes over a section; where they stand under kinds, those of the section's own kind."""
    if not isinstance(section, dict):
        return section  # refused with its name where all sections are checked
    if changes and all(isinstance(table, dict) for table in changes.values()):
        changes = changes.get(section.get("kind"), {})
    if changes.get("kind", section.get("kind")) != section.get("kind"):
        return changes
    return {**section, **changes}
