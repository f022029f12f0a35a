"""scripts/claims.py holds the pages of results against the committed records."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from evidence.pretrained.__main__ import page

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "claims.py"))
ROOT = SCRIPT["ROOT"]


@pytest.fixture
def copied(tmp_path):
    """Pages and records, to be changed."""
    drawings = shutil.ignore_patterns("*.png", "*.svg")
    for folder in ("docs/results", "evidence"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=drawings)
    return tmp_path


def test_every_page_says_what_its_records_say():
    assert SCRIPT["wrong"]() == []


def test_a_changed_number_is_found_on_every_page(copied):
    claimed = dict(reversed([*SCRIPT["claims"](copied)]))  # the first claim of each page
    for name, text in claimed.items():
        page = SCRIPT["_file"](copied, name)
        digit = next(place for place, sign in enumerate(text) if sign.isdigit())
        other = text[:digit] + str(9 - int(text[digit])) + text[digit + 1 :]
        lines = page.read_text(encoding="utf-8").replace("|  |", "| |")
        assert text in lines
        page.write_text(lines.replace(text, other), encoding="utf-8")
    assert {f"{name} must say: {text}" for name, text in claimed.items()} <= set(
        SCRIPT["wrong"](copied)
    )


def test_a_changed_record_and_a_changed_table_are_found(copied):
    file = copied / "evidence" / "encodings" / "table" / "convnet-1" / "record.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    record["results"]["test_accuracy"] += 0.001
    file.write_text(json.dumps(record), encoding="utf-8")
    table = copied / "docs" / "results" / "layers-tables.md"
    table.write_text(table.read_text(encoding="utf-8").replace("310", "311", 1), encoding="utf-8")
    found = SCRIPT["wrong"](copied)
    assert "layers-tables.md is not the page of its record" in found
    assert {line.split(" ")[0] for line in found} == {
        "encodings.md",
        "index.md",
        "layers-tables.md",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 135 ms, 1.02 times as long, and reaches 93.51 ± 0.13 %.", []),
        ("It takes 13,500 ms, 1.03 points and 93.52 % of Python 3.11.", ["13,500 ms", "93.52"]),
    ],
)
def test_a_number_of_the_readme_is_on_a_page(text, found):
    assert SCRIPT["untold"](text) == found


def test_a_table_of_conversions_has_one_padding():
    content = json.loads(
        (ROOT / "evidence" / "pretrained" / "pretrained.json").read_text(encoding="utf-8")
    )
    paddings = {(row["run"], row["conversion"]): row["padding"] for row in content["rows"]}
    assert set(paddings.values()) == {"zeros", "replicate"}
    for table in page(content).split("Padding of the convolutions: ")[1:]:
        name, _, rows = table.partition(".\n\n")
        cells = [line.split(" | ") for line in rows.split("\n\n")[0].splitlines()[2:]]
        assert cells
        assert {paddings[row[0].removeprefix("| "), row[1]] for row in cells} == {name}
