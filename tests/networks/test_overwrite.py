"""A saved network is replaced by another, wholly or not at all, and no other folder is."""

import ctypes
import subprocess
import sys
from contextlib import chdir

import pytest
import torch
from tests.networks.overwrite_kills import network
from torch import nn

from convattn import load_layer, load_network, save_layer, save_network
from convattn.errors import ArgumentError, WriteError


def value(folder):
    return load_network(folder, model=network(0.0))[0].weight[0, 0, 0].item()


def test_a_kill_at_any_step_leaves_the_old_or_the_new_network(tmp_path):
    command = [sys.executable, "-m", "tests.networks.overwrite_kills", str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    old, new = map(int, done.stdout.split())
    assert old > 20  # kills before the exchange, and after it
    assert new > 2


TWO_STEPS = """
import os, sys
from pathlib import Path
from convattn import files
from tests.networks import overwrite_kills

def exchange(made, old):
    os.replace(old, f"{made}.old")
    os.replace(made, old)
    os.replace(f"{made}.old", made)

files._exchange = exchange
overwrite_kills.main(Path(sys.argv[1]))
"""


def test_an_exchange_in_two_steps_would_be_found(tmp_path):
    command = [sys.executable, "-c", TWO_STEPS, str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "holds no saved network" in done.stderr


def test_a_saved_network_is_replaced_if_that_is_asked(tmp_path):
    folder = save_network(network(1.0), tmp_path / "made", overwrite=True)
    with pytest.raises(
        ArgumentError, match=r"folder must be new or empty, but .*made' is not empty"
    ):
        save_network(network(2.0), folder)
    assert value(folder) == 1
    assert value(save_network(network(2.0), folder, overwrite=True)) == 2
    save_layer(nn.Conv1d(2, 3, 5), folder, overwrite=True)
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    layer = nn.Conv1d(2, 3, 5)
    assert torch.equal(load_layer(save_layer(layer, folder, overwrite=True)).weight, layer.weight)
    assert [file.name for file in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("save", [save_network, save_layer])
def test_no_other_folder_is_replaced(tmp_path, save):
    made = nn.Conv1d(2, 3, 5)

    def refused(folder):
        before = sorted(folder.iterdir())
        with pytest.raises(
            ArgumentError,
            match=r"folder \(only a saved network or layer is overwritten\) must be new or empty",
        ):
            save(made, folder, overwrite=True)
        assert sorted(folder.iterdir()) == before

    for name, content in {
        "config.json": '{"kind": "network"}',
        "model.safetensors": "",
        "notes.txt": "",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(content)
        refused(tmp_path / name)
    folder = save(made, tmp_path / "made")
    (tmp_path / "link").symlink_to(folder)
    refused(tmp_path / "link")
    with chdir(folder):
        refused(folder)
    (folder / "mine.txt").write_text("kept")
    refused(folder)


@pytest.mark.parametrize("there", [True, False])
def test_where_folders_cannot_be_exchanged_the_old_one_stays(tmp_path, monkeypatch, there):
    folder = save_network(network(1.0), tmp_path / "made")
    library = type("Library", (), {"renameat2": staticmethod(lambda *_: -1)} if there else {})
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    with pytest.raises(
        WriteError,
        match=r"cannot replace .*made in one step \(.*\): remove it, or name a new folder",
    ):
        save_network(network(2.0), folder, overwrite=True)
    assert value(folder) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["made"]
