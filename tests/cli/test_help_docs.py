"""docs/reference/commands.md is what the commands print."""

import runpy
from pathlib import Path

from convattn.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]


def test_page_is_current():
    script = runpy.run_path(str(ROOT / "scripts" / "command_help.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["text"](), "run make docs"


def test_page_has_every_command():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## convattn",
        *(f"## convattn {name}" for name in COMMANDS),
    ]
