"""Scenes: what they hold, saved and loaded, damaged files, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from convattn.errors import (
    ArgumentError,
    CheckpointError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
)
from convattn.heads import analyze, read_heads
from convattn.lab.speed_net import SpeedNet
from convattn.layers import Content, RelativeAttention1d, RelativeAttention2d, RelativeAttention3d
from convattn.models import AttentionNet
from convattn.networks import load_network
from convattn.networks.pretrained import network_folder
from convattn.viewer import Exhibit, Scene, build_scene

IMAGES = torch.linspace(-2, 2, 2 * 3 * 12 * 10).view(2, 3, 12, 10)


def _network() -> AttentionNet:
    torch.manual_seed(0)
    return AttentionNet(width=8, depth=2, heads=[4, 5], ffn=8, image_size=12)


def _layers(scene: Scene, network: int = 0) -> list[dict]:
    return scene.header["networks"][network]["layers"]


def test_a_scene_comes_back_from_its_file(tmp_path):
    scene = build_scene(
        Exhibit(_network(), IMAGES), names=["a", "b"], labels=["cat", "dog"], title="two"
    )
    scene.save(tmp_path / "scene")
    loaded = Scene.load(tmp_path / "scene")
    assert loaded.header == json.loads(json.dumps(scene.header))
    assert loaded.tensors.keys() == scene.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in scene.tensors.items())
    assert [image["label"] for image in loaded.header["images"]] == ["cat", "dog"]
    assert loaded.bytes == sum(tensor.nbytes for tensor in scene.tensors.values())


def test_numbers_are_narrow_only_without_loss():
    network = _network()
    with torch.no_grad():
        mixer = network.blocks[0].mixer
        mixer.values.weight.copy_(mixer.values.weight.half())
    scene = build_scene(Exhibit(network, IMAGES))
    for number, block in enumerate(network.blocks):
        kept = scene.tensors[_layers(scene)[number]["attention"]["values"]]
        assert kept.dtype == (torch.float16, torch.float32)[number]
        assert torch.equal(kept.float(), block.mixer.values.maps().detach())


def test_places_of_patches_strides_and_padding():
    layer = RelativeAttention2d(3, 4, 2, "quadratic", kernel_size=3, stride=(2, 3), padding=(1, 2))
    (described,) = _layers(build_scene(Exhibit(layer, IMAGES)))
    assert described["grid"] == [6, 4]
    assert described["keys"] == {"grid": [14, 14], "first": [-1.0, -2.0], "step": [1.0, 1.0]}
    assert described["place"] == {"first": [0.0, -1.0], "step": [2.0, 3.0]}
    assert described["attention"]["queries"] == {"first": [1, 1], "stride": [2, 3]}
    patches = _layers(build_scene(Exhibit(_network(), IMAGES)))
    assert patches[0]["place"] == {"first": [0.5, 0.5], "step": [2.0, 2.0]}
    speed = _layers(
        build_scene(Exhibit(SpeedNet(widths=[4, 5]).eval(), IMAGES.new_zeros(1, 3, 16, 16)))
    )
    assert [one["place"]["first"] for one in speed] == [
        [0.5, 0.5],
        [1.0, 1.0],
        [1.0, 1.0],
        [2.0, 2.0],
    ]
    assert [one["place"]["step"] for one in speed] == [
        [1.0, 1.0],
        [2.0, 2.0],
        [2.0, 2.0],
        [4.0, 4.0],
    ]


def test_networks_side_by_side_share_the_pixels_of_the_first():
    half = Exhibit(_network(), IMAGES[..., ::2, ::2][..., :6, :4], name="half")
    scene = build_scene([Exhibit(_network(), IMAGES, name="whole"), half])
    assert [network["name"] for network in scene.header["networks"]] == ["whole", "half"]
    assert _layers(scene, 1)[0]["grid"] == [3, 2]
    assert _layers(scene, 1)[0]["place"] == {"first": [1.5, 2.0], "step": [4.0, 5.0]}


def test_a_report_says_what_heads_do():
    network = _network()
    report = analyze(network, IMAGES, controls=(), progress=False)
    described = _layers(build_scene(Exhibit(network, IMAGES, report=report)))[1]
    head = report.layers[1].heads[3]
    assert described["sentence"] == report.layers[1].sentence
    assert described["statistics"][3]["shift"]["value"] == [one.value for one in head.shift]
    assert described["statistics"][3]["spread"] == {
        "value": head.spread.value,
        "error": head.spread.error,
    }
    json.dumps(described, allow_nan=False)
    other = AttentionNet(width=8, depth=1, heads=7, ffn=8)
    assert _layers(build_scene(Exhibit(other, IMAGES, report=report)))[0]["statistics"] is None


def test_the_timeline_is_that_of_the_run():
    folder = network_folder("convattn:cifar10-small")
    shots = read_heads(folder)
    network = load_network(folder)
    scene = build_scene(Exhibit(network, torch.zeros(1, 3, 32, 32), heads=shots))
    timeline = scene.header["networks"][0]["timeline"]
    assert timeline["layers"] == list(range(6))
    assert timeline["epochs"] == sorted({shot.epoch for shot in shots})
    centres, sharpness = scene.tensors[timeline["centres"]], scene.tensors[timeline["sharpness"]]
    assert centres.shape == (len(timeline["epochs"]), 6, 9, 2)
    for number, layer in enumerate(_layers(scene)):
        own = layer["attention"]["heads"]
        assert torch.equal(centres[-1, number].float(), scene.tensors[own["centres"]].float())
        ratio = sharpness[-1, number].double() / scene.tensors[own["sharpness"]].double()
        assert ((ratio - 1).abs() < 4 * torch.finfo(torch.float32).eps).all()
    without = build_scene(Exhibit(network, torch.zeros(1, 3, 32, 32), heads=shots[1:2]))
    assert without.header["networks"][0]["timeline"] is None


def test_pictures_without_a_preparation_lie_between_their_extremes():
    picture = build_scene(Exhibit(_network(), IMAGES)).tensors["tensors/pictures/1"]
    assert (picture.min(), picture.max()) == (0, 255)
    grey = Exhibit(_network(), IMAGES[:, :1], mean=(0.0,), std=(1.0,)).pictures()
    assert grey.shape == (2, 12, 10, 3)
    assert torch.equal(grey[..., 0], grey[..., 2])


def test_damaged_files_are_refused(tmp_path):
    build_scene(Exhibit(_network(), IMAGES)).save(tmp_path / "scene")
    content = (tmp_path / "scene").read_bytes()
    (tmp_path / "half").write_bytes(content[: len(content) // 2])
    (tmp_path / "none").write_bytes(b"no scene")
    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    save_file({"a": torch.zeros(2)}, tmp_path / "text", {"convattn.scene": "{"})
    save_file({"a": torch.zeros(2)}, tmp_path / "newer", {"convattn.scene": '{"schema": 2}'})
    save_file(
        {"a": torch.zeros(2)}, tmp_path / "empty", {"convattn.scene": '{"schema": 1, "images": []}'}
    )
    lacking = '{"schema": 1, "networks": [], "images": [{"picture": "tensors/pictures/0"}]}'
    save_file({"a": torch.zeros(2)}, tmp_path / "lacking", {"convattn.scene": lacking})
    for name, message in {
        "missing": "cannot read a scene",
        "half": "cannot read a scene",
        "none": "cannot read a scene",
        "other": "holds no scene",
        "text": "its header is no JSON",
        "newer": "must be a scene of version 1, but is of 2",
        "empty": "images must be a list of at least one",
        "lacking": "networks must be a list of at least one",
    }.items():
        with pytest.raises(CheckpointError, match=message):
            Scene.load(tmp_path / name)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (RelativeAttention1d(3, 4, 3, "quadratic"), "a sequence"),
        (RelativeAttention3d(3, 4, 3, "quadratic"), "3 axes"),
    ],
)
def test_sequences_and_volumes_are_refused(layer, message):
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(2) if layer.dims == 1 else x.unsqueeze(2))

    with pytest.raises(UnsupportedModelError, match=f"layer attends on .*{message}"):
        build_scene(Exhibit(Folded(), IMAGES))


@pytest.mark.parametrize("content", [False, True])
def test_layers_called_by_name_and_on_single_images_are_shown(content):
    class Called(nn.Module):
        def __init__(self, call) -> None:
            super().__init__()
            self.layer, self.call = (
                RelativeAttention2d(3, 4, 2, "learned_axial", content=content),
                call,
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.call(self.layer, x)

    scenes = []
    for call in (
        lambda layer, x: layer(x),
        lambda layer, x: torch.stack([layer(input=image) for image in x]),
    ):
        torch.manual_seed(0)
        scenes.append(build_scene(Exhibit(Called(call), IMAGES)))
    one, other = scenes
    assert _layers(one) == _layers(other)
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(other.tensors[name], tensor) for name, tensor in one.tensors.items())


def test_what_cannot_be_shown_is_refused():
    network, shown = _network(), Exhibit(_network(), IMAGES)
    with pytest.raises(UnsupportedModelError, match="no attention of Conv2d"):
        build_scene(Exhibit(nn.Conv2d(3, 4, 3), IMAGES))
    with pytest.raises(UnknownNameError, match=r"unknown layer 'blocks\.7\.mixer'"):
        build_scene(Exhibit(network, IMAGES, layers=("blocks.7.mixer",)))
    with pytest.raises(ArgumentError, match="rows and cols divisible by patch=2"):
        build_scene(Exhibit(network, IMAGES[:, :2]))
    foreign = nn.Sequential(nn.Conv2d(3, 4, 1), RelativeAttention2d(4, 5, 2, "quadratic"))
    with pytest.raises(
        ArgumentError,
        match=r"images must fit the network, but on those of shape \(1, 2, 12, 10\) it raised Run",
    ):
        build_scene(Exhibit(foreign, IMAGES[:, :2]))
    with pytest.raises(ArgumentError, match="take fewer images, or name the layers"):
        build_scene(shown, largest=2000)
    with pytest.raises(ArgumentError, match="labels must be one for each of 2 images"):
        build_scene(shown, labels=["one"])
    with pytest.raises(ArgumentError, match="names of the networks must be different"):
        build_scene([shown, shown])
    with pytest.raises(ArgumentError, match="images of b must be 2, as those of network"):
        build_scene([shown, Exhibit(network, IMAGES[:1], name="b")])
    with pytest.raises(ArgumentError, match="exhibits must be one Exhibit or more"):
        build_scene([])
    with pytest.raises(ArgumentError, match="finite"):
        Exhibit(network, IMAGES / 0)
    with pytest.raises(
        ArgumentError, match="std must be positive numbers, given together with mean"
    ):
        Exhibit(network, IMAGES, mean=(0.5, 0.5, 0.5))


def test_images_of_another_rank_are_refused(without_type_checks):
    with pytest.raises(ShapeError, match="images must be of shape"):
        Exhibit(_network(), IMAGES[0])


def test_chosen_layers_alone_are_shown():
    scene = build_scene(
        Exhibit(_network(), IMAGES, mean=(0.0,) * 3, std=(1.0,) * 3, layers=("blocks.1.mixer",))
    )
    assert [layer["name"] for layer in _layers(scene)] == ["blocks.1.mixer"]
    assert scene.header["networks"][0]["program"] is None


def test_a_network_for_images_of_another_size_does_not_run_in_the_page():
    known = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    smaller = Exhibit(
        _network(), IMAGES[:, :, :10, :8], name="smaller", note="Random weights.", **known
    )
    first, second = build_scene([Exhibit(_network(), IMAGES, **known), smaller]).header["networks"]
    assert (first["program"] is None, first["note"]) == (False, "")
    assert second["program"] is None
    told = "It takes images of 10 × 8 pixels and the pictures here have 12 × 10, so that the page does not run it."
    assert second["note"] == f"Random weights. {told}"


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_does_not_run_in_the_page_on_pictures_that_say_less_than_its_images(channels):
    """Those of the first network: stretched where nothing says how its images were prepared, or grey."""
    first = Exhibit(
        AttentionNet(width=8, depth=1, heads=4, ffn=8, in_channels=channels), IMAGES[:, :channels]
    )
    grey = replace(first, mean=(0.0,), std=(1.0,)) if channels == 1 else first
    second = Exhibit(_network(), IMAGES, name="second", mean=(0.0,) * 3, std=(1.0,) * 3)
    shown = build_scene([grey, second]).header["networks"][1]
    assert shown["program"] is None
    told = "The pictures here, made for the first network, do not show all of its images"
    assert shown["note"] == f"{told}, so that the page does not run it."


def test_what_chosen_layers_leave_out_is_said():
    folder = network_folder("convattn:cifar10-small")
    known = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "heads": read_heads(folder)}
    trained, images = load_network(folder), torch.zeros(1, 3, 32, 32)
    for layers, runs in ((None, True), (("stages.1.first",), False)):
        (shown,) = build_scene(Exhibit(trained, images, layers=layers, **known)).header["networks"]
        assert (shown["program"] is not None, shown["timeline"] is not None) == (runs, runs)
        run = "Some layers are left out, so the page has no class scores and takes no own images."
        assert shown["note"] == (
            "" if runs else f"{run} Its training is shown only with all layers."
        )


def test_a_network_is_left_as_it_was():
    network = _network().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    build_scene(Exhibit(network, IMAGES))
    assert network.training
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


class _Fickle(nn.Module):
    """Runs its layer again where an image is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = RelativeAttention2d(3, 3, 2, "quadratic", content=Content(key_width=5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x)) if x.mean() > 1 else self.layer(x)


def test_a_call_that_the_first_image_does_not_have_is_left_out():
    torch.manual_seed(0)
    network = _Fickle().eval()
    images = torch.stack([torch.zeros(3, 5, 7), torch.rand(3, 5, 7) + 1])
    stored, single = (
        build_scene(Exhibit(network, images)),
        build_scene(Exhibit(network.layer, images)),
    )
    assert [layer["name"] for layer in stored.header["networks"][0]["layers"]] == ["layer"]
    assert stored.tensors.keys() == single.tensors.keys()
    assert all(torch.equal(stored.tensors[name], tensor) for name, tensor in single.tensors.items())
