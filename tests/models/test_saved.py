"""Networks of this library on disk."""

import json
from types import MappingProxyType

import numpy as np
import pytest
import torch
from tests.models.network_cases import SAVED, small_images

from convattn import load_network, save_network
from convattn.errors import ArgumentError, CheckpointError
from convattn.models import AttentionNet, ConvNet
from convattn.networks.source import NETWORKS


@pytest.mark.parametrize("name", SAVED)
def test_saved_network_comes_back_the_same(tmp_path, name, capsys):
    torch.manual_seed(0)
    network = SAVED[name]().eval()
    loaded = load_network(save_network(network, tmp_path / "saved"))
    assert type(loaded) is type(network)
    assert not loaded.training
    assert torch.equal(loaded(small_images()), network(small_images()))
    learning = [[p.requires_grad for p in net.parameters()] for net in (network, loaded)]
    assert learning[0] == learning[1]
    assert capsys.readouterr().out == ""


def test_every_network_is_tested():
    assert {type(create()).__name__ for create in SAVED.values()} == {*NETWORKS}


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_arguments_are_those_that_the_network_was_made_with(tmp_path, kind):
    options = {"hidden": 5}
    network = AttentionNet(
        "distance", width=8, depth=1, heads=4, ffn=8, encoding_options=kind(options)
    ).eval()
    options["hidden"] = 7
    assert network.arguments["encoding_options"] == {"hidden": 5}
    save_network(network, tmp_path)
    assert torch.equal(load_network(tmp_path)(small_images()), network(small_images()))


def test_configuration_names_the_class_and_every_argument(tmp_path):
    save_network(ConvNet(5, width=10, depth=2, ffn=7), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["source"] == "convattn:ConvNet"
    assert config["options"] == {
        "kernel_size": 5,
        "num_classes": 10,
        "in_channels": 3,
        "width": 10,
        "depth": 2,
        "ffn": 7,
        "patch": 2,
        "dropout": 0.1,
        "initializer_range": 0.02,
        "padding_mode": "zeros",
    }


def test_a_source_that_is_no_folder_is_told_what_it_can_be(tmp_path):
    message = "source must be a folder that exists, .*convattn:NAME.* or a repository .*owner/name"
    with pytest.raises(CheckpointError, match=message):
        load_network(tmp_path / "absent")


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan")])
def test_range_of_the_first_weights_must_be_positive_and_finite(value):
    message = f"^initializer_range must be a positive finite number, but is {value}$"
    with pytest.raises(ArgumentError, match=message):
        ConvNet(width=5, depth=1, ffn=3, initializer_range=value)


def test_arguments_of_numpy_and_torch_are_saved_as_numbers(tmp_path, without_type_checks):
    network = AttentionNet(
        width=np.int64(8),
        depth=1,
        heads=4,
        ffn=8,
        dropout=np.float32(0.25),
        encoding_options={"centres": torch.zeros(2)},
    )
    save_network(network, tmp_path)
    again = load_network(tmp_path)
    assert again.arguments == network.arguments
    assert type(again.arguments["width"]) is int
    assert again.arguments["encoding_options"] == {"centres": [0.0, 0.0]}
