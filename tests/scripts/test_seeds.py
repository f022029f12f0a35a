"""scripts/seeds.py runs what is missing, and counts."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "seeds.py"


OPTION = """
def pytest_addoption(parser):
    parser.addoption("--seed-shift", type=int)
"""
TEST = """
def test_shift(request):
    assert request.config.getoption("seed_shift") == 3
"""


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script's names; it runs a test of its shift, and then none of it."""
    names = runpy.run_path(str(SCRIPT))
    place = tmp_path / "repository"
    place.mkdir()
    (place / "conftest.py").write_text(OPTION)
    (place / "test_shift.py").write_text(TEST)
    changed = {"ROOT": place, "FAST": ["test_shift.py"], "SLOW": ["-k", "nothing_there"]}
    for name, value in changed.items():
        monkeypatch.setitem(names["run"].__globals__, name, value)
    return names


def test_runs_that_are_in_the_file_are_not_repeated(script, tmp_path, capsys):
    file = tmp_path / "runs.jsonl"
    kept = {
        "setting": "avx2",
        "shift": 3,
        "tests": 7,
        "skipped": 2,
        "failed": ["tests.a::b"],
        "seconds": 1,
    }
    file.write_text(json.dumps(kept) + "\n")
    assert (
        script["main"](
            ["-o", str(file), "--settings", "avx2", "plain", "--seeds", "3", "--no-header"]
        )
        == 1
    )
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0] == kept
    assert [
        (line["setting"], line["shift"], line["tests"], line["failed"]) for line in lines[1:]
    ] == [("plain", 3, 1, [])]
    shown = capsys.readouterr().out
    assert "| avx2 | 1 | 5 | 2 | 1 |" in shown
    assert "| plain | 1 | 1 | 0 | 0 |" in shown
    assert "- tests.a::b: avx2 3" in shown


def test_a_run_that_cannot_start_is_told(script):
    with pytest.raises(SystemExit, match="plain, shift 0: pytest did not run"):
        script["run"]("plain", 0, ["--no-such-option"])


def test_failures_are_named(script, tmp_path):
    report = tmp_path / "report.xml"
    cases = '<testcase classname="tests.a" name="b[1]"><failure/></testcase><testcase><skipped/></testcase><testcase/>'
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    record = {"tests": 0, "skipped": 0, "failed": []}
    script["count"](record, report)
    assert record == {"tests": 3, "skipped": 1, "failed": ["tests.a::b[1]"]}
