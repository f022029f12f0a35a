import io
import sys

import pytest

from convattn.cli.output import print_text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_text_is_plain_where_there_is_no_terminal(capsys):
    print_text("check: failed [1/2]")
    assert capsys.readouterr().out == "check: failed [1/2]\n"


@pytest.mark.parametrize(
    ("word", "colour"), [("exact", 32), ("close", 32), ("different", 33), ("failed", 31), ("FAILED", 31)]
)
def test_verdict_is_coloured_on_a_terminal(word, colour, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_text(f"check: {word} [1/2]")
    assert sys.stdout.getvalue() == f"check: \x1b[{colour}m{word}\x1b[0m [1/2]\n"
