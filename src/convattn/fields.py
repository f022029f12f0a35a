"""Fields of dataclasses: read from plain values, checked against their annotations, and described in messages.

Records and recipes are read here, whether from JSON, from TOML or from the command line.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from convattn.errors import ArgumentError, must_be

_NOT_FINITE = ("inf", "-inf", "nan")
"""Numbers that JSON lacks, as records write them."""


@dataclass(frozen=True)
class Range:
    """An interval of finite numbers, for use in `typing.Annotated`."""

    low: int  # Lower end
    high: int | None = None  # Upper end; None for no limit
    without_low: bool = False  # Whether the lower end itself is excluded
    without_high: bool = False  # Whether the upper end itself is excluded

    def __contains__(self, value: float) -> bool:
        """Says whether a number is in the interval."""
        above = value > self.low if self.without_low else value >= self.low
        if self.high is None:
            return above and value < math.inf
        return above and (value < self.high if self.without_high else value <= self.high)

    def __str__(self) -> str:
        """Describes the interval, completing "a number …"."""
        if self.high is None:
            return f"{'above' if self.without_low else 'of at least'} {self.low}"
        return f"in {'(' if self.without_low else '['}{self.low}, {self.high}{')' if self.without_high else ']'}"


class Text(str):
    """Text that stands for a value of any type, as on a command line; items of a list are separated by commas."""

    __slots__ = ()


def read(hint: Any, value: object, key: str = "", *, complete: bool = False) -> Any:
    """Makes a value of an annotated type from a plain one.

    A dict becomes a dataclass; where several are allowed, its key "kind" chooses. A list becomes a tuple, an integer a
    float where one belongs, "inf" and "nan" floats. A bool never counts as a number.

    Args:
        hint: bool, int, float, str, Any, a Literal, a dataclass or several, a tuple, a dict with text as keys, one of
            them with a `Range`, or one of them or None.
        value: A value of that type, or a plain one; a `Text` is read as the type that belongs there.
        key: Dotted key of the value, for messages; empty for the whole.
        complete: Whether fields with a default must be there as well.

    Returns:
        The value.

    Raises:
        ArgumentError: A key is unknown or missing, or a value is of another type or out of range; the message names it.

    Example:
        >>> read(tuple[float, ...], [1, "inf"]), read(tuple[int, ...], Text("2, 5"))
        ((1.0, inf), (2, 5))
        >>> read(Annotated[int, Range(1)], 0, "training.epochs")
        Traceback (most recent call last):
        convattn.errors.ArgumentError: training.epochs must be an integer of at least 1, but is 0
    """
    members = _members(hint)
    if hint is Any or (value is None and types.NoneType in members):
        return value
    kinds = _dataclasses(hint)
    if kinds:
        return _read_table(kinds, value, key, complete=complete)
    plain, *limits = (
        typing.get_args(members[0]) if typing.get_origin(members[0]) is Annotated else members[:1]
    )
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin is tuple and (items := _items(arguments, value)) is not None:
        return tuple(
            read(one, item, f"{key}[{at}]", complete=complete)
            for at, (one, item) in enumerate(items)
        )
    if origin is dict and isinstance(value, dict):
        return {
            name: read(arguments[1], item, f"{key}.{name}", complete=complete)
            for name, item in value.items()
        }
    found = _scalar(plain, value)
    if found is None or not all(found in limit for limit in limits):
        raise ArgumentError(must_be(key, explain(hint), value))
    return found


def fits(value: object, hint: Any) -> bool:
    """Returns whether a value is of the annotated type and within its range; an int counts as a float.

    Example:
        >>> fits(3, int), fits(True, int), fits(3, Annotated[float, Range(0, 1)])
        (True, False, False)
    """
    try:
        return read(hint, value) == value
    except ArgumentError:
        return False


def explain(hint: Any) -> str:
    """Describes what `read` accepts, completing "must be …".

    Example:
        >>> explain(Annotated[int, Range(1)])
        'an integer of at least 1'
        >>> explain(Literal["sgd", "adamw"])
        "'sgd' or 'adamw'"
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if _dataclasses(hint) or origin is dict:
        return "a table"
    if origin is Annotated:
        return " ".join([explain(arguments[0]), *map(str, arguments[1:])])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        number = "" if arguments[-1] is Ellipsis else f" of {len(arguments)}"
        return f"a list{number}, each item {explain(arguments[0])}"
    if len(_members(hint)) > 1:
        return " or ".join(
            explain(member) for member in _members(hint) if member is not types.NoneType
        )
    return {
        Any: "any value",
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
    }[hint]


