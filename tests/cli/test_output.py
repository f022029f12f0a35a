import os
import sys
from dataclasses import dataclass

import pytest
from rich.cells import cell_len

from convattn.cli.output import first_free, fit, print_record
from convattn.record import Record


@pytest.mark.parametrize(
    ("taken", "empty", "expected"),
    [
        ([], [], "run"),
        (["run"], [], "run-2"),
        (["run", "run-2"], [], "run-3"),
        (["run"], ["run-2"], "run-2"),
        ([], ["run"], "run"),
    ],
)
def test_first_free(tmp_path, taken, empty, expected):
    for name in taken:
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text("taken")
    for name in empty:
        (tmp_path / name).mkdir()
    assert first_free(tmp_path / "run") == tmp_path / expected


@dataclass(frozen=True)
class Number(Record):
    """A result."""

    value: int


SUMMARY = (
    "a result\n  measured error  "
    + "word " * 20
    + "\n\n  repeat with     convattn "
    + "option " * 12
)


def test_on_a_terminal_lines_fit_it_and_commands_stay_whole(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((60, 24)))
    monkeypatch.delenv("COLUMNS", raising=False)
    print_record(Number(1), SUMMARY, json=False)
    *lines, command, _ = capsys.readouterr().out.split("\n")
    assert len(lines) == 5
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith(" " * 18 + "word")
    assert command == SUMMARY.splitlines()[-1]


@pytest.mark.parametrize("name", ["sa-quadratic-16-heads", "图像网络", "🐈🐕"])
def test_names_stay_whole_on_lines_of_so_many_columns(name):
    *lines, last = fit(f"  names  {' '.join([name] * 20)}", 40).split("\n")
    assert " ".join([*lines, last]).split() == ["names", *[name] * 20]
    assert all(40 - cell_len(f" {name}") < cell_len(line) <= 40 for line in lines)


def test_word_longer_than_a_line_is_broken():
    assert fit(f"  saved  {'a' * 50}", 40) == f"  saved  {'a' * 31}\n{' ' * 9}{'a' * 19}"


def test_what_a_long_first_column_leaves_no_room_for_stands_below_it():
    lines = fit(f"  {'a' * 30}  {'word ' * 9}", 40).split("\n")
    words = f"{' ' * 20}word word word word"
    assert lines == [f"  {'a' * 30}", words, words, f"{' ' * 20}word"]


def test_a_stream_that_is_closed_is_no_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    print_record(Number(1), SUMMARY, json=False)


def test_elsewhere_lines_stay_whole(capsys):
    print_record(Number(1), SUMMARY, json=False)
    assert capsys.readouterr().out == f"{SUMMARY}\n"
