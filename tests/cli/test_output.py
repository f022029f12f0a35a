import os
import sys
from dataclasses import dataclass

import pytest

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


def test_names_with_hyphens_stay_whole():
    names = ["sa-quadratic-16-heads"] * 6
    assert fit(f"  recipes  {' '.join(names)}", 40).split()[1:] == names


def test_elsewhere_lines_stay_whole(capsys):
    print_record(Number(1), SUMMARY, json=False)
    assert capsys.readouterr().out == f"{SUMMARY}\n"