def hints(kind: type) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, with its ranges."""
    found = typing.get_type_hints(kind, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def _members(hint: Any) -> tuple[Any, ...]:
    """Returns the alternatives of a union, None last; of another annotation, itself alone."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return (
        tuple(sorted(typing.get_args(hint), key=lambda one: one is types.NoneType))
        if is_union
        else (hint,)
    )


def _dataclasses(hint: Any) -> list[type]:
    """Returns the dataclasses that an annotation allows."""
    return [
        member
        for member in _members(hint)
        if isinstance(member, type) and dataclasses.is_dataclass(member)
    ]


def _read_table(kinds: Sequence[type], value: object, key: str, *, complete: bool) -> Any:
    """Makes one of several dataclasses from a table, checking every key."""
    if isinstance(value, tuple(kinds)):
        return value
    if not isinstance(value, dict):
        raise ArgumentError(must_be(key, "a table", value))
    prefix = f"{key}." if key else ""
    kind = _chosen(kinds, value.get("kind"), f"{prefix}kind")
    expected = hints(kind)
    for name in value:
        if name not in expected:
            nearest = difflib.get_close_matches(name, expected, n=1, cutoff=0.5)
            meant = f": did you mean {nearest[0]!r}?" if nearest else "."
            raise ArgumentError(
                f"unknown key {prefix + name!r}{meant} Known: {', '.join(expected)}"
            )
    for field in dataclasses.fields(kind):
        required = complete or (field.default is field.default_factory is dataclasses.MISSING)
        if required and field.name not in value:
            raise ArgumentError(
                f"{prefix}{field.name} is missing; it must be {explain(expected[field.name])}"
            )
    found = {
        name: read(expected[name], one, prefix + name, complete=complete)
        for name, one in value.items()
    }
    try:
        return kind(**found)
    except ArgumentError as error:
        raise ArgumentError(f"{prefix}{error}") from None


def _chosen(kinds: Sequence[type], name: object, key: str) -> type:
    """Chooses between dataclasses by the value of their field "kind"."""
    if len(kinds) == 1:
        return kinds[0]
    names = [typing.get_args(hints(kind)["kind"])[0] for kind in kinds]
    if name not in names:
        raise ArgumentError(must_be(key, " or ".join(map(repr, names)), name))
    return kinds[names.index(name)]


def _items(item_hints: Sequence[Any], value: object) -> list[tuple[Any, Any]] | None:
    """Returns the items of a list, each after its annotation; None if it is not a list or has another length."""
    if isinstance(value, Text):
        value = [Text(item.strip()) for item in value.split(",")] if value else []
    if not isinstance(value, list | tuple):
        return None
    if item_hints[-1] is Ellipsis:
        return [(item_hints[0], item) for item in value]
    return list(zip(item_hints, value, strict=True)) if len(item_hints) == len(value) else None


def _scalar(kind: Any, value: object) -> Any:
    """Returns a value as a choice, a truth value, a number or text; None if it is not of that kind."""
    if typing.get_origin(kind) is Literal:
        return next((choice for choice in typing.get_args(kind) if choice == value), None)
    if kind is bool and isinstance(value, Text):
        return {"true": True, "false": False}.get(value.lower())
    if kind not in (bool, int, float, str) or (isinstance(value, bool) and kind is not bool):
        return None
    if kind in (int, float) and (
        isinstance(value, int | Text) or (isinstance(value, str) and value in _NOT_FINITE)
    ):
        try:
            return kind(value)
        except (OverflowError, ValueError):
            return None
    return (str(value) if kind is str else value) if isinstance(value, kind) else None
