"""Fields of dataclasses: read from plain values, checked against their annotations, and described in messages.

Records and recipes are read here, whether from JSON, from TOML or from the command line.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from convattn.errors import ArgumentError, must_be, nearest_of, require

_NOT_FINITE = ("inf", "-inf", "nan")
"""Numbers that JSON lacks, as records write them."""

_WORDS = {
    Any: "any value",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
}


@dataclass(frozen=True)
class Range:
    """An interval of finite numbers, for use in `typing.Annotated`."""

    low: int  # Lower end
    high: int | None = None  # Upper end; None for no limit
    without_low: bool = False  # Whether the lower end itself is excluded
    without_high: bool = False  # Whether the upper end itself is excluded

    def __contains__(self, value: float) -> bool:
        """Says whether a number is in the interval."""
        if value == self.low:
            return not self.without_low
        if value == self.high:
            return not self.without_high
        return self.low < value < (math.inf if self.high is None else self.high)

    def __str__(self) -> str:
        """Describes the interval, completing "a number …"."""
        if self.high is None:
            start = "above" if self.without_low else "of at least"
            return f"{start} {self.low}"
        left = "(" if self.without_low else "["
        right = ")" if self.without_high else "]"
        return f"in {left}{self.low}, {self.high}{right}"


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
    if hint is Any or (value is None and types.NoneType in typing.get_args(hint)):
        return value
    kinds = _dataclasses(hint)
    if kinds:
        return _read_table(kinds, value, key, complete=complete)
    plain, limits = _members(hint)[0], ()
    if typing.get_origin(plain) is Annotated:
        plain, *limits = typing.get_args(plain)
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    items = _items(arguments, value) if origin is tuple else None
    if items is not None:
        parts = []
        for place, (item_hint, item) in enumerate(items):
            parts.append(read(item_hint, item, f"{key}[{place}]", complete=complete))
        return tuple(parts)
    if origin is dict and isinstance(value, dict):
        table = {}
        for name, item in value.items():
            table[name] = read(arguments[1], item, f"{key}.{name}", complete=complete)
        return table
    scalar = _scalar(plain, value)
    if scalar is None or not all(scalar in limit for limit in limits):
        raise ArgumentError(must_be(key, explain(hint), value))
    return scalar


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
    members = _members(hint)
    if members != (hint,):
        return " or ".join(map(explain, members))
    return _WORDS[hint]


def hints(kind: type) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, with its ranges."""
    annotations = typing.get_type_hints(kind, include_extras=True)
    return {field.name: annotations[field.name] for field in dataclasses.fields(kind)}


def _members(hint: Any) -> tuple[Any, ...]:
    """Returns the alternatives of a union besides None; of another annotation, itself alone."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return (hint,)
    return tuple(member for member in typing.get_args(hint) if member is not types.NoneType)


def _dataclasses(hint: Any) -> list[Any]:
    """Returns the dataclasses that an annotation allows."""
    return [member for member in _members(hint) if dataclasses.is_dataclass(member)]


def _read_table(kinds: Sequence[type], value: object, key: str, *, complete: bool) -> Any:
    """Makes one of several dataclasses from a table, checking every key."""
    if isinstance(value, tuple(kinds)):
        return value
    if not isinstance(value, dict):
        raise ArgumentError(must_be(key, "a table", value))
    prefix = f"{key}." if key else ""
    kind = _kind_named(kinds, value.get("kind"), f"{prefix}kind")
    expected = hints(kind)
    for name in value:
        if name not in expected:
            raise ArgumentError(f"unknown key {prefix + name!r}{nearest_of(expected, name)}")
    for field in dataclasses.fields(kind):
        has_default = not (field.default is field.default_factory is dataclasses.MISSING)
        if field.name not in value and (complete or not has_default):
            what = explain(expected[field.name])
            raise ArgumentError(f"{prefix}{field.name} is missing; it must be {what}")
    fields = {}
    for name, item in value.items():
        fields[name] = read(expected[name], item, prefix + name, complete=complete)
    try:
        return kind(**fields)
    except ArgumentError as error:
        raise ArgumentError(f"{prefix}{error}") from None


def _kind_named(kinds: Sequence[type], name: object, key: str) -> type:
    """Chooses between dataclasses by the value of their field "kind"."""
    if len(kinds) == 1:
        return kinds[0]
    names = [typing.get_args(hints(kind)["kind"])[0] for kind in kinds]
    require(name in names, key, " or ".join(map(repr, names)), name)
    return kinds[names.index(name)]


def _items(item_hints: Sequence[Any], value: object) -> list[tuple[Any, Any]] | None:
    """Returns the items of a list, each after its annotation; None if it is not a list or has another length."""
    if isinstance(value, Text):
        value = [Text(item.strip()) for item in value.split(",")] if value else []
    if not isinstance(value, list | tuple):
        return None
    if item_hints[-1] is Ellipsis:
        return [(item_hints[0], item) for item in value]
    if len(item_hints) != len(value):
        return None
    return list(zip(item_hints, value, strict=True))


def _scalar(kind: Any, value: object) -> Any:
    """Returns a value as a choice, a truth value, a number or text; None if it is not of that kind."""
    if typing.get_origin(kind) is Literal:
        return next((choice for choice in typing.get_args(kind) if choice == value), None)
    if kind is bool and isinstance(value, Text):
        return {"true": True, "false": False}.get(value.lower())
    if kind not in (bool, int, float, str) or (isinstance(value, bool) and kind is not bool):
        return None
    if kind in (int, float) and (isinstance(value, int | Text) or value in _NOT_FINITE):
        try:
            return kind(value)
        except (OverflowError, ValueError):
            return None
    if kind is str and isinstance(value, str):
        value = str(value)  # of a `Text` too
    return value if isinstance(value, kind) else None
