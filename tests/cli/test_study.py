"""The command, with real training on the embedded digits."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.command import run
from tests.lab.study_fake import FakeTrain

from convattn import load_network
from convattn.lab.study_record import StudyRecord
from convattn.provenance import RunRecord

SET = "--set model.width=5 --set model.depth=1 --set model.ffn=7 --set training.epochs=1"
SET += " --set training.batch_size=240"
STUDY = f"study digits-quadratic --threads 1 {SET} --seeds"
ONE, TWO = "--grid model.heads=2", "--grid model.heads=2,3"
LABELS = ("digits-quadratic[model.heads=2]", "digits-quadratic[model.heads=3]")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_study_trains_and_is_kept(capsys):
    assert run(f"{STUDY} 3 {ONE} -o there") == 0
    record = StudyRecord.load("there/study.json")
    out, err = capsys.readouterr()
    assert [group.label for group in record.groups] == [LABELS[0]]
    assert out.endswith("wrote there; look at there/study.md\n")
    assert err.count(": done in ") == 1
    assert record.command.startswith(
        "convattn study digits-quadratic --seeds 3 --set model.width=5"
    )
    folder = Path("there", record.runs[0].folder)
    assert load_network(folder)
    assert tomllib.loads((folder / "recipe.toml").read_text())["seed"] == 3
    assert RunRecord.load(folder / "record.json").hardware["threads"] == "1"

    assert run(f"{STUDY} 3 {ONE} -o there --json") == 0
    out, err = capsys.readouterr()
    assert StudyRecord.from_json(out) == record
    assert err.count(": kept, finished before") == 1


@pytest.fixture
def untrained(monkeypatch):
    """Puts programs that end at once in place of training; one fails."""
    fake = FakeTrain(failing=("digits-quadratic-1",))
    monkeypatch.setattr("convattn.lab.study_workers.train_command", fake)


def test_variants_are_compared(untrained, capsys):
    assert run(f"{STUDY} 3 {TWO} -o there") == 0
    record = StudyRecord.load("there/study.json")
    assert tuple(group.label for group in record.groups) == LABELS
    difference = f"{100 * record.differences[0].mean:+.2f} points, n = 1: too few"
    assert f"{LABELS[1]} less {LABELS[0]}: {difference}" in capsys.readouterr().out


def test_interruption_says_that_the_same_command_goes_on(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("convattn.lab.study", interrupt)
    assert run(f"{STUDY} 3") == 130
    assert capsys.readouterr().err == (
        "convattn: interrupted: the same command goes on; finished runs in study are kept\n"
    )


def test_failing_runs_are_named_with_their_last_line(untrained, capsys):
    assert run(f"{STUDY} 1 --json") == 1
    (failure,) = StudyRecord.from_json(capsys.readouterr().out).failures
    assert failure.reason == "cannot do epoch 0"
    assert (
        json.loads(Path("study/study.json").read_text())["failures"][0]["reason"] == failure.reason
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds one", "--seeds[0] must be an integer, but is 'one'"),
        ("--grid =3", "--grid must be of the form KEY=VALUE, but is '=3'"),
        (
            "--grid model.heads=2 --grid model.heads=3",
            "--grid must be given once for each key, with all of its values",
        ),
        ("--workers 0", "must be an integer of at least 1, but is '0'"),
        ("--baseline resnet", "unknown baseline 'resnet'"),
    ],
)
def test_mistakes_are_told_before_anything_runs(capsys, words, message):
    assert run(f"study digits-quadratic {words}") == 2
    assert message in capsys.readouterr().err
    assert not Path("study").exists()


def test_workers_and_threads_are_handed_on_and_lines_go_to_standard_error(monkeypatch, capsys):
    def note(*_, tell, workers, threads, **__):
        tell(f"{workers} workers, {threads} threads")
        raise KeyboardInterrupt

    monkeypatch.setattr("convattn.lab.study", note)
    assert run("study convnet --workers 3 --threads 5") == 130
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "3 workers, 5 threads")


def test_missing_packages_are_told_once_and_nothing_is_started(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("convattn.errors.find_spec", lambda _: None)
    assert run("study sa-quadratic") == 2
    assert capsys.readouterr().err == (
        "convattn: this needs accelerate, matplotlib, scipy, huggingface-hub, pyarrow, tomli-w, pillow, which"
        ' are not installed; run: pip install "convattn[train]"\n'
    )
    assert not list(tmp_path.iterdir())
