import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import run

from convattn.lab import load_recipe, recipe_to_toml
from convattn.provenance import RunRecord

FEW_STEPS = "training.batch_size=240"
SET = "--set model.width=5 --set model.depth=1 --set model.ffn=7 --set training.epochs=1"
SET += f" --set model.heads=2 --set {FEW_STEPS}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_run_goes_where_it_is_told_and_is_summarised(capsys):
    assert run(f"train digits-quadratic -o there/run {SET} --seed 3") == 0
    record = RunRecord.load("there/run/record.json")
    assert (record.seed, record.recipe["model"]["width"], record.recipe["training"]["epochs"]) == (
        3,
        5,
        1,
    )
    out, err = capsys.readouterr()
    cost, epoch = err.splitlines()
    assert re.fullmatch(
        r"digits-quadratic: 5 steps of [\d.e-]+ s on this machine, \d+ s; \d MiB", cost
    )
    assert epoch.startswith("epoch 1: loss ")
    assert out.startswith("digits-quadratic, seed 3\n")
    assert "with views" not in out
    assert f"test accuracy   {record.results['test_accuracy']:.2%}" in out
    assert record.command in out
    assert out.endswith("wrote there/run\n")


def test_default_folder_never_replaces_a_run(capsys):
    for folder in ("runs/digits-quadratic-0", "runs/digits-quadratic-0-2"):
        assert run(f"train digits-quadratic {SET}") == 0
        assert Path(folder, "record.json").is_file()
        assert capsys.readouterr().out.endswith(f"wrote {folder}\n")


def test_of_two_values_the_later_counts_and_json_is_the_record(capsys):
    assert run(f"train digits-quadratic {SET} --set seed=1 --set seed=2 --json") == 0
    printed = RunRecord.from_json(capsys.readouterr().out)
    assert printed == RunRecord.load("runs/digits-quadratic-2/record.json")


def test_one_of_several_processes_speaks(monkeypatch, capsys):
    assert run(f"train digits-quadratic {SET} -o run") == 0
    first = capsys.readouterr().out.replace("\nwrote run", "\nwas finished: run")
    for rank, said in (("0", first), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert run(f"train digits-quadratic {SET} -o run --resume") == 0
        assert capsys.readouterr().out == said


def test_scale_is_part_of_the_default_folder_and_of_the_summary(capsys):
    assert run(f"train convnet --scale tiny --set training.epochs=1 --set {FEW_STEPS}") == 0
    record = RunRecord.load("runs/convnet-tiny-0/record.json")
    assert (
        record.command
        == f"convattn train convnet --scale tiny --set training.epochs=1 --set {FEW_STEPS}"
    )
    assert capsys.readouterr().out.startswith("convnet at scale tiny, seed 0\n")


def test_accuracy_with_views_is_beside_that_without(capsys):
    words = "--set model.widths=4 --set training.epochs=1 --set training.test_views=mirror"
    assert run(f"train speedrun --scale tiny {words}") == 0
    results = RunRecord.load("runs/speedrun-tiny-0/record.json").results
    out = capsys.readouterr().out
    assert f"test accuracy   {results['test_accuracy']:.2%}\n" in out
    assert f"with views      {results['views_accuracy']:.2%} (mirror)\n" in out
    card = Path("runs/speedrun-tiny-0/README.md").read_text()
    assert f"| views_accuracy | {results['views_accuracy']:.6g} |" in card
    assert (
        "| measure of views | the same of the mean scores of several views of each image, see setup |"
        in card
    )


def test_terminal_gets_the_bar_and_no_lines(monkeypatch):
    told = []
    monkeypatch.setattr("convattn.lab.train", lambda *_, tell, **__: told.append(tell) or 1 / 0)
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        with pytest.raises(ZeroDivisionError):
            run("train digits-quadratic")
    assert [tell is None for tell in told] == [False, True]


def test_finished_run_is_shown_again_by_resume(capsys):
    assert run(f"train digits-quadratic {SET} --json") == 0
    first = capsys.readouterr().out
    assert run(f"train digits-quadratic {SET} --resume --json") == 0
    assert capsys.readouterr().out == first
    assert run(f"train digits-quadratic {SET} --resume") == 0
    assert capsys.readouterr().out.endswith("\nwas finished: runs/digits-quadratic-0\n")


@pytest.mark.filterwarnings("default::convattn.errors.CheckpointWarning")
def test_resume_goes_on_after_a_damaged_checkpoint_and_says_so(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("convattn.lab.loop.Trainer.summary", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(f"train digits-quadratic {SET} --checkpoint-every 2")
    newest = max(Path("runs/digits-quadratic-0/checkpoints").glob("step-*"))
    (newest / "model.safetensors").write_bytes(b"")
    assert run(f"train digits-quadratic {SET} --resume") == 0
    warning, *epochs = capsys.readouterr().err.splitlines()[2:]
    assert warning.startswith(f"convattn: checkpoint {newest.name} is damaged")
    assert re.search(r"; step-\d{8} is used$", warning)
    assert all(line.startswith("epoch 1: loss ") for line in epochs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--resume", "runs/digits-quadratic-0 holds no run to resume"),
        ("--tracker tensorbord", 'Did you mean "tensorboard"?'),
        (
            "--checkpoint-every 0",
            "--checkpoint-every must be an integer of at least 1, but is 0",
        ),
        ("--scale small", "digits-quadratic.toml: scale must be paper"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(capsys, words, message):
    assert run(f"train digits-quadratic {SET} {words}") == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_file_of_a_run_repeats_it():
    recipe = load_recipe(
        "sa-quadratic",
        scale="tiny",
        overrides={"training.epochs": "1", "training.batch_size": "240"},
    )
    Path("mine.toml").write_text(recipe_to_toml(recipe))
    assert run("train mine.toml -o first") == 0
    assert run("train first/recipe.toml -o second") == 0
    first, second = (
        json.loads(Path(name, "metrics.jsonl").read_text()) for name in ("first", "second")
    )
    assert first["test_loss"] == second["test_loss"]


def test_interruption_names_the_command_that_goes_on(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("convattn.lab.loop.Trainer.summary", interrupt)
        assert run(f"train digits-quadratic {SET} -o 'my run'") == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        "convattn: interrupted: convattn train 'my run'/recipe.toml -o 'my run' --resume goes on"
    )
    assert run(said.partition("interrupted: convattn ")[2].partition(" goes on")[0]) == 0
    assert RunRecord.load("my run/record.json").resumed == 1


def test_interruption_before_the_first_checkpoint_names_nothing(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convattn.lab.loop.load_data", interrupt)
    assert run(f"train digits-quadratic {SET}") == 130
    assert capsys.readouterr().err.splitlines()[1:] == ["convattn: interrupted"]


@pytest.mark.slow
def test_of_several_processes_one_speaks():
    launcher = f"{sys.executable} -m torch.distributed.run --nproc-per-node=2 -m convattn"
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    words = f"{launcher} train digits-quadratic {SET}".split()
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.count("test accuracy") == 1
    assert RunRecord.load("runs/digits-quadratic-0/record.json").hardware["processes"] == "2"
    assert [folder.name for folder in Path("runs").iterdir()] == ["digits-quadratic-0"]
