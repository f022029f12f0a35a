"""Trained networks that come with the library, and the script that makes their folders.

Nothing here depends on how good a network is, or how wide: folders are held against their own cards.
"""

import json
import re
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.pretrained_cases import SCRIPT, made_by_script, sample_data, short_run
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from convattn import load_network
from convattn.data import CIFAR10_MEAN, CIFAR10_STD, load_samples, normalise
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import read_heads
from convattn.lab.head_trace import shaped_encodings
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention
from convattn.networks.pretrained import PretrainedCard
from convattn.sealed import read_sealed
from convattn.structure import full_name

ROOT = Path(__file__).parents[1]
PACKAGE = Path(str(resources.files("convattn") / "pretrained"))
FOLDERS = [
    card.parent
    for place in (PACKAGE, ROOT / "pretrained")
    for card in sorted(place.glob("*/card.json"))
]
MOST_IN_PACKAGE, MOST = 1_500_000, 12_000_000
"""Bytes."""

every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that the script has made of a short run, beside the run."""
    place = tmp_path_factory.mktemp("made")
    made_by_script(place)
    return place


def test_package_holds_whole_folders():
    names = [folder.name for folder in PACKAGE.iterdir()]
    assert names
    for name in names:
        there = {
            file.name for file in (resources.files("convattn") / "pretrained" / name).iterdir()
        }
        assert there >= {
            "README.md",
            "card.json",
            "config.json",
            "heads.parquet",
            "model.safetensors",
        }


def test_folders_are_small():
    assert size(PACKAGE) <= MOST_IN_PACKAGE
    assert size(PACKAGE) + size(ROOT / "pretrained") <= MOST


@every_folder
def test_folder_loads_as_rounded_bit_for_bit(folder):
    stored = load_file(folder / "model.safetensors")
    card = PretrainedCard.load(folder / "card.json")
    network = load_network(folder)
    assert full_name(type(network)) == json.loads((folder / "config.json").read_text())["class"]
    assert not network.training
    state = network.state_dict()
    assert state.keys() == stored.keys()
    for name, tensor in state.items():
        if tensor.is_floating_point():
            assert tensor.dtype == getattr(torch, card.dtype)
            assert stored[name].dtype == getattr(torch, card.file_dtype)
        assert torch.equal(tensor, stored[name].to(tensor.dtype))
        assert torch.equal(tensor.to(stored[name].dtype), stored[name])


@every_folder
def test_network_does_what_its_card_says(folder):
    card = PretrainedCard.load(folder / "card.json")
    assert card.name == folder.name
    assert card.bytes == (folder / "model.safetensors").stat().st_size
    network = load_network(folder)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == card.run.parameters
    images = normalise(load_samples().split.images, CIFAR10_MEAN, CIFAR10_STD)
    assert tuple(SCRIPT["class_scores"](network, images).argmax(1).tolist()) == card.sample_classes
    text = (folder / "README.md").read_text(encoding="utf-8")
    for words in (
        f"{card.accuracy:.2%}",
        card.run.command,
        card.command,
        card.run.revision or "unknown",
    ):
        assert words in text
    assert text == SCRIPT["card_text"](card)
    assert "/" not in card.run.data.source


@every_folder
def test_heads_of_the_folder_are_those_of_the_network(folder):
    network = load_network(folder)
    encodings = shaped_encodings(network)
    assert (folder / "heads.parquet").is_file() is bool(encodings)
    if not encodings:
        return
    heads = read_heads(folder)
    first, last = heads[0].step, heads[-1].step
    assert {item.step for item in heads} == {first, last}
    ends = [item for item in heads if item.step == last]
    assert len(ends) == len(encodings)
    for item, encoding in zip(ends, encodings, strict=True):
        assert item.centres.tolist() == encoding.centres.double().tolist()


@every_folder
def test_network_is_attention_alone(folder):
    """No module is a convolution; and by the definition of attention it calls none, nor cuts patches out."""
    network = load_network(folder)
    for name, module in network.named_modules():
        assert not isinstance(module, nn.modules.conv._ConvNd), name
        if isinstance(module, RelativeAttention):
            module.impl = "reference"
    if isinstance(network, SpeedNet):
        assert mixing_operations(network) == set()
        network.stem = nn.Conv2d(3, 24, 2)
        assert "aten::convolution" in mixing_operations(network)


def mixing_operations(network):
    with torch.no_grad(), Operations() as operations:
        network(torch.zeros(5, 3, 32, 32))
    return {name for name in operations.names if re.search("conv|fold|stride", name)}


class Operations(TorchDispatchMode):
    """Notes the names of the operations of torch on five images, as many as no layer has heads."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, values=(), named=None):
        if isinstance(values[0], torch.Tensor) and values[0].shape[:1] == (5,):
            self.names.add(function.name())
        return function(*values, **(named or {}))


