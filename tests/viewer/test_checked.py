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
from convattn.models import AttentionNet, SpeedNet
from convattn.models.hub_model import network_folder
from convattn.networks import load_network
from convattn.viewer import Exhibit, Scene, build_scene
from convattn.viewer.scene import SceneSizeError, require_scene

KNOWN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


@pytest.fixture(scope="module")
def scene():
    """Everything that a scene may hold: two kinds of attention, a program, a timeline."""
    folder = network_folder("convattn:cifar10-small")
    trained = Exhibit(load_network(folder), torch.zeros(1, 3, 32, 32), heads=read_heads(folder), **KNOWN)
    torch.manual_seed(0)
    content = AttentionNet(width=8, depth=1, heads=4, ffn=8, content=True).eval()
    return build_scene([trained, Exhibit(content, torch.rand(1, 3, 12, 10), name="content", **KNOWN)])


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
        ('{"schema": 1, "title": "", "images": [], "networks": [], "x": ' + "9" * 9999 + "}", "no JSON"),
        ('{"schema": 1, "title": 1e999, "images": [], "networks": []}', "1e999 is no number of JSON"),
        ('{"schema": 1, "images": [], "networks": []}', "title is missing"),
        ('{"schema": 1, "title": 3, "images": [], "networks": []}', "title must be text, but is 3"),
        ('{"schema": 1, "title": "", "images": [[]], "networks": []}', r"images\[0\] must be a table"),
        ("[1]", "must be a scene of version 1, but is of None"),
    ],
    ids=["deep", "nan", "digits", "large", "no title", "number", "list", "array"],
)
def test_headers_of_another_form_are_refused(scene, tmp_path, told, message):
    with pytest.raises(CheckpointError, match=message):
        _load(tmp_path, _content(scene, told))


