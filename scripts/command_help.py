"""Writes docs/reference/commands.md out of the help that the commands print: python scripts/command_help.py."""

import io
from pathlib import Path

from rich.console import Console

from convattn.cli.app import COMMANDS, build_app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
WIDTH = 100


def text() -> str:
    """Returns the page."""
    head = "# Commands\n\nWhat `convattn COMMAND --help` prints, written by `make docs`.\n"
    sections = [
        f"\n## convattn{f' {name}' if name else ''}\n\n```text\n{_help(name)}```\n"
        for name in ("", *COMMANDS)
    ]
    return head + "".join(sections)


def _help(name: str) -> str:
    """Returns the help of a command, or of the program."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False)
    build_app().help_print([name] if name else [], console=console)
    lines = console.file.getvalue().rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
