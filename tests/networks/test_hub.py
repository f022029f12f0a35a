"""Sharing on the Hub, with the Hub's client replaced: nothing leaves this machine."""

import shutil

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard
from tests.networks.networks import images

from convattn import load_network, network_to_attention, push_to_hub, save_network
from convattn.errors import ArgumentError, CheckpointError
from convattn.lab.speed_net import SpeedNet
from convattn.models import ResNet


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that is a folder; the calls that it got are in `calls`."""
    place, calls = tmp_path / "hub", []

    class Api:
        def __init__(self, token=None):
            calls.append({"token": token})

        def create_repo(self, repo_id, **options):
            calls.append(options)
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, folder_path, repo_id, **options):
            calls.append(options)
            shutil.copytree(folder_path, place / repo_id)
            return f"https://hub/{repo_id}"

    def snapshot(repo_id, **options):
        calls.append(options)
        if not (place / repo_id).is_dir():
            raise huggingface_hub.errors.LocalEntryNotFoundError("not found")
        return str(place / repo_id)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return calls


@pytest.fixture(scope="module")
def made():
    return network_to_attention(ResNet(1, width=8).eval(), images=images())


def test_a_network_goes_to_the_hub_and_comes_back(hub, made, tmp_path):
    network, certificate = made
    address = push_to_hub(
        network,
        "someone/network",
        certificate=certificate,
        private=True,
        token="secret",
        branch="a",
    )
    assert address == "https://hub/someone/network"
    assert hub[0] == {"token": "secret"}
    assert hub[1] == {"private": True, "exist_ok": True}
    assert hub[2]["revision"] == "a"
    assert hub[2]["repo_type"] == "model"
    loaded = load_network("someone/network", revision="a", local_files_only=True)
    assert hub[3]["revision"] == "a"
    assert hub[3]["local_files_only"]
    assert torch.equal(loaded(images()), network(images()))
    card = ModelCard.load(tmp_path / "hub" / "someone" / "network" / "README.md")
    assert card.data.library_name == "convattn"
    assert {"attention", "convolution"} <= set(card.data.tags)
    assert "`convattn:ResNet` with" in card.text
    assert "12 `RelativeAttention2d`" in card.text
    assert certificate.summary() in card.text


def test_a_folder_goes_to_the_hub_as_it_is(hub, made, tmp_path):
    folder = save_network(made[0], tmp_path / "made")
    assert "No certificate was saved with it." in (folder / "README.md").read_text()
    push_to_hub(folder, "someone/network")
    assert torch.equal(load_network("someone/network")(images()), load_network(folder)(images()))
    push_to_hub("convattn:cifar10-small", "someone/small")
    assert type(load_network("someone/small")) is SpeedNet
    with pytest.raises(ArgumentError, match="source, options and certificate must be left out"):
        push_to_hub(folder, "someone/network", certificate=made[1])
    with pytest.raises(CheckpointError, match="holds no saved network"):
        push_to_hub(tmp_path / "absent", "someone/network")


def test_a_certificate_of_an_earlier_network_does_not_stay(hub, made):
    push_to_hub(made[0], "someone/first", certificate=made[1])
    push_to_hub(made[0], "someone/second")
    uploads = [call["delete_patterns"] for call in hub if "delete_patterns" in call]
    assert uploads == [["index.html"], ["certificate.json", "index.html"]]


def test_what_only_the_hub_takes_is_refused_for_a_folder(hub, made, tmp_path):
    folder = save_network(made[0], tmp_path / "made")
    for option in ({"revision": "v1"}, {"force_download": True}):
        with pytest.raises(ArgumentError, match=f"{next(iter(option))} must be left out: .* is a"):
            load_network(folder, **option)


def test_an_error_of_the_network_is_one_of_the_library(hub, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("proxy")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(
        CheckpointError, match=r"cannot be fetched from the Hub \(RuntimeError: proxy"
    ):
        load_network("someone/else")


def test_what_is_neither_folder_nor_repository_is_told(hub):
    with pytest.raises(
        CheckpointError, match="someone/else is not a folder, and cannot be fetched from the Hub"
    ):
        load_network("someone/else")
