"""Scenes from outside: every kind of damage is found, and named."""

import copy
import json
import pickle
import random
import struct

import pytest
import torch
from safetensors.torch import save, save_file
from tests.viewer.layer_cases import random_layer

from convattn.errors import ArgumentError, CheckpointError
from convattn.heads import read_heads
from convattn.lab.speed_net import SpeedNet
from convattn.models import AttentionNet
from convattn.networks import load_network
from convattn.networks.pretrained import network_folder
from convattn.viewer import Exhibit, Scene, build_scene
from convattn.viewer.scene import SceneSizeError, require_scene

KNOWN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


@pytest.fixture(scope="module")
def scene():
    """Everything that a scene may hold: two kinds of attention, a program, a timeline."""
    folder = network_folder("convattn:cifar10-small")
    trained = Exhibit(
        load_network(folder), torch.zeros(1, 3, 32, 32), heads=read_heads(folder), **KNOWN
    )
    torch.manual_seed(0)
    content = AttentionNet(width=8, depth=1, heads=4, ffn=8, content=True).eval()
    return build_scene(
        [trained, Exhibit(content, torch.rand(1, 3, 12, 10), name="content", **KNOWN)]
    )


def _content(scene, header=None, **changes):
    told = header if isinstance(header, str) else json.dumps(header or scene.header)
    return save({**scene.tensors, **changes}, {"convattn.scene": told})


def _load(tmp_path, content):
    file = tmp_path / "a scene"
    file.write_bytes(content)
    return Scene.load(file)


@pytest.mark.parametrize("seed", range(16))
def test_layers_of_every_kind_pass(seed):
    layer, image = random_layer(seed)
    scene = build_scene(Exhibit(layer, image))
    require_scene(json.loads(json.dumps(scene.header)), scene.tensors)


def test_networks_of_every_kind_pass(scene, tmp_path):
    scene.save(tmp_path / "scene")
    Scene.load(tmp_path / "scene")
    speed = build_scene(Exhibit(SpeedNet(widths=[4, 5]).eval(), torch.zeros(1, 3, 16, 16), **KNOWN))
    require_scene(json.loads(json.dumps(speed.header)), speed.tensors)


def test_a_changed_byte_is_found_or_says_the_same(scene, tmp_path):
    """A number is like any other: that one was changed, the digest says."""
    content, draw = scene.to_bytes(), random.Random(0)
    head = 8 + struct.unpack("<Q", content[:8])[0]
    for end in (head, len(content)):
        for _ in range(100):
            damaged = bytearray(content)
            damaged[draw.randrange(end)] ^= 1 << draw.randrange(8)
            try:
                loaded = _load(tmp_path, bytes(damaged))
            except CheckpointError:
                continue
            assert loaded.to_bytes() == content  # 1E-05 is 1e-05


def test_files_that_are_cut_or_lie_about_their_size_are_refused(scene, tmp_path):
    content, draw = scene.to_bytes(), random.Random(1)
    for _ in range(50):
        with pytest.raises(CheckpointError, match="cannot read a scene"):
            _load(tmp_path, content[: draw.randrange(len(content))])
    for size in (0, 1, 10**8, 2**40, 2**63, 2**64 - 1):
        with pytest.raises(CheckpointError, match="cannot read a scene"):
            _load(tmp_path, struct.pack("<Q", size) + content[8:])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ('{"schema": 1, "images": [], "networks": ' + "[" * 50_000 + "]" * 50_000 + "}", "no JSON"),
        ('{"schema": 1, "title": NaN, "images": [], "networks": []}', "NaN is no number of JSON"),
        (
            '{"schema": 1, "title": "", "images": [], "networks": [], "x": ' + "9" * 9999 + "}",
            "no JSON",
        ),
        (
            '{"schema": 1, "title": 1e999, "images": [], "networks": []}',
            "1e999 is no number of JSON",
        ),
        ('{"schema": 1, "images": [], "networks": []}', "images must be a list of at least one"),
        ('{"schema": 1, "images": [1]}', "networks must be a list of at least one, but is None"),
        (
            '{"schema": 1, "images": {}, "networks": [1]}',
            "images must be a list of at least one, but is {}",
        ),
        ("[1]", "must be a scene of version 1, but is of None"),
    ],
    ids=["deep", "nan", "digits", "large", "no images", "no networks", "table", "array"],
)
def test_headers_of_another_form_are_refused(scene, tmp_path, told, message):
    with pytest.raises(CheckpointError, match=message):
        _load(tmp_path, _content(scene, told))