def test_page_has_the_table_of_all_cards():
    assert (ROOT / "pretrained" / "README.md").read_text(encoding="utf-8") == SCRIPT["page"]()


def test_script_rounds_once_and_says_so(made):
    config, before = read_sealed(made / "run")
    said = json.loads((made / "short" / "config.json").read_text())
    assert said["load_as"] == "float32"
    assert read_sealed(made / "short")[0] == config
    after = load_network(made / "short").state_dict()
    changed = 0
    for name, tensor in before.items():
        wanted = tensor.half().float() if tensor.is_floating_point() else tensor
        assert torch.equal(after[name], wanted)
        assert after[name].dtype == tensor.dtype
        changed += not torch.equal(wanted, tensor)
    assert changed  # the control: rounding does something


def test_card_holds_the_run_and_what_was_measured_of_the_file(made):
    card, data = PretrainedCard.load(made / "short" / "card.json"), sample_data()
    images = normalise(data.test.images, data.mean, data.std)
    network = load_network(made / "short")
    seen = SCRIPT["class_scores"](network, images)
    both = SCRIPT["class_scores"](network, images.flip(-1)) / 2 + seen / 2
    assert card.accuracy == (seen.argmax(1) == data.test.labels).double().mean().item()
    assert card.views_accuracy == (both.argmax(1) == data.test.labels).double().mean().item()
    assert card.sample_classes == tuple(seen.argmax(1).tolist())
    assert card.run.results.keys() >= {"test_accuracy", "views_accuracy"}
    assert (made / "short" / "README.md").read_text(encoding="utf-8") == SCRIPT["card_text"](card)
    assert card.summary().startswith(f"{card.task}: test accuracy {card.accuracy:.2%}, ")


def test_numbers_too_large_for_the_file_are_refused():
    tensors = {
        "small": torch.tensor([65504.0]),
        "mask": torch.tensor([float("inf")]),
        "count": torch.tensor(10**6),
    }
    kept = SCRIPT["rounded"](tensors)
    assert kept["count"].item() == 10**6
    assert (kept["small"].item(), kept["mask"].item()) == (65504.0, float("inf"))
    with pytest.raises(
        UnsupportedModelError, match=r"large: numbers are too large for torch\.float16"
    ):
        SCRIPT["rounded"]({**tensors, "large": torch.tensor([1.0, 65520.0])})


def test_other_data_than_those_of_the_run_are_refused(made, tmp_path):
    data = sample_data()
    data.record.hashes["both"] = "0" * 64
    with pytest.raises(
        ArgumentError, match=r"data must be those of the run .*, but their hashes differ"
    ):
        SCRIPT["store"](made / "run", tmp_path / "new", data, "command")
    assert not (tmp_path / "new").exists()


def test_script_as_a_command(tmp_path, monkeypatch, capsys):
    short_run(tmp_path / "run")
    places = {True: tmp_path / "package", False: tmp_path / "others"}
    for place in places.values():
        place.mkdir()
    (places[False] / "README.md").write_text("# Networks\n\n| a |\n| --- |\n| b |\n\nend\n")
    main = SCRIPT["main"]
    monkeypatch.setitem(main.__globals__, "PLACES", places)
    monkeypatch.setitem(main.__globals__, "load_data_of", lambda _: sample_data())
    for _ in range(2):  # the second replaces the first
        assert main([str(tmp_path / "run"), "short", "--package"]) == 0
    card = PretrainedCard.load(places[True] / "short" / "card.json")
    assert card.command == "python scripts/pretrained.py run short --package"
    assert main([str(tmp_path / "run"), "other"]) == 0
    page = (places[False] / "README.md").read_text()
    assert page.startswith("# Networks\n\n| network | ")
    assert page.endswith(" |\n\nend\n")
    assert page.count("`convattn:short`") == page.count("`pretrained/other`") == 1
    capsys.readouterr()
    assert main([str(tmp_path / "nothing"), "short"]) == 2
    assert "pretrained.py: " in capsys.readouterr().err
    assert PretrainedCard.load(places[True] / "short" / "card.json") == card
