"""`python -m benchmarks`: what it writes, what it says, and that a wrong contender is not praised."""

import json
import sys

import pytest
from PIL import Image

from benchmarks import runner
from benchmarks.__main__ import main
from benchmarks.cases import layer
from benchmarks.cases.layer import FORMS
from benchmarks.measure import in_a_process_of_its_own
from benchmarks.record import BenchmarkRecord
from benchmarks.suites import choose, find_suite

FILES = ["layers-tables.md", "layers.json", "scaling.png"]
PART = ("content-8-training", "scaling")
"""A case whose memory is measured, and those of several sizes."""


def contents(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def bench(words="", suite="layers"):
    return main([suite, "--quick", *words.split()])


def measured_here(function, contender, *arguments):
    """Measures in a process of its own the first contender only."""
    if contender == "convattn":
        return in_a_process_of_its_own(function, contender, *arguments)
    return function(contender, *arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Some of the quick suite."""
    folder = tmp_path_factory.mktemp("bench") / "made"
    cases = " ".join(f"--case {name}" for name in PART)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "in_a_process_of_its_own", measured_here)
        assert bench(f"-o {folder} --json {cases}") == 0
    return folder, BenchmarkRecord.load(folder / "layers.json")


def test_quick_suite_writes_every_file(made):
    folder, record = made
    assert contents(folder) == FILES
    assert record.passed
    assert record.quick
    with Image.open(folder / "scaling.png") as image:
        assert min(image.size) > 400


def test_record_holds_raw_times_and_where_they_are_from(made):
    folder, record = made
    content = json.loads((folder / "layers.json").read_text(encoding="utf-8"))
    assert (content["record"], content["schema_version"]) == ("BenchmarkRecord", 2)
    assert {"processor", "cores", "threads"} <= set(record.hardware)
    assert {"python", "torch", "convattn", "timm"} <= set(record.versions)
    assert record.started.endswith("+00:00")
    words = "".join(f" --case {name}" for name in PART)
    assert (
        record.command
        == f"python -m benchmarks layers --quick{words} --repeats 3 --dtype float32 --device cpu"
    )
    assert [case.name for case in record.cases] == [
        case.name for case in choose(find_suite("layers").cases(True), PART)
    ]
    for case in record.cases:
        for item in case.measurements:
            assert len(item.seconds) == (0 if item.skipped else record.rounds)
    assert record.not_covered


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_memory_is_measured(made):
    measured = [
        item
        for case in made[1].cases
        for item in case.measurements
        if item.extra_memory is not None
    ]
    assert [item.contender for item in measured] == ["convattn", "reference", "published"]


def test_page_says_what_the_record_says(made):
    folder, record = made
    page = (folder / "layers-tables.md").read_text(encoding="utf-8")
    for case in record.cases:
        assert f"## {case.group}\n" in page
        assert case.title[1:] in page
    for words in (
        record.command,
        record.hardware["processor"],
        *record.not_covered,
        "Every check passed.",
    ):
        assert words in page
    assert "the times say nothing about speed" in page
    assert "(scaling.png)" in page
    assert "Least-squares fits" not in page
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(record.groups()) + sum(len(case.measurements) for case in record.cases)


def test_table_is_printed_and_a_case_alone_draws_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench-layers").mkdir()
    (tmp_path / "bench-layers" / "mine").write_text("precious")
    assert bench("--case distance-8 --repeats 1") == 0
    assert contents(tmp_path / "bench-layers-2") == ["layers-tables.md", "layers.json"]
    assert contents(tmp_path / "bench-layers") == ["mine"]
    out, err = capsys.readouterr()
    assert err == ""
    assert "distance-8: distance, 3 heads, 16 channels" in out
    assert "÷ reference" in out
    assert (
        "every check passed\nwrote bench-layers-2; look at bench-layers-2/layers-tables.md\n" in out
    )


def test_group_of_sizes_is_printed_and_drawn(tmp_path, capsys):
    group = "sequences-forward"
    words = f"--case {group} --repeats 1 -o {tmp_path / 'made'}"
    assert bench(words, suite="sequences") == 0
    assert contents(tmp_path / "made") == [
        f"{group}.png",
        "sequences-tables.md",
        "sequences.json",
    ]
    out = capsys.readouterr().out
    assert all(
        f"{case.name}: " in out
        for case in find_suite("sequences").cases(True)
        if case.group == group
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_contender_is_told_with_exit_code_1(tmp_path, monkeypatch, capsys, as_json):
    def perturbed(case, setting):
        honest = FORMS["convattn"](case, setting)
        honest.module.register_forward_hook(lambda *args: args[2] * 1.0001)
        return honest

    monkeypatch.setattr(layer, "FORMS", {**FORMS, "convattn": perturbed})
    words = f"--case distance-8 -o {tmp_path / 'made'}"
    assert bench(f"{words} --json" if as_json else words) == 1
    out, err = capsys.readouterr()
    assert err == ""
    record = BenchmarkRecord.load(tmp_path / "made" / "layers.json")
    assert not record.passed
    assert record.cases[0].measurements[0].seconds == ()
    assert "A check FAILED" in (tmp_path / "made" / "layers-tables.md").read_text(encoding="utf-8")
    if as_json:
        assert BenchmarkRecord.from_json(out) == record
    else:
        assert "FAILED: output" in out
        assert "FAILED: a contender is wrong, see the tables" in out


def test_bfloat16_runs(tmp_path):
    words = "--case quadratic-8-forward --dtype bfloat16 --repeats 1"
    assert bench(f"{words} -o {tmp_path / 'made'}") == 0
    assert BenchmarkRecord.load(tmp_path / "made" / "layers.json").dtype == "bfloat16"


MISTAKES = {
    "case": ("--case hard-9", "unknown case 'hard-9': did you mean 'hard-8'"),
    "repeats": ("--repeats 0", "--repeats must be an integer of at least 1, but is 0"),
    "taken folder": ("-o taken", "--output must be new or empty, but 'taken' is not empty"),
    "file": ("-o taken/note", "--output must be a folder, but 'taken/note' is a file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_on_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "note").write_text("precious")
    words, message = MISTAKES[mistake]
    assert bench(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("python -m benchmarks: ")
    assert message in err
    assert err.count("\n") == 1
    assert contents(tmp_path) == ["taken", "taken/note"]


def test_suite_must_be_known(capsys):
    assert bench(suite="network") == 2
    assert (
        "unknown suite 'network': did you mean 'networks'? Known: layers, networks, sequences"
        in capsys.readouterr().err
    )
    assert main([]) == 2
    assert "requires an argument" in capsys.readouterr().err


def test_help_says_what_can_be_measured(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: python -m benchmarks ")
    assert {"layers", "networks", "sequences"} <= set(out.replace(",", " ").split())
    assert "Exit codes: 0 done, 1 a check failed" in out


def test_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run_suite", stop)
    assert bench() == 130
    assert contents(tmp_path) == []
