import io
import sys

from convattn.cli.output import print_text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_text_is_plain_where_there_is_no_terminal(capsys):
    print_text("check: passed [1/2]")
    assert capsys.readouterr().out == "check: passed [1/2]\n"


def test_verdict_is_coloured_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    print_text("check: FAILED [1/2]")
    assert sys.stdout.getvalue() == "check: \x1b[31mFAILED\x1b[0m [1/2]\n"
