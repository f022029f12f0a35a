"""What depends on the process: precision, which is fixed for each, and their number."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from tests.lab.tiny import references_of_runs, tiny_data, tiny_recipe

from convattn.budget import Sums, assert_within_budget
from convattn.errors import DeviceError, MissingDependencyError
from convattn.lab import recipe_to_toml, train
from convattn.provenance import RunRecord

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.lab.tiny import tiny_data
from convattn.lab import load_recipe, train
from convattn.lab.trainer import Trainer

honest, last = Trainer._train_on, {last!r}

def interrupted(trainer, *batch):
    if trainer.step == last:
        raise SystemExit(3)
    return honest(trainer, *batch)

Trainer._train_on = interrupted
train(load_recipe({recipe!r}), output={output!r}, data=tiny_data(), progress=False, **{options!r})
"""
TWO = ("-m", "torch.distributed.run", "--nproc-per-node=2")


def with_precision(recipe, precision):
    return dataclasses.replace(
        recipe, training=dataclasses.replace(recipe.training, precision=precision)
    )


def run(*command):
    """Runs Python on the CPU, with one thread a process."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(
        words, check=False, capture_output=True, text=True, env=environment, cwd=ROOT
    )


def train_elsewhere(recipe, folder, *launcher, last=None, **options):
    """Trains in processes of their own, all of which end before a step where one is named, and returns the record."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(recipe_to_toml(recipe))
    script = folder / "script.py"
    output = folder / "run"
    named = {"recipe": str(folder / "recipe.toml"), "output": str(output)}
    script.write_text(SCRIPT.format(root=str(ROOT), **named, last=last, options=options))
    done = run(*launcher, script)
    assert (done.returncode == 0) is (last is None), done.stderr
    return None if last is not None else RunRecord.load(output / "record.json")


def train_in_two_processes(recipe, folder):
    """Trains in two processes that share every batch, and returns the record."""
    (folder / "recipe.toml").write_text(recipe_to_toml(recipe))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = run("-m", "tests.lab.pair", folder, port)
    assert done.returncode == 0, done.stderr
    return RunRecord.load(folder / "run" / "record.json")


def test_second_precision_in_one_process_is_refused():
    train(tiny_recipe(epochs=1), data=tiny_data(), progress=False)
    with pytest.raises(
        DeviceError, match=r"training\.precision 'bf16' is not possible in this process"
    ):
        train(with_precision(tiny_recipe(epochs=1), "bf16"), data=tiny_data(), progress=False)


def test_a_precision_that_a_cpu_does_not_train_in_is_refused_and_leaves_the_process_as_it_was(
    monkeypatch,
):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    for shared in (AcceleratorState, PartialState):
        monkeypatch.setattr(shared, "_shared_state", {})
    with pytest.raises(DeviceError, match=r"'fp16' is not possible on a CPU"):
        train(with_precision(tiny_recipe(epochs=1), "fp16"), data=tiny_data(), progress=False)
    assert AcceleratorState._shared_state == {}


def test_missing_accelerate_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingDependencyError, match="needs accelerate, which"):
        train(tiny_recipe(), data=tiny_data(), progress=False)


def test_what_the_folder_needs_is_named_before_anything_is_trained(monkeypatch, tmp_path):
    for module in ("huggingface_hub", "pyarrow", "tomli_w"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingDependencyError,
        match="needs huggingface-hub, pyarrow, tomli-w, which are not installed",
    ):
        train(tiny_recipe(), output=tmp_path / "run", data=tiny_data(), progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_mixed_precision_learns(tmp_path):
    record = train_elsewhere(with_precision(tiny_recipe(epochs=12), "bf16"), tmp_path)
    assert record.recipe["training"]["precision"] == "bf16"
    assert record.results["test_accuracy"] >= 0.9


def losses(folder):
    """The curve of a run: training and test loss of each epoch."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor(
        [[row["train_loss"], row["test_loss"]] for row in rows], dtype=torch.float64
    )


def test_two_processes_give_the_loss_curve_of_one(tmp_path):
    recipe = tiny_recipe(
        epochs=2
    )  # crops and flips are on: every process must draw those of the whole batch
    together = train_in_two_processes(recipe, tmp_path)
    assert together.hardware["processes"] == "2"

    def curve(recipe=recipe):
        folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "run"
        train(recipe, output=folder, data=tiny_data(), progress=False)
        return losses(folder)

    hi, lows = references_of_runs(curve)
    lows, sums = (
        [low.float() for low in lows],
        Sums(10, hi),
    )  # a loss is the mean over ten images or more
    assert_within_budget(
        losses(tmp_path / "run").float(), hi, lows, "loss curve of two processes", sums=sums
    )
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(
            curve(dataclasses.replace(recipe, seed=1)).float(), hi, lows, sums=sums
        )


@pytest.mark.slow
def test_two_processes_taken_up_within_an_epoch_end_with_the_same_curve(tmp_path):
    recipe = tiny_recipe(epochs=2, dropout=0.2)
    train_elsewhere(recipe, tmp_path / "whole", *TWO)
    train_elsewhere(recipe, tmp_path / "cut", *TWO, last=8, checkpoint_every=2)
    record = train_elsewhere(recipe, tmp_path / "cut", *TWO, resume=True, trackers=["tensorboard"])
    assert record.resumed == 1
    assert torch.equal(losses(tmp_path / "cut" / "run"), losses(tmp_path / "whole" / "run"))
    weights = [
        (tmp_path / name / "run" / "model.safetensors").read_bytes() for name in ("cut", "whole")
    ]
    assert weights[0] == weights[1]
    assert any("other processes" in item for item in record.not_covered)


@pytest.mark.slow
def test_compiled_network_learns(tmp_path):
    recipe = tiny_recipe(epochs=12)
    compiled = dataclasses.replace(
        recipe, training=dataclasses.replace(recipe.training, compile=True)
    )
    assert train_elsewhere(compiled, tmp_path).results["test_accuracy"] >= 0.9
