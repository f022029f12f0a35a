from pathlib import Path

import pytest

from convattn.cli import main
from convattn.records import RunRecord

TINY = ("model.width=5", "model.depth=1", "model.heads=2", "model.ffn=7", "training.epochs=1")
SET = [item for change in TINY for item in ("--set", change)]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_run_goes_where_it_is_told_and_is_summarised(capsys):
    assert main(["train", "digits-quadratic", "-o", "there/run", *SET, "--set", "seed=3"]) == 0
    record = RunRecord.load("there/run/record.json")
    assert (record.seed, record.recipe["model"]["width"], record.recipe["training"]["epochs"]) == (3, 5, 1)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("digits-quadratic, seed 3\n")
    assert f"test accuracy   {record.results['test_accuracy']:.2%}" in out
    assert record.command in out
    assert out.endswith("wrote there/run\n")


def test_default_folder_never_replaces_a_run(capsys):
    for folder in ("runs/digits-quadratic-0", "runs/digits-quadratic-0-2"):
        assert main(["train", "digits-quadratic", *SET]) == 0
        assert Path(folder, "record.json").is_file()
        assert capsys.readouterr().out.endswith(f"wrote {folder}\n")


def test_of_two_values_the_later_counts_and_json_is_the_record(capsys):
    assert main(["train", "digits-quadratic", *SET, "--set", "seed=1", "--set", "seed=2", "--json"]) == 0
    printed = RunRecord.from_json(capsys.readouterr().out)
    assert printed == RunRecord.load("runs/digits-quadratic-2/record.json")
