"""Networks that come with the package are found by name wherever a folder is."""

import shutil
from pathlib import Path

import pytest
import torch

from convattn import load_network
from convattn.errors import CheckpointError, UnknownNameError
from convattn.networks import pretrained
from convattn.networks.pretrained import network_folder, pretrained_card, pretrained_names

NAMES = pretrained_names()


@pytest.mark.parametrize("name", NAMES)
def test_every_way_of_loading_takes_the_name(name):
    source = f"convattn:{name}"
    network = load_network(source)
    assert not network.training
    for other in (load_network(Path(source)), load_network(network_folder(source))):
        assert type(other) is type(network)
        assert all(
            torch.equal(tensor, network.state_dict()[key])
            for key, tensor in other.state_dict().items()
        )


@pytest.mark.parametrize("name", ["nothing-like-it", "", ".", "../models", "README.md"])
def test_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(
        UnknownNameError, match=rf"unknown trained network .*Known: {', '.join(NAMES)}$"
    ):
        load_network(f"convattn:{name}")


def test_near_name_is_suggested():
    with pytest.raises(UnknownNameError, match=f"did you mean '{NAMES[0]}'"):
        load_network(f"convattn:{NAMES[0]}s")


def test_an_installation_without_networks_has_no_names(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "_folder", lambda: tmp_path / "none")
    assert pretrained_names() == []
    with pytest.raises(UnknownNameError, match=r"Known: $"):
        load_network(f"convattn:{NAMES[0]}")


def test_a_network_without_its_card_is_said(tmp_path, monkeypatch):
    shutil.copytree(pretrained._folder(), tmp_path / "copy")
    monkeypatch.setattr(pretrained, "_folder", lambda: tmp_path / "copy")
    assert pretrained_names() == NAMES
    (tmp_path / "copy" / NAMES[0] / "card.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read PretrainedCard from .*card\.json"):
        pretrained_card(NAMES[0])


def test_a_file_of_torch_is_no_folder_and_the_message_says_how_it_is_read(tmp_path):
    file = tmp_path / "n.pt"
    torch.save(torch.nn.Linear(2, 3).state_dict(), file)
    with pytest.raises(
        CheckpointError, match=r"n\.pt is a file: read one of torch\.save by network"
    ):
        load_network(str(file))
