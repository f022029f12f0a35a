from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import convattn.fields
from convattn.errors import ArgumentError
from convattn.fields import Range, Text, explain, read

RANGES = {
    "of at least 0": (Range(0), [0, 1e9, 10**400], [-1, float("inf"), float("nan")]),
    "above 0": (Range(0, without_low=True), [1e-9], [0, float("inf")]),
    "in [0, 1]": (Range(0, 1), [0, 1], [-0.1, 1.1]),
    "in (0, 1)": (Range(0, 1, without_low=True, without_high=True), [0.5], [0, 1]),
}


@pytest.mark.parametrize("words", RANGES)
def test_range_holds_what_its_words_say(words):
    limit, inside, outside = RANGES[words]
    assert str(limit) == words
    assert all(value in limit for value in inside)
    assert not any(value in limit for value in outside)


FITTING = {
    "an integer": (int, [3], [True, 3.0, "3", None]),
    "a number": (float, [3, 3.5], [True, "3", None]),
    "true or false": (bool, [True, False], [1, 0, "true"]),
    "text": (str | None, ["a", None], [3]),
    "'a' or 'b'": (Literal["a", "b"], ["a"], ["c", 1]),
    "a number of at least 1": (Annotated[float, Range(1)], [1, 2.5], [0.5, "x"]),
    "a list of 2, each item an integer": (tuple[int, int], [(1, 2)], [(1,), [1, 2], (1, "2")]),
    "a list, each item any value": (tuple[Any, ...], [(), (1, "a")], [None, 5]),
    "a table": (dict[str, int], [{}, {"a": 1}], [{"a": "b"}, [], None]),
    "a list, each item an integer of at least 1": (
        tuple[Annotated[int, Range(1)], ...],
        [(), (1, 2)],
        [(0,), [1], 1],
    ),
}


def fits(value, hint):
    """Says whether a value is read as it is."""
    try:
        return read(hint, value) == value
    except ArgumentError:
        return False


@pytest.mark.parametrize("words", FITTING)
def test_types_hold_what_their_words_say(words):
    hint, right, wrong = FITTING[words]
    assert explain(hint) == words
    assert all(fits(value, hint) for value in right)
    assert not any(fits(value, hint) for value in wrong)


@dataclass(frozen=True)
class Disc:
    kind: Literal["disc"]
    radius: Annotated[float, Range(0)] = 1.0


@dataclass(frozen=True)
class Box:
    kind: Literal["box"]
    sides: tuple[int, int]


@dataclass(frozen=True)
class Drawing:
    title: str
    shapes: tuple[Disc | Box, ...] = ()
    frame: Box | None = None
    rest: Any = None


WHOLE = {
    "title": "inf",
    "shapes": [{"kind": "disc", "radius": 2}, {"kind": "box", "sides": [1, 2]}],
    "rest": {"a": [None]},
}


def test_tables_become_dataclasses_of_their_kind():
    drawing = read(Drawing, WHOLE)
    assert drawing == Drawing("inf", (Disc("disc", 2.0), Box("box", (1, 2))), None, {"a": [None]})
    assert type(drawing.shapes[0].radius) is float
    assert read(Drawing, drawing) is drawing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": 3}, "title must be text, but is 3"),
        (
            {"titel": "a"},
            "unknown key 'titel': did you mean 'title'\\? Known: title, shapes, frame, rest",
        ),
        ({"shapes": {}}, r"shapes must be a list, each item a table, but is \{\}"),
        ({"shapes": [3]}, r"shapes\[0\] must be a table, but is 3"),
        (
            {"shapes": [{"kind": "disk"}]},
            r"shapes\[0\]\.kind must be 'disc' or 'box', but is 'disk'",
        ),
        (
            {"shapes": [{"kind": "disc", "radius": -1}]},
            r"shapes\[0\]\.radius must be a number of at least 0, but is -1",
        ),
        (
            {"frame": {"kind": "box"}},
            r"frame\.sides is missing; it must be a list of 2, each item an integer",
        ),
        (
            {"frame": {"kind": "box", "sides": [1]}},
            r"frame\.sides must be a list of 2, each item an integer, but is \[1\]",
        ),
    ],
)
def test_the_wrong_value_is_named_by_its_dotted_key(changes, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        read(Drawing, WHOLE | changes)


def test_every_field_must_be_there_where_that_is_required():
    with pytest.raises(ArgumentError, match=r"^frame is missing; it must be a table"):
        read(Drawing, WHOLE, complete=True)
    with pytest.raises(
        ArgumentError, match=r"^shapes\[0\]\.radius is missing; it must be a number of at least 0"
    ):
        read(Drawing, WHOLE | {"frame": None, "shapes": [{"kind": "disc"}]}, complete=True)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "3", 3),
        (float | None, "3", 3.0),
        (float, "-inf", float("-inf")),
        (bool, "True", True),
        (str, "3", "3"),
        (Literal["a", "b"], "b", "b"),
        (tuple[str, ...], "", ()),
        (tuple[float, ...], "1, 2.5", (1.0, 2.5)),
    ],
)
def test_text_is_read_as_what_belongs_there(hint, text, value):
    found = read(hint, Text(text))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "hint", [int, float, bool, Literal["a"], tuple[int, ...], dict[str, int], Disc]
)
def test_text_of_another_type_is_refused(hint):
    with pytest.raises(ArgumentError, match=r"^key(\[0\])? must be .*, but is 'x'$"):
        read(hint, Text("x"), "key")


def test_nothing_else_reads_annotations():
    package = Path(convattn.fields.__file__).parent
    reading = [
        file
        for file in package.rglob("*.py")
        if "get_type_hints" in file.read_text(encoding="utf-8")
    ]
    assert [file.relative_to(package).as_posix() for file in reading] == ["fields.py"]
