"""Types and ranges that a recipe's values may have: checked, and described in messages."""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Range", "explain", "fits", "hints"]


@dataclass(frozen=True)
class Range:
    """An interval of finite numbers, for use in `typing.Annotated`.

    Attributes:
        low: Lower end.
        high: Upper end; None where there is none.
        without_low: Whether the lower end itself is excluded.
        without_high: Whether the upper end itself is excluded.
    """

    low: int
    high: int | None = None
    without_low: bool = False
    without_high: bool = False

    def __contains__(self, value: float) -> bool:
        """Says whether a number is in the interval."""
        above = value > self.low if self.without_low else value >= self.low
        below = self.high is None or (value < self.high if self.without_high else value <= self.high)
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        """Describes the interval, completing "a number …"."""
        if self.high is None:
            return f"{'above' if self.without_low else 'of at least'} {self.low}"
        return f"in {'(' if self.without_low else '['}{self.low}, {self.high}{')' if self.without_high else ']'}"


def hints(section: type) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, with its ranges."""
    found = typing.get_type_hints(section, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(section)}


def fits(value: object, hint: Any) -> bool:
    """Says whether a value is of the annotated type and within its range.

    Args:
        value: Any value.
        hint: bool, int, float, str, a Literal, an optional type, a tuple of any length, or one of them with a `Range`.

    Returns:
        Whether it is. An int counts as a float; a bool never counts as a number.

    Example:
        >>> fits(3, int), fits(True, int), fits(3, typing.Annotated[float, Range(0, 1)])
        (True, False, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return fits(value, arguments[0]) and all(value in limit for limit in arguments[1:])
    if origin is Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(item, arguments[0]) for item in value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else hint)


def explain(hint: Any) -> str:
    """Describes what `fits` accepts, completing "must be …".

    Args:
        hint: What `fits` takes.

    Returns:
        The expectation in words.

    Example:
        >>> explain(typing.Annotated[int, Range(1)])
        'an integer of at least 1'
        >>> explain(Literal["sgd", "adamw"])
        "'sgd' or 'adamw'"
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return " ".join([explain(arguments[0]), *map(str, arguments[1:])])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(explain(argument) for argument in arguments if argument is not types.NoneType)
    if origin is tuple:
        return f"a list, each item {explain(arguments[0])}"
    return {bool: "true or false", int: "an integer", float: "a number", str: "text"}[hint]
