"""The page of versions: its table is that of the record, and new rows take the place of old ones."""

import json
from pathlib import Path

from evidence.versions.__main__ import TESTS, as_table, write

ROOT = Path(__file__).parents[2]


def row(python, *, green=True):
    versions = {"torch": "2.11.0", "timm": "1.0.28"}
    outcome = {"green": green, "example": green, "tests": {"passed": 7}, "seconds": 3}
    return {
        "python": python,
        "end": "lowest",
        "versions": versions,
        "packages": 116,
        "MB": 7566,
        **outcome,
    }


def test_the_page_shows_its_record():
    record = json.loads(
        (ROOT / "evidence" / "versions" / "versions.json").read_text(encoding="utf-8")
    )
    assert as_table(record) in (ROOT / "docs" / "results" / "versions.md").read_text(
        encoding="utf-8"
    )
    assert all(item["green"] for item in record["rows"])


def test_a_row_that_fails_is_seen():
    head, rule, line = as_table({"rows": [row("3.11.7", green=False)]}).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line == "| 3.11.7 | lowest | 2.11.0 | 1.0.28 | – | ✗ 7 passed | 116 | 7,566 |"


def test_rows_of_other_pythons_stay(tmp_path):
    file, page = tmp_path / "versions.json", tmp_path / "versions.md"
    page.write_text("# Title\n<!-- table -->\nold\n<!-- end -->\nEnd\n")
    for rows in ([row("3.12.1", green=False)], [row("3.11.7")], [row("3.12.1")]):
        write({"rows": rows}, file, page)
    kept = json.loads(file.read_text())["rows"]
    assert [(item["python"], item["green"]) for item in kept] == [
        ("3.11.7", True),
        ("3.12.1", True),
    ]
    text = page.read_text()
    assert text.startswith("# Title\n<!-- table -->\n\n| Python |")
    assert text.endswith("|\n\n<!-- end -->\nEnd\n")
    assert "old" not in text


def test_what_it_runs_is_there():
    assert [path for path in TESTS if not (ROOT / path).exists()] == []
