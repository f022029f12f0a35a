import errno
import json
import os
from contextlib import chdir

import pytest
import torch
from tests.models.network_cases import SAVED, small_images
from torch import nn

from convattn.errors import ArgumentError, CheckpointError, UnknownNameError, UnsupportedModelError, WriteError
from convattn.models import NETWORKS, AttentionNet, ConvNet, ResNet, load_network


@pytest.mark.parametrize("name", SAVED)
def test_saved_network_comes_back_the_same(tmp_path, name, capsys):
    torch.manual_seed(0)
    network = SAVED[name]().eval()
    network.save_pretrained(tmp_path)
    for loaded in (type(network).from_pretrained(tmp_path), load_network(tmp_path)):
        assert type(loaded) is type(network)
        assert not loaded.training
        assert torch.equal(loaded(small_images()), network(small_images()))
    assert capsys.readouterr().out == ""


def test_an_empty_current_folder_is_filled(tmp_path):
    with chdir(tmp_path):
        ResNet(1, width=8).save_pretrained(".")
        ResNet(1, width=8).save_pretrained(".")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_configuration_names_the_class_and_every_argument(tmp_path):
    ConvNet(5, width=10, depth=2, ffn=7).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("digests").keys() == {"tensors", "certificate", "configuration"}
    assert config == {
        "architecture": "ConvNet",
        "kernel_size": 5,
        "num_classes": 10,
        "in_channels": 3,
        "width": 10,
        "depth": 2,
        "ffn": 7,
        "patch": 2,
        "dropout": 0.1,
        "initializer_range": 0.02,
        "dense": True,
        "padding_mode": "zeros",
    }


def test_a_network_that_would_not_load_is_not_saved(tmp_path):
    network = AttentionNet(width=8, depth=2, heads=4, ffn=8)
    network.blocks[0].mixer = nn.Conv2d(8, 8, 3, padding=1)
    folder = tmp_path / "network"
    with pytest.raises(
        UnsupportedModelError,
        match=r"cannot save AttentionNet: it would not load.* \(blocks\.0\.mixer\..* and \d more\)",
    ):
        network.save_pretrained(folder)
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "config.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is not readable"),
        ("model.safetensors", None, "cannot read the weights in"),
        ("model.safetensors", b"not weights", "cannot read the weights in"),
    ],
    ids=["no configuration", "no weights", "damaged weights"],
)
def test_missing_and_damaged_files_are_named(tmp_path, name, content, message):
    ResNet(1).save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        ResNet.from_pretrained(tmp_path)


def test_weights_of_another_network_are_refused(tmp_path):
    ResNet(1).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"does not describe a ConvNet: .*blocks_per_stage"):
        ConvNet.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="does not hold the weights of this ResNet"):
        ResNet.from_pretrained(tmp_path, num_classes=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config\.json is not readable"),
        ("[]", "does not describe a network or a layer"),
        ("{}", "names no architecture"),
        ("{", r"config\.json is not readable"),
        ("[" * 100_000, r"config\.json is not readable"),
    ],
    ids=["empty", "list", "nothing", "cut off", "deep"],
)
def test_configuration_that_does_not_name_a_network(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_network(tmp_path)


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="holds no saved network"):
        load_network(tmp_path / "absent")


def test_unknown_network_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "ConvNets"}')
    with pytest.raises(UnknownNameError, match="unknown network 'ConvNets': did you mean 'ConvNet'"):
        load_network(tmp_path)


def test_every_network_is_tested():
    assert {type(create()) for create in SAVED.values()} == set(NETWORKS.values())


def test_saving_into_a_folder_with_other_files_keeps_them(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    for width in (5, 7):
        ConvNet(width=width, depth=1, ffn=3).save_pretrained(tmp_path)
        assert load_network(tmp_path).width == width
    assert (tmp_path / "note.txt").read_text() == "mine"


@pytest.mark.parametrize("value", [float("nan"), None])
def test_a_save_that_fails_leaves_the_network_that_was_there(tmp_path, value, monkeypatch):
    good, bad = (ConvNet(width=5, depth=1, ffn=3) for _ in range(2))
    good.save_pretrained(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    if value is None:  # a full disk
        monkeypatch.setattr(os, "fsync", full)
    else:
        nn.init.constant_(bad.embed.weight, value)
    with pytest.raises(UnsupportedModelError if value is not None else WriteError):
        bad.save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def full(held):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_arguments_that_do_not_fit_what_is_saved_are_named(tmp_path):
    ConvNet(width=5, depth=1, ffn=3).save_pretrained(tmp_path)
    message = (
        r"^ConvNet does not take {'width': 0} with what .* says: width must be an integer of at least 1, but is 0$"
    )
    with pytest.raises(ArgumentError, match=message):
        ConvNet.from_pretrained(tmp_path, width=0)


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan")])
def test_range_of_the_first_weights_must_be_positive_and_finite(value):
    message = f"^initializer_range must be a positive finite number, but is {value}$"
    with pytest.raises(ArgumentError, match=message):
        ConvNet(width=5, depth=1, ffn=3, initializer_range=value)
