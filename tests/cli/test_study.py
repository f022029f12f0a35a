"""The command, with real training on the embedded digits."""

import json
import tomllib
from functools import partial
from pathlib import Path

import pytest
from tests.cli.command import run
from tests.lab.study_fake import FakeTrain

from convattn import load_network
from convattn.lab.study_engines import LocalEngine, RayEngine
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
    engine = partial(LocalEngine, command=FakeTrain(failing=("digits-quadratic-1",)))
    monkeypatch.setattr("convattn.lab.study_engines.LocalEngine", engine)


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
        ("--seeds one", "--seeds must be whole numbers separated by commas, but is 'one'"),
        ("--set epochs", "--set must be of the form KEY=VALUE, but is 'epochs'"),
        ("--grid =3", "--grid must be of the form KEY=VALUE, but is '=3'"),
        (
            "--grid model.heads=2 --grid model.heads=3",
            "--grid must be given once for each key, with all of its values",
        ),
        ("--address auto", "--address needs --engine ray"),
        ("--workers 0", "workers must be at least 1, but is 0"),
        ("--baseline resnet", "unknown baseline 'resnet'"),
    ],
)
def test_mistakes_are_told_before_anything_runs(capsys, words, message):
    assert run(f"study digits-quadratic {words}") == 2
    assert message in capsys.readouterr().err
    assert not Path("study").exists()


def test_the_engine_has_what_was_given_and_reports_on_standard_error(monkeypatch, capsys):
    engines = []

    def note(*_, engine, **__):
        engines.append(engine)
        engine.tell("started")
        raise KeyboardInterrupt

    monkeypatch.setattr("convattn.lab.study", note)
    words = "study convnet --workers 3 --threads 5"
    assert run(words) == 130
    assert run(f"{words} --engine ray --address auto") == 130
    local, ray = engines
    assert (type(local), type(ray), ray.address) == (LocalEngine, RayEngine, "auto")
    assert [(engine.workers, engine.threads) for engine in engines] == [(3, 5), (3, 5)]
    out, err = capsys.readouterr()
    assert (out, err.count("started\n")) == ("", 2)
