"""What a scene says of networks: layers, places, statistics, training; and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import analyze, read_heads
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.lab.speed_net import SpeedNet
from convattn.layers import Content, RelativeAttention1d, RelativeAttention2d, RelativeAttention3d
from convattn.models import AttentionNet
from convattn.networks import load_network
from convattn.networks.pretrained import network_folder
from convattn.viewer import Exhibit, Scene, build_scene
from convattn.viewer.build import describe_timeline, prefix_names
from convattn.viewer.scene import SceneTensors

IMAGES = torch.linspace(-2, 2, 2 * 3 * 12 * 10).view(2, 3, 12, 10)
KNOWN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def small() -> AttentionNet:
    torch.manual_seed(0)
    return AttentionNet(width=8, depth=2, heads=[4, 5], ffn=8, image_size=12)


def layers_of(scene: Scene, network: int = 0) -> list[dict]:
    return scene.header["networks"][network]["layers"]


def assert_same_scene(one: Scene, other: Scene) -> None:
    assert layers_of(one) == layers_of(other)
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(other.tensors[name], tensor) for name, tensor in one.tensors.items())


def test_places_of_patches_strides_and_padding():
    layer = RelativeAttention2d(
        3, 4, num_heads=2, encoding="quadratic", kernel_size=3, stride=(2, 3), padding=(1, 2)
    )
    (described,) = layers_of(build_scene(Exhibit(layer, IMAGES)))
    assert described["grid"] == [6, 4]
    assert described["keys"] == {"grid": [14, 14], "first": [-1.0, -2.0], "step": [1.0, 1.0]}
    assert described["place"] == {"first": [0.0, -1.0], "step": [2.0, 3.0]}
    assert described["attention"]["queries"] == {"first": [1, 1], "stride": [2, 3]}
    patches = layers_of(build_scene(Exhibit(small(), IMAGES)))
    assert patches[0]["place"] == {"first": [0.5, 0.5], "step": [2.0, 2.0]}
    speed = SpeedNet(widths=[4, 5]).eval()
    places = [layer["place"] for layer in layers_of(build_scene(Exhibit(speed, IMAGES[..., :10])))]
    assert [place["first"][0] for place in places] == [0.0, 0.5, 1.0, 1.0, 2.0]
    assert [place["step"][0] for place in places] == [1.0, 1.0, 2.0, 2.0, 4.0]


def test_networks_side_by_side_share_the_pixels_of_the_first():
    half = Exhibit(small(), IMAGES[..., :6, :4], name="half")
    scene = build_scene([Exhibit(small(), IMAGES, name="whole"), half])
    assert [network["name"] for network in scene.header["networks"]] == ["whole", "half"]
    assert layers_of(scene, 1)[0]["grid"] == [3, 2]
    assert layers_of(scene, 1)[0]["place"] == {"first": [1.5, 2.0], "step": [4.0, 5.0]}


def test_a_report_says_what_heads_do():
    network = small()
    report = analyze(network, IMAGES, controls=(), progress=False)
    described = layers_of(build_scene(Exhibit(network, IMAGES, report=report)))[1]
    alone = Exhibit(network, IMAGES, report=report, layers=(described["name"],))
    assert layers_of(build_scene(alone))[0]["number"] == described["number"] == 2
    some = Exhibit(network, IMAGES, report=replace(report, layers=report.layers[1:]))
    assert [layer["number"] for layer in layers_of(build_scene(some))] == [1, 2]
    head = report.layers[1].heads[3]
    assert described["sentence"] == report.layers[1].sentence
    statistics = described["statistics"][3]
    assert statistics["shift"]["value"] == [axis.value for axis in head.shift]
    assert statistics["spread"] == {"value": head.spread.value, "error": head.spread.error}
    json.dumps(described, allow_nan=False)
    other = AttentionNet(width=8, depth=1, heads=7, ffn=8)
    assert layers_of(build_scene(Exhibit(other, IMAGES, report=report)))[0]["statistics"] is None


def test_the_training_and_what_chosen_layers_leave_out():
    folder = network_folder("convattn:cifar10-small")
    network, shots = load_network(folder), read_heads(folder)
    exhibit = Exhibit(network, torch.zeros(1, 3, 32, 32), heads=shots, **KNOWN)
    scene = build_scene(exhibit)
    (shown,) = scene.header["networks"]
    timeline = shown["timeline"]
    assert timeline["layers"] == [1, 2, 3, 4, 5, 6]  # the stem before them is hard
    assert timeline["epochs"] == sorted({shot.epoch for shot in shots})
    centres, sharpness = scene.tensors[timeline["centres"]], scene.tensors[timeline["sharpness"]]
    assert centres.shape == (len(timeline["epochs"]), 6, 9, 2)
    for number, layer in enumerate(shown["layers"][1:]):
        own = layer["attention"]["heads"]
        assert torch.equal(centres[-1, number].float(), scene.tensors[own["centres"]].float())
        ratio = sharpness[-1, number].double() / scene.tensors[own["sharpness"]].double()
        assert ((ratio - 1).abs() < 4 * torch.finfo(torch.float32).eps).all()
    assert shown["program"]
    assert shown["note"] == ""
    chosen = replace(exhibit, layers=("stages.1.first",))
    (shown,) = build_scene(chosen).header["networks"]
    assert [layer["name"] for layer in shown["layers"]] == ["stages.1.first"]
    assert (shown["program"], shown["timeline"]) == (None, None)
    assert shown["note"] == (
        "Some layers are left out, so the page has no class scores and takes no own images."
        " Its training is shown only with all layers."
    )


def shot(epoch, layer, heads):
    """Heads at (epoch, head), with α = 1 + head along rows and three times as much along columns."""
    centres = np.array([[epoch, head] for head in range(heads)], float)
    precisions = np.array([np.diag([2.0, 6.0]) * (1 + head) for head in range(heads)])
    return HeadSnapshot(epoch, 10 * epoch, layer, centres, precisions)


def test_a_layer_with_fewer_heads_is_filled_up():
    shots = [shot(epoch, layer, heads) for epoch in (5, 0) for layer, heads in ((0, 3), (1, 2))]
    tensors = SceneTensors(10**6)
    timeline = describe_timeline(shots, {4: 3, 7: 2}, "network", tensors)
    assert (timeline["epochs"], timeline["layers"]) == ([0, 5], [4, 7])
    centres = tensors.by_name[timeline["centres"]].float().nan_to_num(-1)
    sharpness = tensors.by_name[timeline["sharpness"]].float().nan_to_num(-1)
    assert centres[1].tolist() == [[[5, 0], [5, 1], [5, 2]], [[5, 0], [5, 1], [-1, -1]]]
    assert sharpness[0].tolist() == sharpness[1].tolist() == [[2, 4, 6], [2, 4, -1]]


OTHER_TRAININGS = {
    "none": ([], {0: 3}),
    "layers missing": ([shot(0, 0, 3)], {0: 3, 1: 3}),
    "more layers": ([shot(0, 0, 3), shot(0, 1, 3)], {0: 3}),
    "other heads": ([shot(0, 0, 3), shot(1, 0, 3)], {0: 2}),
}


@pytest.mark.parametrize(("shots", "layers"), OTHER_TRAININGS.values(), ids=OTHER_TRAININGS)
def test_a_training_of_other_layers_is_left_out(shots, layers):
    tensors = SceneTensors(10**6)
    assert describe_timeline(shots, layers, "network", tensors) is None
    assert tensors.by_name == {}


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_network_runs_in_the_page_if_pictures_are_what_it_takes(channels):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8, in_channels=channels)
    numbers = (0.5,) * channels
    exhibit = Exhibit(network, torch.rand(1, channels, 8, 8), mean=numbers, std=numbers)
    program = build_scene(exhibit).header["networks"][0]["program"]
    assert (program is not None) == (channels in (1, 3))


def grey_network() -> AttentionNet:
    return AttentionNet(width=8, depth=1, heads=4, ffn=8, in_channels=1)


FIRST = {
    "of another size": lambda: Exhibit(small(), IMAGES[..., :10, :8], **KNOWN),
    "stretched": lambda: Exhibit(small(), IMAGES),
    "grey": lambda: Exhibit(grey_network(), IMAGES[:, :1], mean=(0.0,), std=(1.0,)),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_network_does_not_run_in_the_page_on_pictures_that_say_less_than_its_images(name):
    second = Exhibit(small(), IMAGES, name="second", note="Random weights.", **KNOWN)
    shown = build_scene([FIRST[name](), second]).header["networks"][1]
    assert shown["program"] is None
    assert shown["note"] == (
        "Random weights. The page does not run it: the pictures, made for the first network, do not show all of its"
        " images."
    )


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (RelativeAttention1d(3, 4, num_heads=3, encoding="quadratic"), "a sequence"),
        (RelativeAttention3d(3, 4, num_heads=3, encoding="quadratic"), "a grid of 3 axes"),
    ],
)
def test_sequences_and_volumes_are_refused(layer, message):
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(2) if layer.dims == 1 else x.unsqueeze(2))

    with pytest.raises(UnsupportedModelError, match=f"layer attends on {message}, and the viewer"):
        build_scene(Exhibit(Folded(), IMAGES))


@pytest.mark.parametrize("content", [False, True])
def test_layers_called_by_name_and_on_single_images_are_shown(content):
    class Called(nn.Module):
        def __init__(self, call) -> None:
            super().__init__()
            self.layer = RelativeAttention2d(
                3, 4, num_heads=2, encoding="learned_axial", content=content
            )
            self.call = call

        def forward(self, x: Tensor) -> Tensor:
            return self.call(self.layer, x)

    scenes = []
    for call in (
        lambda layer, x: layer(x),
        lambda layer, x: torch.stack([layer(input=image) for image in x]),
    ):
        torch.manual_seed(0)
        scenes.append(build_scene(Exhibit(Called(call), IMAGES[..., :5, :4])))
    assert_same_scene(*scenes)


class Fickle(nn.Module):
    """Runs its layer again where an image is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = RelativeAttention2d(
            3, 3, num_heads=2, encoding="quadratic", content=Content(key_width=5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x)) if x.mean() > 1 else self.layer(x)


