import json
from types import MappingProxyType

import pytest
import torch
from tests.models.network_cases import SAVED, save_as_before, small_images

from convattn import load_network, save_network
from convattn.errors import ArgumentError, CheckpointError, UnknownNameError
from convattn.models import AttentionNet, ConvNet, ResNet
from convattn.networks.source import NETWORKS


@pytest.mark.parametrize("save", [save_network, save_as_before])
@pytest.mark.parametrize("name", SAVED)
def test_saved_network_comes_back_the_same(tmp_path, name, save, capsys):
    torch.manual_seed(0)
    network = SAVED[name]().eval()
    loaded = load_network(save(network, tmp_path / "saved"))
    assert type(loaded) is type(network)
    assert not loaded.training
    assert torch.equal(loaded(small_images()), network(small_images()))
    learning = [[p.requires_grad for p in net.parameters()] for net in (network, loaded)]
    assert learning[0] == learning[1]
    assert capsys.readouterr().out == ""


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
        "dense": True,
        "padding_mode": "zeros",
    }


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
    folder = save_as_before(ResNet(1, width=8), tmp_path / "saved")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_network(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architecture": "ConvNet"},
            r"describes a network that cannot be built: .*blocks_per_stage",
        ),
        ({"num_classes": 3}, r"do not fit together: 2 of another shape: head\.weight"),
        ({"width": 0}, "cannot be built: width must be an integer of at least 1, but is 0"),
        ({"blocks_per_stage": 10**9}, "blocks_per_stage must be at most 16384 with these tensors"),
    ],
    ids=["class", "sizes", "value", "depth"],
)
def test_weights_of_another_network_are_refused(tmp_path, changes, message):
    folder = save_as_before(ResNet(1, width=8), tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=message):
        load_network(folder, verify=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"config\.json is not readable"),
        ("[]", "does not describe a network or a layer"),
        ("{}", "does not describe a network or a layer"),
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
    save_network(ResNet(1, width=8), tmp_path)
    (tmp_path / "config.json").write_text('{"architecture": "ConvNets"}')
    with pytest.raises(
        UnknownNameError, match="unknown network 'ConvNets': did you mean 'ConvNet'"
    ):
        load_network(tmp_path, verify=False)


def test_every_network_is_tested():
    assert {type(create()).__name__ for create in SAVED.values()} == {*NETWORKS}


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan")])
def test_range_of_the_first_weights_must_be_positive_and_finite(value):
    message = f"^initializer_range must be a positive finite number, but is {value}$"
    with pytest.raises(ArgumentError, match=message):
        ConvNet(width=5, depth=1, ffn=3, initializer_range=value)
