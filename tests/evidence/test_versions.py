"""The record of versions: new rows take the place of old ones."""

import json
from pathlib import Path

from evidence.versions.__main__ import TESTS, write

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


def test_rows_of_other_pythons_stay(tmp_path):
    file = tmp_path / "versions.json"
    for rows in ([row("3.12.1", green=False)], [row("3.11.7")], [row("3.12.1")]):
        write({"rows": rows}, file)
    kept = json.loads(file.read_text())["rows"]
    assert [(item["python"], item["green"]) for item in kept] == [
        ("3.11.7", True),
        ("3.12.1", True),
    ]


def test_what_it_runs_is_there():
    assert [path for path in TESTS if not (ROOT / path).exists()] == []