def test_calls_are_those_of_the_first_image():
    network = Fickle().eval()
    dark, bright = torch.zeros(1, 3, 5, 7), torch.rand(1, 3, 5, 7) + 1
    names = [layer["name"] for layer in layers_of(build_scene(Exhibit(network, bright)))]
    assert names == ["layer", "layer (call 2)"]
    both = torch.cat([dark, bright])
    scene = build_scene(Exhibit(network, both))
    assert [layer["name"] for layer in layers_of(scene)] == ["layer"]
    single = build_scene(Exhibit(network.layer, both))
    assert scene.tensors.keys() == single.tensors.keys()


def test_a_network_is_left_as_it_was():
    network = small().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    build_scene(Exhibit(network, IMAGES))
    assert network.training
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


class Aside(nn.Module):
    """Has a layer of attention, and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = RelativeAttention2d(3, 5, num_heads=2, encoding="quadratic")

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_networks_that_cannot_be_shown_are_refused():
    network = small()
    with torch.no_grad():
        network.blocks[0].mixer.values.weight[0, 0] = torch.nan
    with pytest.raises(ArgumentError, match="finite numbers, but networks/0/layers/0/values"):
        build_scene(Exhibit(network, IMAGES))
    with pytest.raises(ArgumentError, match="none of the layers unused runs when the network sees"):
        build_scene(Exhibit(Aside(), IMAGES))
    with pytest.raises(UnsupportedModelError, match="no attention of Conv2d"):
        build_scene(Exhibit(nn.Conv2d(3, 4, 3), IMAGES))
    with pytest.raises(ArgumentError, match=r"layers must be a pattern that matches attention la"):
        build_scene(Exhibit(network, IMAGES, layers=("blocks.7.mixer",)))
    with pytest.raises(ArgumentError, match="rows and cols divisible by patch=2"):
        build_scene(Exhibit(network, IMAGES[:, :2]))
    foreign = nn.Sequential(
        nn.Conv2d(3, 4, 1), RelativeAttention2d(4, 5, num_heads=2, encoding="quadratic")
    )
    with pytest.raises(
        ArgumentError, match=r"images must fit the network, but on float32 of shape"
    ):
        build_scene(Exhibit(foreign, IMAGES[:, :2]))


def test_exhibits_that_do_not_fit_together_are_refused():
    network, exhibit = small(), Exhibit(small(), IMAGES)
    with pytest.raises(ArgumentError, match="take fewer images, or name the layers"):
        build_scene(exhibit, largest=2000)
    with pytest.raises(ArgumentError, match="labels must be one for each of 2 images"):
        build_scene(exhibit, labels=["one"])
    with pytest.raises(ArgumentError, match="names of the networks must be different"):
        build_scene([exhibit, exhibit])
    with pytest.raises(ArgumentError, match="images of b must be 2, as those of network"):
        build_scene([exhibit, Exhibit(network, IMAGES[:1], name="b")])
    with pytest.raises(ArgumentError, match="exhibits must be one Exhibit or more"):
        build_scene([])


TOKENS = {
    (): ["token 1", "token 2"],
    ("cls_token",): ["class", "token 1"],
    ("reg_token", "cls_token"): ["class", "register 1"],
    ("class_embedding", "dist_token"): ["class", "distillation"],
}


@pytest.mark.parametrize(("tokens", "names"), TOKENS.items())
def test_tokens_are_named_by_what_the_network_calls_them(tokens, names):
    network = nn.Module()
    for token in tokens:
        network.register_parameter(token, nn.Parameter(torch.zeros(1)))
    wrapped = nn.ModuleDict({"body": network})
    assert prefix_names(wrapped, 2) == names
    assert prefix_names(wrapped, 0) == []
