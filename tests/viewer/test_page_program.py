"""Networks that run in the page against the same networks in torch."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from operator import call
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.viewer.node import run_node
from torch import Tensor, nn

from convattn.budget import assert_within_budget, roundings
from convattn.convert import network_to_attention, network_to_conv
from convattn.data import normalise
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet
from convattn.viewer import Exhibit, build_scene
from convattn.viewer.page_program import make_program

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)


def _pictures(count: int, size: int, channels: int = 3) -> Tensor:
    """Draws images whose pixels are bytes, so that the page sees exactly them."""
    draw = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (count, channels, size, size), generator=draw, dtype=torch.uint8)


def _speed_net(mixing: str = "attention") -> SpeedNet:
    network = SpeedNet(mixing, widths=[6, 10], num_classes=7)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.2, 2)
                module.bias.normal_()
    return network


def _attention_net(**options: bool) -> AttentionNet:
    network = AttentionNet(
        "learned_table", width=12, depth=2, heads=4, ffn=16, patch=2, image_size=16, **options
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def _converted() -> nn.Module:
    convolutions, _ = network_to_conv(_speed_net(), kernel_size=3, images=torch.randn(1, 3, 16, 16))
    return network_to_attention(convolutions, images=torch.randn(1, 3, 16, 16))[0]


def _partly_convolutions() -> SpeedNet:
    """Two of its four layers are convolutions, one with taps apart and a border that wraps; and one norm is none."""
    network = _speed_net()
    options = {"padding": 2, "dilation": 2, "padding_mode": "circular"}
    network.stages[0].second = nn.Conv2d(6, 6, 3, **options, bias=False)
    network.stages[1].first = nn.Conv2d(6, 10, (5, 3), padding=(2, 1))
    network.stages[1].second_norm = nn.Identity()
    return network


NETWORKS = {
    "speed net": _speed_net,
    "hard heads": lambda: _speed_net("hard"),
    "attention net": _attention_net,
    "converted": _converted,
    "partly convolutions": _partly_convolutions,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_page_runs_what_torch_runs(name, tmp_path):
    torch.manual_seed(3)
    network = NETWORKS[name]().eval()
    pictures = _pictures(2, 16)
    images = normalise(pictures, MEAN, STD)
    scene = build_scene(Exhibit(network, images, mean=MEAN, std=STD))
    assert torch.equal(
        torch.stack([scene.tensors[f"tensors/pictures/{n}"] for n in range(2)]).movedim(3, 1),
        pictures,
    )
    (tmp_path / "scene").write_bytes(scene.to_bytes())
    run_node("run.js", tmp_path / "scene", tmp_path)
    for image in range(2):
        _assert_same(network, images[image : image + 1], tmp_path, f"0-{image}")


def test_a_fault_is_seen(tmp_path):
    """The network in the page is one whose centres were moved by 0.01 cells."""
    torch.manual_seed(3)
    network, images = _speed_net().eval(), normalise(_pictures(1, 16), MEAN, STD)
    moved = copy.deepcopy(network)
    with torch.no_grad():
        moved.stages[0].first.encoding.centres[4, 0] += 0.01
    scene = build_scene(Exhibit(moved, images, mean=MEAN, std=STD))
    (tmp_path / "scene").write_bytes(scene.to_bytes())
    run_node("run.js", tmp_path / "scene", tmp_path)
    with pytest.raises(AssertionError, match=r"1-output: error .* is above the budget"):
        _assert_same(network, images, tmp_path, "0-0")


def test_what_the_page_cannot_run_has_no_program():
    with_content = AttentionNet("quadratic", content=True, width=8, depth=1, heads=4, ffn=8).eval()
    assert make_program(with_content, {}) is None
    assert (
        make_program(
            nn.Sequential(RelativeAttention2d(3, 5, num_heads=4, encoding="quadratic")), {"0": 0}
        )
        is None
    )


CHANGES = {
    "a norm of other statistics": (
        "stages.0.second_norm",
        lambda: nn.InstanceNorm2d(6),
    ),
    "a norm of each batch": (
        "stages.1.first_norm",
        lambda: nn.BatchNorm2d(10, track_running_stats=False),
    ),
    "a mixer that is neither": ("stages.0.first", nn.GELU),
    "padding by its name": ("stages.0.first", lambda: nn.Conv2d(24, 6, 3, padding="same")),
    "steps": ("stages.0.second", lambda: nn.Conv2d(6, 6, 3, stride=2, padding=1)),
    "beside the pixel": ("stages.0.second", lambda: nn.Conv2d(6, 6, 5, padding=1)),
    "attention with steps": (
        "stages.1.first",
        lambda: RelativeAttention2d(6, 10, num_heads=3, encoding="distance", stride=2),
    ),
    "attention beside the pixel": (
        "stages.1.first",
        lambda: RelativeAttention2d(
            6, 10, num_heads=3, encoding="distance", kernel_size=3, padding=((0, 2), (1, 1))
        ),
    ),
    "a head of two maps": ("head", lambda: nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 7))),
}


@pytest.mark.parametrize(("place", "part"), CHANGES.values(), ids=CHANGES)
def test_one_part_that_the_page_does_not_know_leaves_no_program(place, part):
    network = _speed_net().eval()
    assert make_program(network, _numbers_of(network)) is not None
    network.set_submodule(place, part())
    assert make_program(network, _numbers_of(network)) is None


def test_an_embedding_of_two_maps_leaves_no_program():
    network = _attention_net().eval()
    assert make_program(network, _numbers_of(network)) is not None
    network.embed = nn.Sequential(nn.Linear(12, 5), nn.Linear(5, 12))
    assert make_program(network, _numbers_of(network)) is None


def _numbers_of(network: nn.Module) -> dict[str, int]:
    numbers = {}
    for name, part in network.named_modules():
        if isinstance(part, RelativeAttention2d):
            numbers[name] = len(numbers)
    return numbers


@torch.no_grad()
def _assert_same(network: nn.Module, image: Tensor, folder: Path, place: str) -> None:
    """Compares scores and the features around every attention layer, as they are and with the last layer doubled."""
    exact = _features(copy.deepcopy(network).double(), image.double())
    lows = _roundings(_features, network, image)
    for what, hi in exact.items():
        computed = _numbers(folder / f"{place}-{what}", hi)
        assert_within_budget(computed, hi, [low[what] for low in lows], what)
    doubled = copy.deepcopy(network)
    for parameter in _layers(doubled)[-1].values.parameters():
        parameter.mul_(2)
    hi = copy.deepcopy(doubled).double()(image.double())
    computed = _numbers(folder / f"{place}-doubled", hi)
    assert_within_budget(computed, hi, _roundings(call, doubled, image), "doubled")
    assert torch.equal(computed, _numbers(folder / f"{place}-resumed", hi))
    assert len(_layers(network)) * 2 + 1 == len(exact)


def _roundings(compute: Callable, network: nn.Module, image: Tensor) -> list:
    """Rounds the computation of a network several times, on its own paths and by the definition."""
    by_definition = copy.deepcopy(network)
    for layer in _layers(by_definition):
        layer.impl = "reference"
    return [*roundings(compute, network, image), *roundings(compute, by_definition, image)]


def _features(network: nn.Module, image: Tensor) -> dict[str, Tensor]:
    """Returns the scores, and what each attention layer takes and gives."""
    features: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for number, layer in enumerate(_layers(network)):

            def note(_: nn.Module, inputs: tuple, output: Tensor, number: int = number) -> None:
                features[f"{number}-input"] = inputs[0][0].movedim(0, -1).clone()
                features[f"{number}-output"] = output[0].movedim(0, -1).clone()

            hooks.callback(layer.register_forward_hook(note).remove)
        features["scores"] = network(image)[0]
    return features


def _layers(network: nn.Module) -> list[RelativeAttention2d]:
    return [module for module in network.modules() if isinstance(module, RelativeAttention2d)]


def _numbers(file: Path, like: Tensor) -> Tensor:
    return torch.from_numpy(np.fromfile(file, np.float32)).view(like.shape)