LAYER, CONTENT = "networks.0.layers.0.", "networks.1.layers.0.attention."


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("images.0.picture", "tensors/networks/0/layers/0/values", r"images\[0\]\.picture .* must be uint8"),
        ("images.0.name", 3, "must be text"),
        (LAYER + "heads", -1, "of at least 1"),
        (LAYER + "heads", 10**9, "of shape"),
        (LAYER + "grid", [10**9, 10**9], "of shape"),
        (LAYER + "grid", [-16, 16], "of at least 1"),
        (LAYER + "place", {"first": [0, 0], "step": [1e999, 1]}, "Infinity is no number"),
        (LAYER + "keys.grid", [0, 16], "at least one key"),
        (LAYER + "statistics", [], "one for each of 9 heads"),
        (LAYER + "statistics", [{"spread": {"value": "wide", "error": None}}] * 9, "a number or two, but is 'wide'"),
        (LAYER + "attention.kind", "other", "'position' or 'maps'"),
        (LAYER + "attention.queries.stride", [0, 1], "of at least 1"),
        (LAYER + "attention.axes", None, "either scores or axes"),
        (LAYER + "attention.values", "tensors/none", "does not hold tensors/none"),
        (LAYER + "attention.values", "none", "a tensor that the file holds"),
        (LAYER + "attention.groups", 2, "gives 24 channels to a layer of 48"),
        (CONTENT + "keys", "tensors/pictures/0", "must be int32"),
        (CONTENT + "images", [0, 1], "a tensor that the file holds, but is 'maps/1/0/both/1/levels'"),
        (CONTENT + "allowed", "tensors/pictures/0", r"attention.allowed \(tensors/pictures/0\) must be of shape \(1, "),
        (CONTENT + "stored", False, "if maps are stored, and only then"),
        (CONTENT + "images", None, "images must be a list, each item any value, but is None"),
        (CONTENT + "images", 5, "images must be a list, each item any value, but is 5"),
        (CONTENT + "parts", [], r"parts must be a list of at least one, but is \[\]"),
        ("networks.1.layers.0.keys.grid", [10**30, 1], "on a grid of 0 to 2147483647 cells"),
        ("networks.1.layers.0.grid", [2**30, 2], "on a grid of 0 to 2147483647 cells"),
        ("networks.1.layers.0.keys.grid", [-1, -99], "on a grid of 0 to 2147483647 cells"),
        ("networks.1.layers.0.place.step", [0, 1], r"place.step\[0\] must be a number above 0"),
        ("networks.1.layers.0.keys.step", [1, -1], r"keys.step\[1\] must be a number above 0"),
        ("networks.0.layers", [], "layers must be a list of at least one"),
        ("images", [], "images must be a list of at least one"),
        ("networks", [], "networks must be a list of at least one"),
        ("networks.0.input", None, "because the network has a program"),
        ("networks.0.input.std", [1, 1], "as long as the mean"),
        ("networks.0.program.1.op", "explode", "an operation that the page knows, but is 'explode'"),
        ("networks.0.program.0.stride", [0, 0], "of at least 1"),
        ("networks.0.program.1.op", "add", "adds features that were not put aside"),
        ("networks.0.program.2.layer", 97, "number of a layer that the page computes, but is 97"),
        ("networks.0.program.2.layer", True, "number of a layer that the page computes, but is True"),
        ("networks.0.timeline.layers", [-1], "numbers of 6 layers"),
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
        ("networks/0/layers/0/axes/0", lambda found: found.double(), "must be float16 or float32, but is 'float64'"),
        ("networks/0/layers/0/axes/1", lambda found: found[:, 1:].clone(), "must be of shape"),
        ("networks/0/timeline/centres", lambda found: found * torch.inf, "holds nan or inf"),
        ("networks/1/layers/0/queries", lambda found: found - 1, "must lie on the grid"),
        ("networks/1/layers/0/keys", lambda found: found + 10**6, "must lie on the grid"),
        ("pictures/0", lambda found: found[:0], "at least one number"),
        ("networks/0/program/0/weight", lambda found: found[:, 1:].clone(), "must be of shape"),
    ],
)
def test_tensors_that_are_not_as_they_must_be_are_named(scene, tmp_path, name, change, message):
    name = f"tensors/{name}"
    with pytest.raises(CheckpointError, match=message):
        _load(tmp_path, _content(scene, **{name: change(scene.tensors[name])}))


def test_groups_that_do_not_divide_the_channels_are_named(scene, tmp_path):
    """The kernel is as wide as a third of the channels, rounded down: its shape alone tells nothing."""
    header, name = copy.deepcopy(scene.header), "tensors/networks/0/program/0/weight"
    header["networks"][0]["program"][0]["groups"] = 2
    with pytest.raises(CheckpointError, match=r"program\[0\].groups must be a divisor of 3 and 24, but is 2"):
        _load(tmp_path, _content(scene, header, **{name: scene.tensors[name][:, :1].clone()}))


def test_a_file_of_other_tensors_is_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "a scene")
    with pytest.raises(CheckpointError, match="holds no scene"):
        Scene.load(tmp_path / "a scene")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_networks_that_hold_no_numbers_are_refused(value):
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
    with torch.no_grad():
        network.blocks[0].mixer.values.weight[0, 0] = value
    with pytest.raises(ArgumentError, match=r"must hold finite numbers, but networks/0/layers/0/values .* nan or inf"):
        build_scene(Exhibit(network, torch.zeros(1, 3, 8, 8)))


def test_a_scene_that_is_too_large_says_by_how_much(scene):
    exhibit = Exhibit(AttentionNet(width=8, depth=1, heads=4, ffn=8), torch.zeros(1, 3, 8, 8))
    with pytest.raises(SceneSizeError) as caught:
        build_scene(exhibit, largest=100)
    assert caught.value.size > caught.value.largest == 100
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.size, again.largest, str(again)) == (caught.value.size, 100, str(caught.value))
