"""Scenes: saved and loaded, damaged files, and what is refused while one is made."""

import json
import random
import struct

import pytest
import torch
from safetensors.torch import save, save_file

from convattn.errors import ArgumentError, CheckpointError
from convattn.models import AttentionNet
from convattn.viewer import Exhibit, Scene, SceneSizeError, build_scene
from convattn.viewer.scene import SceneTensors


@pytest.fixture(scope="module")
def scene():
    """A scene of stored maps and of scores."""
    torch.manual_seed(0)
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8, content=True).eval()
    exhibit = Exhibit(network, torch.rand(2, 3, 12, 10), mean=(0.0,) * 3, std=(1.0,) * 3)
    return build_scene(exhibit, names=["a", "b"], labels=["cat", "dog"], title="two")


def load(tmp_path, content):
    file = tmp_path / "a scene"
    file.write_bytes(content)
    return Scene.load(file)


def test_a_scene_comes_back_from_its_file(scene, tmp_path):
    scene.save(tmp_path / "scene")
    loaded = Scene.load(tmp_path / "scene")
    assert loaded.header == json.loads(json.dumps(scene.header))
    assert loaded.tensors.keys() == scene.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in scene.tensors.items())
    assert loaded.to_bytes() == scene.to_bytes()


def test_a_changed_byte_is_found_or_says_the_same(scene, tmp_path):
    """A number is like any other: that one was changed, the digest says."""
    content, draw = scene.to_bytes(), random.Random(0)
    head = 8 + struct.unpack("<Q", content[:8])[0]
    for end in (head, len(content)):
        for _ in range(60):
            damaged = bytearray(content)
            damaged[draw.randrange(end)] ^= 1 << draw.randrange(8)
            try:
                loaded = load(tmp_path, bytes(damaged))
            except CheckpointError:
                continue
            assert loaded.to_bytes() == content  # 1E-05 is 1e-05


def test_files_that_are_cut_or_lie_about_their_size_are_refused(scene, tmp_path):
    content, draw = scene.to_bytes(), random.Random(1)
    damaged = [content[: draw.randrange(len(content))] for _ in range(20)]
    damaged.extend(struct.pack("<Q", size) + content[8:] for size in (0, 10**8, 2**63, 2**64 - 1))
    for one in damaged:
        with pytest.raises(CheckpointError, match="cannot read a scene"):
            load(tmp_path, one)
    with pytest.raises(CheckpointError, match="cannot read a scene"):
        Scene.load(tmp_path / "missing")


HEADERS = {
    "deep": ("[" * 50_000 + "]" * 50_000, "is damaged: its header is no JSON"),
    "cut": ("{", "is damaged: its header is no JSON"),
    "newer": ('{"schema": 2}', "must be a scene of version 1, but is of 2"),
    "array": ("[1]", "must be a scene of version 1, but is of None"),
    "no digest": ('{"schema": 1, "title": ""}', "is damaged: its content is not what was saved"),
    "nan": ('{"schema": 1, "title": NaN}', "is damaged: its content is not what was saved"),
}


@pytest.mark.parametrize(("header", "message"), HEADERS.values(), ids=HEADERS)
def test_headers_of_another_form_are_refused(scene, tmp_path, header, message):
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, save(scene.tensors, {"convattn.scene": header}))


def test_a_file_of_other_tensors_is_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(CheckpointError, match="holds no scene"):
        Scene.load(tmp_path / "other")


def test_numbers_are_narrow_only_without_loss():
    tensors = SceneTensors(1000)
    for values, dtype in (([0.5, -2.0], torch.float16), ([0.1, -2.0], torch.float32)):
        tensor = torch.tensor(values)
        name = tensors.add(f"{dtype}", tensor)
        assert tensors.by_name[name].dtype == dtype
        assert torch.equal(tensors.by_name[name].float(), tensor)


def test_numbers_are_finite_but_for_keys_that_are_never_looked_at():
    tensors = SceneTensors(1000)
    tensors.add("scores", torch.tensor([0.0, -torch.inf]))
    for value in (torch.nan, torch.inf):
        with pytest.raises(ArgumentError, match="network must hold finite numbers, but a of its"):
            tensors.add("a", torch.tensor([0.0, value]))
        tensors.add("a", torch.tensor([0.0, value]), gaps=True)


def test_a_scene_that_is_too_large_says_by_how_much():
    tensors = SceneTensors(2**20)
    tensors.add("first", torch.zeros(2**19, dtype=torch.uint8))
    message = "the scene would be 2 MB or more, and may be 1 MB: take fewer images, or name the"
    with pytest.raises(SceneSizeError, match=message):
        tensors.add("second", torch.zeros(3 * 2**19, dtype=torch.uint8))
