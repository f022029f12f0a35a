"""Layers of a network by name: finding, matching, replacing."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from convattn.errors import ArgumentError, must_be

__all__ = ["matches", "names_by_module", "patterns", "replace_module", "require_matches"]


def names_by_module(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Lists all names of each module; one used in several places has several.

    Args:
        model: The network.

    Returns:
        Names by module, in the order of the network.
    """
    named: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        named.setdefault(module, []).append(name)
    return named


def patterns(argument: str, value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Reads patterns of names.

    Args:
        argument: Name of the argument, for the error.
        value: A pattern, several, or None.

    Returns:
        The patterns, or None.

    Raises:
        ArgumentError: The value is not one or more pieces of text.
    """
    if value is None:
        return None
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Sequence) or not several or not all(isinstance(item, str) for item in several):
        raise ArgumentError(must_be(argument, "a pattern of names, or several", value))
    return tuple(several)


def require_matches(every: Sequence[str], kind: str, **given: Sequence[str] | None) -> None:
    """Refuses a pattern that is of no name, which would be a slip of the pen.

    Args:
        every: All names, at least one.
        kind: What has those names, for the error.
        **given: Patterns, or None, by the name of the argument.

    Raises:
        ArgumentError: There is such a pattern.
    """
    for argument, wanted in given.items():
        unknown = next((pattern for pattern in wanted or () if not matches(every, (pattern,))), None)
        if unknown is not None:
            example = next(iter(get_close_matches(unknown, every, n=1, cutoff=0.0)))
            told = f"a pattern of names of {kind} in the network, for instance {example or '*'!r}"
            raise ArgumentError(must_be(argument, told, unknown))


def matches(names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tells whether one of a module's names is of one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in wanted)


def replace_module(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Puts a module in the place of another.

    Args:
        model: The network, changed in place.
        name: Name of the module to replace; "" is the network itself.
        module: What takes its place.

    Returns:
        The network, or `module` where that takes its place.
    """
    if not name:
        return module
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
    return model
