"""Names of the layers of a network, and patterns that choose among them."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from convattn.errors import ArgumentError, must_be

__all__ = ["matches", "names_by_module", "patterns", "require_matches"]


def names_by_module(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Lists all names of each module, in the order of the network; a module used in several places has several."""
    named: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        named.setdefault(module, []).append(name)
    return named


def patterns(argument: str, value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Reads the name patterns given as `argument`: one, several or None; other values raise ArgumentError."""
    if value is None:
        return None
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Sequence) or not several or not all(isinstance(item, str) for item in several):
        raise ArgumentError(must_be(argument, "a name pattern or a sequence of them", value))
    return tuple(several)


def require_matches(every: Sequence[str], kind: str, **given: Sequence[str] | None) -> None:
    """Raises ArgumentError if a pattern matches none of the names of `kind`, probably a typo."""
    for argument, wanted in given.items():
        unknown = next((pattern for pattern in wanted or () if not matches(every, (pattern,))), None)
        if unknown is not None:
            example = next(iter(get_close_matches(unknown, every, n=1, cutoff=0.0)))
            expectation = f"a pattern that matches {kind} in the network, for instance {example or '*'!r}"
            raise ArgumentError(must_be(argument, expectation, unknown))


def matches(names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tells whether a pattern matches one of a module's names."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in wanted)