LAYER, CONTENT = "networks.0.layers.0.", "networks.1.layers.0.attention."


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            "images.0.picture",
            "tensors/networks/0/layers/0/values",
            r"images\[0\]\.picture .* be a tensor of uint8",
        ),
        (
            "images.0.picture",
            "none",
            "picture must be the name of a tensor in the file, but is 'none'",
        ),
        (LAYER + "heads", -1, "be a tensor of float -1 any"),
        (LAYER + "heads", 10**9, "be a tensor of float 1000000000"),
        (LAYER + "place", {"first": [0, 0], "step": [1e999, 1]}, "Infinity is no number"),
        (
            LAYER + "attention.values",
            "tensors/none",
            "the name of a tensor in the file, but is 'tensors/none'",
        ),
        (LAYER + "attention.values", "none", "the name of a tensor in the file, but is 'none'"),
        (
            CONTENT + "keys",
            "tensors/pictures/0",
            "must be a tensor of int32 any any, but is 'uint8",
        ),
        (CONTENT + "allowed", "tensors/pictures/0/0", "the name of a tensor in the file"),
        ("networks.1.layers.0.heads", 5, "be a tensor of float 5"),
        ("networks.1.layers", [], "list index out of range"),
        (
            "networks.0.program.0.weight",
            "tensors/none",
            r"program\[0\].weight must be the name of a tensor",
        ),
        ("title", 5, "title must be text, but is of type int"),
        ("images", [], "images must be a list of at least one"),
        ("networks", [], "networks must be a list of at least one"),
        (
            "networks.0.timeline.centres",
            "tensors/pictures/0",
            "timeline.centres .* float any any any 2",
        ),
    ],
)
def test_what_a_header_says_wrong_is_named(scene, tmp_path, place, value, message):
    header = copy.deepcopy(scene.header)
    *way, last = (int(step) if step.isdigit() else step for step in place.split("."))
    held = header
    for step in way:
        held = held[step]
    held[last] = value
    with pytest.raises(CheckpointError, match=f"a scene is damaged: .*{message}"):
        _load(tmp_path, _content(scene, header))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("networks/0/layers/0/axes/0", lambda found: found * torch.nan, "holds nan or inf"),
        (
            "networks/0/layers/0/axes/0",
            lambda found: found.double(),
            "be a tensor of float 9 any, but is 'float64",
        ),
        (
            "networks/0/layers/0/axes/1",
            lambda found: found[1:].clone(),
            "be a tensor of float 9 any, but is 'float 8",
        ),
        (
            "networks/0/layers/0/values",
            lambda found: found[..., 0].clone(),
            "be a tensor of float 9 any any",
        ),
        ("networks/1/layers/0/axes/1", lambda found: -found * torch.inf, "holds nan or inf"),
        ("networks/0/program/0/weight", lambda found: found * torch.inf, "holds nan or inf"),
        ("pictures/0", lambda found: found[:0], "be a tensor of uint8 any any 3, but is 'uint8 0"),
        (
            "networks/0/program/0/weight",
            lambda found: found[:0],
            "be a tensor of any, but is 'float 0",
        ),
    ],
)
def test_tensors_that_are_not_as_they_must_be_are_named(scene, tmp_path, name, change, message):
    name = f"tensors/{name}"
    with pytest.raises(CheckpointError, match=message):
        _load(tmp_path, _content(scene, **{name: change(scene.tensors[name])}))


def test_the_lowest_weights_of_maps_have_a_size_for_each_head(scene, tmp_path):
    with pytest.raises(
        CheckpointError, match=r"both/0/lows.* be a tensor of float any 4 any, but is 'float 1 3"
    ):
        _load(tmp_path, _content(scene, **{"maps/1/0/both/0/lows": torch.zeros(1, 3, 7)}))


def test_a_file_of_other_tensors_is_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "a scene")
    with pytest.raises(CheckpointError, match="holds no scene"):
        Scene.load(tmp_path / "a scene")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_networks_that_hold_no_numbers_are_refused(value):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
    with torch.no_grad():
        network.blocks[0].mixer.values.weight[0, 0] = value
    with pytest.raises(
        ArgumentError,
        match=r"must hold finite numbers, but networks/0/layers/0/values .* nan or inf",
    ):
        build_scene(Exhibit(network, torch.zeros(1, 3, 8, 8)))


def test_a_scene_that_is_too_large_says_by_how_much(scene):
    exhibit = Exhibit(AttentionNet(width=8, depth=1, heads=4, ffn=8), torch.zeros(1, 3, 8, 8))
    with pytest.raises(SceneSizeError) as caught:
        build_scene(exhibit, largest=100)
    assert caught.value.size > caught.value.largest == 100
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.size, again.largest, str(again)) == (caught.value.size, 100, str(caught.value))
