"""What depends on the process: precision, which is fixed for each, and their number."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.tiny import tiny_data, tiny_recipe

from convattn.errors import DeviceError, MissingDependencyError
from convattn.records import RunRecord
from convattn.training import recipe_to_toml, train
from convattn.training.recipe import DataRecipe

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.training.tiny import tiny_data
from convattn.training import load_recipe, train
train(load_recipe({recipe!r}), output={output!r}, data=tiny_data(), progress=False)
"""


def with_precision(recipe, precision):
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, precision=precision))


def train_elsewhere(recipe, folder, *launcher):
    """Trains in processes of their own and returns the record."""
    (folder / "recipe.toml").write_text(recipe_to_toml(recipe))
    script = folder / "script.py"
    output = folder / "run"
    script.write_text(SCRIPT.format(root=str(ROOT), recipe=str(folder / "recipe.toml"), output=str(output)))
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return RunRecord.load(output / "record.json")


def test_second_precision_in_one_process_is_refused():
    train(tiny_recipe(epochs=1), data=tiny_data(), progress=False)
    with pytest.raises(DeviceError, match=r"training\.precision 'bf16' cannot be had in this process"):
        train(with_precision(tiny_recipe(epochs=1), "bf16"), data=tiny_data(), progress=False)


def test_missing_accelerate_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingDependencyError, match="needs accelerate"):
        train(tiny_recipe(), data=tiny_data(), progress=False)


@pytest.mark.slow
def test_mixed_precision_learns(tmp_path):
    record = train_elsewhere(with_precision(tiny_recipe(epochs=12), "bf16"), tmp_path)
    assert record.recipe["training"]["precision"] == "bf16"
    assert record.results["test_accuracy"] >= 0.9


@pytest.mark.slow
def test_two_processes_share_every_batch(tmp_path):
    recipe = dataclasses.replace(tiny_recipe(), data=DataRecipe("digits", crop_padding=0, flip=False))
    alone = train(recipe, data=tiny_data(), progress=False)
    together = train_elsewhere(recipe, tmp_path, "-m", "torch.distributed.run", "--nproc-per-node=2")
    assert together.hardware["processes"] == "2"
    # the same batches, so the same gradients but for the order of their sums: float32 rounding, grown over ten steps
    difference = abs(together.results["test_loss"] - alone.results["test_loss"])
    assert difference < 1e-4 * alone.results["test_loss"]
    other = train(dataclasses.replace(recipe, seed=1), data=tiny_data(), progress=False)
    assert abs(other.results["test_loss"] - alone.results["test_loss"]) > 1e-2 * alone.results["test_loss"]
