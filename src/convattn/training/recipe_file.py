"""Reads recipes from TOML, with overrides, and writes them."""

import os
import shlex
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from convattn.errors import ArgumentError, RecipeError, UnknownNameError, must_be
from convattn.fields import Text, read
from convattn.files import as_path
from convattn.training.recipe import Recipe

SCALES = ("paper", "medium", "small", "tiny")
"""Every scale, the largest first."""


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the package, sorted."""
    folder = resources.files("convattn.training") / "recipes"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_recipe(
    name_or_path: str | os.PathLike[str], *, scale: str | None = None, overrides: Mapping[str, str] | None = None
) -> Recipe:
    """Reads a recipe, changes its scale and applies overrides.

    Args:
        name_or_path: Name of a recipe of the package, or a path that ends in ".toml".
        scale: "paper" for the sizes that the recipe states, "medium" for half an hour to two hours, "small" for minutes
            and "tiny" for seconds on a CPU; None leaves the scale as the file has it.
        overrides: New values by dotted key, as text: ``{"optim.learning_rate": "0.05"}``; items of a list are separated
            by commas.

    Returns:
        The recipe, every value checked.

    Raises:
        ArgumentError: The name is neither text nor a path, or the overrides are not a dict.
        UnknownNameError: The package has no recipe of that name.
        RecipeError: The file is missing or not TOML, a key is unknown or missing, or a value is of the wrong type or
            out of range (the message names the file, the key, what was expected and what came); or the recipe does not
            have that scale.

    Example:
        >>> load_recipe("digits-quadratic", overrides={"training.epochs": "3"}).training.epochs
        3
    """
    source, content = _read(name_or_path)
    if not isinstance(overrides, Mapping | None) or not all(isinstance(key, str) for key in overrides or ()):
        raise ArgumentError(must_be("overrides", "new values by key, as a dict", overrides))
    own_scales = content.pop("scales", {})
    _require_scales(own_scales, source)
    if scale is not None and scale != content.get("scale", "paper"):
        content = _change_scale(content, scale, own_scales, source)
    for key, text in (overrides or {}).items():
        *sections, last = key.split(".")
        table = content
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{source}: cannot set {key}, because {section} is a single value")
        table[last] = Text(text)
    try:
        return read(Recipe, content)
    except ArgumentError as error:
        raise RecipeError(f"{source}: {error}") from None


def recipe_to_toml(recipe: Recipe) -> str:
    """Returns a recipe as TOML with every value; `load_recipe` reads the same recipe back."""
    return tomli_w.dumps(recipe.to_dict(), multiline_strings=True)


def command_for(recipe: Recipe) -> str:
    """Returns the command that repeats a run, with one ``--set`` for each changed value.

    For a recipe that is not in the package it names a file.

    Example:
        >>> command_for(load_recipe("digits-quadratic", overrides={"seed": "1"}))
        'convattn train digits-quadratic --set seed=1'
    """
    if recipe.name not in recipe_names():
        return "convattn train recipe.toml"
    try:
        original, wanted = (_flatten(item.to_dict()) for item in (load_recipe(recipe.name, scale=recipe.scale), recipe))
    except RecipeError:
        return "convattn train recipe.toml"
    if original.keys() - wanted.keys():
        return "convattn train recipe.toml"
    changes = [
        f"--set {shlex.quote(f'{key}={_as_text(value)}')}"
        for key, value in wanted.items()
        if original.get(key) != value
    ]
    scale = [] if recipe.scale == "paper" else [f"--scale {recipe.scale}"]
    return " ".join(["convattn train", recipe.name, *scale, *changes])


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Lists the keys in which two recipes differ, without the claim, which changes no number.

    Example:
        >>> differing_keys({"claim": "none", "data": {"name": "digits"}}, {"data": {"name": "cifar10"}})
        ["data.name is 'digits', not 'cifar10'"]
    """
    one, other = _flatten(first), _flatten(second)
    keys = [key for key in {**one, **other} if key != "claim" and one.get(key) != other.get(key)]
    return [f"{key} is {one.get(key)!r}, not {other.get(key)!r}" for key in keys]


def flat_values(recipe: Recipe) -> dict[str, Any]:
    """Returns a recipe's values by dotted key; lists become text separated by commas."""
    return {
        key: _as_text(value) if isinstance(value, list) else value for key, value in _flatten(recipe.to_dict()).items()
    }


def _flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _as_text(value: object) -> str:
    """Writes a value as the text of an override."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(name_or_path: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """Returns the name of the file, for messages, and what it holds."""
    as_path(name_or_path, "name_or_path")
    name = os.fspath(name_or_path)
    if name.endswith(".toml"):
        source, file = name, Path(name)
    elif name in recipe_names():
        source, file = f"{name}.toml", resources.files("convattn.training") / "recipes" / f"{name}.toml"
    else:
        raise UnknownNameError("recipe", name, recipe_names())
    try:
        return source, tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{source}: cannot read the recipe ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{source}: not TOML ({error})") from None


def _change_scale(content: Mapping[str, Any], scale: str, own: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Changes the scale of a recipe of CIFAR-10 from "paper" to another.

    `scales.toml` holds the changes for every recipe; those in `own`, the recipe's own table ``scales``, are applied
    after them. For a section with several kinds (model, schedule), `scales.toml` has a table for each kind. `source`
    names the recipe's file in messages.

    Example:
        >>> recipe = {"model": {"kind": "conv_net", "width": 400}, "data": {"name": "cifar10"}}
        >>> _change_scale(recipe, "tiny", {}, "mine.toml")["data"]["name"]
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


def _require_scales(own: object, source: str) -> None:
    """Raises RecipeError if a recipe's own table ``scales`` has a wrong form, whether it is used or not."""
    if not isinstance(own, dict):
        raise RecipeError(f"{source}: {must_be('scales', 'a table', own)}")
    for scale, sections in own.items():
        if scale not in SCALES[1:]:
            known = f"{', '.join(map(repr, SCALES[1:-1]))} or {SCALES[-1]!r}"
            raise RecipeError(f"{source}: {must_be('the key in scales', known, scale)}")
        if not isinstance(sections, dict) or not all(isinstance(table, dict) for table in sections.values()):
            raise RecipeError(f"{source}: {must_be(f'scales.{scale}', 'tables of sections', sections)}")


def _change(section: Any, changes: dict[Any, Any]) -> Any:
    """Applies changes to a section; of changes listed by kind, those for its own kind."""
    if not isinstance(section, dict):
        return section  # refused with its name where all sections are checked
    if changes and all(isinstance(table, dict) for table in changes.values()):
        changes = changes.get(section.get("kind"), {})
    if changes.get("kind", section.get("kind")) != section.get("kind"):
        return changes
    return {**section, **changes}
