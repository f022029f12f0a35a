import json
from operator import call

import pytest
import torch
from tests.layers.layer_cases import LAYERS
from tests.testing.dense import as_dtype
from torch import nn
from torch.nn.utils import prune

from convattn.budget import assert_within_budget, roundings
from convattn.convert import conv_to_attention, load_layer, save_layer
from convattn.encodings import AxisAdditiveEncoding
from convattn.errors import ArgumentError, CheckpointError, UnsupportedModelError
from convattn.layers import RelativeAttention1d, RelativeAttention2d

CONVOLUTIONS = [
    nn.Conv1d(2, 3, 5),
    nn.Conv2d(
        4,
        6,
        (3, 2),
        stride=(1, 2),
        padding=(1, 0),
        dilation=2,
        groups=2,
        padding_mode="reflect",
        bias=False,
    ),
    nn.Conv3d(2, 3, 3, padding="same", dtype=torch.float64),
    nn.ConvTranspose1d(2, 3, 5, stride=3, output_padding=2),
    nn.ConvTranspose2d(4, 6, 3, padding=1, groups=2, dtype=torch.bfloat16),
    nn.ConvTranspose3d(2, 3, (1, 2, 3), dilation=2),
]


def images_for(layer):
    return torch.randn(2, layer.in_channels, *(11, 7, 5)[: layer.dims]).to(
        next(layer.values.parameters()).dtype
    )


def assert_same_state(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("conv", CONVOLUTIONS, ids=repr)
def test_convolutions_come_back(conv, tmp_path):
    loaded = load_layer(save_layer(conv, tmp_path / "layer"))
    assert type(loaded) is type(conv)
    assert repr(loaded) == repr(conv)
    assert_same_state(loaded.state_dict(), conv.state_dict())


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_attention_layers_come_back(case, tmp_path):
    torch.manual_seed(0)
    layer = case.create(
        3, 5, kernel_size=2, stride=2, padding=1, padding_mode="circular", bias=False, dropout=0.0
    )
    loaded = load_layer(save_layer(layer, tmp_path / "layer"))
    assert type(loaded) is type(layer)
    assert repr(loaded) == repr(layer)
    assert loaded.content_terms == layer.content_terms
    assert loaded.impl == layer.impl
    assert_same_state(loaded.state_dict(), layer.state_dict())
    x = images_for(layer)
    assert_within_budget(
        loaded(x), as_dtype(layer, torch.float64)(x.double()), roundings(call, layer, x)
    )
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_a_bfloat16_layer_keeps_its_float32_encoding(tmp_path):
    layer, _ = conv_to_attention(
        nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, dtype=torch.bfloat16), sharpness=5.0
    )
    loaded = load_layer(save_layer(layer, tmp_path / "layer"))
    assert loaded.encoding.centres.dtype == torch.float32
    assert loaded.values.weight.dtype == torch.bfloat16
    x = images_for(layer)
    assert_within_budget(
        loaded(x), as_dtype(layer, torch.float64)(x.double()), roundings(call, layer, x)
    )


def test_folder_holds_weights_and_config_and_nothing_else(tmp_path):
    folder = save_layer(nn.Conv1d(2, 3, 5), tmp_path / "new" / "layer")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["layer"]
    assert json.loads((folder / "config.json").read_text())["kind"] == "Conv1d"


def test_an_empty_folder_may_be_filled_and_a_full_one_is_refused(tmp_path):
    (tmp_path / "layer").mkdir()
    save_layer(nn.Conv1d(2, 3, 5), tmp_path / "layer")
    before = {path.name: path.read_bytes() for path in (tmp_path / "layer").iterdir()}
    with pytest.raises(
        ArgumentError, match=r"layer' holds a saved network or layer: overwrite=True replaces it"
    ):
        save_layer(nn.Conv1d(2, 3, 7), tmp_path / "layer")
    assert {path.name: path.read_bytes() for path in (tmp_path / "layer").iterdir()} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"folder must be a folder, but .*file' is a file"):
        save_layer(nn.Conv1d(2, 3, 5), tmp_path / "file")
    with pytest.raises(ArgumentError, match="folder must be in a folder, but above"):
        save_layer(nn.Conv1d(2, 3, 5), tmp_path / "file" / "layer")


class Mine(AxisAdditiveEncoding):
    """An encoding that the library does not know."""

    def axis_score(self, axis, displacement):
        return displacement.expand(self.num_heads, *displacement.shape) + axis


class Wider(nn.Conv2d):
    """A subclass."""


UNSAVABLE = [
    (
        lambda: nn.Linear(2, 3),
        "cannot save Linear as a layer: supported are RelativeAttention1d, .*ConvTranspose3d",
    ),
    (lambda: Wider(2, 3, 3), "cannot save Wider as a layer"),
    (
        lambda: type("Sub", (RelativeAttention2d,), {})(2, 3, num_heads=2),
        "cannot save Sub as a layer",
    ),
    (
        lambda: RelativeAttention1d(2, 3, num_heads=2, encoding=Mine(2, 1)),
        r"cannot save the encoding Mine: .*_encoding\('mine', Mine\)",
    ),
    (
        lambda: prune.l1_unstructured(nn.Conv2d(2, 3, 3), "weight", 0.5),
        "cannot save Conv2d: it has forward hooks",
    ),
    (
        lambda: nn.Conv2d(2, 3, 3, device="meta"),
        "cannot save Conv2d: its tensors are on the meta device",
    ),
]


@pytest.mark.parametrize(
    ("make", "message"), UNSAVABLE, ids=[message[:40] for _, message in UNSAVABLE]
)
def test_what_would_not_load_is_not_saved(make, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=message):
        save_layer(make(), tmp_path / "layer")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr("convattn.sealed.write_atomically", fail)
    with pytest.raises(OSError, match="disk full"):
        save_layer(nn.Conv1d(2, 3, 5), tmp_path / "layer")
    assert list(tmp_path.iterdir()) == []


def write_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def exchange(folder):
    save_layer(nn.Conv1d(2, 3, 7), folder.parent / "other")
    (folder.parent / "other" / "model.safetensors").replace(folder / "model.safetensors")


DAMAGES = {
    "another version": (
        lambda folder: write_config(folder, schema_version=2),
        "does not describe a layer of schema ver",
    ),
    "unknown kind": (
        lambda folder: write_config(folder, kind="Linear"),
        "does not describe a layer of schema version 1",
    ),
    "kind a list": (
        lambda folder: write_config(folder, kind=[]),
        "does not describe a layer of schema version 1",
    ),
    "no options": (lambda folder: write_config(folder, options=None), "do not fit together"),
    "unknown option": (
        lambda folder: write_config(folder, options={"size": 3}),
        "do not fit together",
    ),
    "a device, where sizes take memory before they are compared": (
        lambda folder: write_config(
            folder,
            options={"in_channels": 2, "out_channels": 3, "kernel_size": [5], "device": "cpu"},
        ),
        "do not fit together: .*multiple values for keyword argument 'device'",
    ),
    "other weights": (exchange, "(?s)do not fit together.*size mismatch for weight"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_and_missing_files_are_refused(damage, message, tmp_path, without_type_checks):
    folder = save_layer(nn.Conv1d(2, 3, 5), tmp_path / "layer")
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_layer(folder, verify=False)
    with pytest.raises(
        CheckpointError, match=r"not what was saved|cannot read|not readable|does not describe"
    ):
        load_layer(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoding": None},
        {"encoding": {"name": "quadratik", "options": {}}},
        {"encoding": {"name": "distance", "options": {"hidden": "many"}}},
        {"encoding": {"name": "distance", "options": {}}},
        {"content": {"key_widht": 3}},
        {"content": "yes"},
        {"kind": "RelativeAttention1d"},
    ],
    ids=str,
)
def test_damaged_attention_is_refused(changes, tmp_path, without_type_checks):
    folder = save_layer(
        RelativeAttention2d(2, 3, num_heads=2, encoding="quadratic"), tmp_path / "layer"
    )
    write_config(folder, **changes)
    with pytest.raises(CheckpointError, match="do not fit together"):
        load_layer(folder, verify=False)
    with pytest.raises(
        CheckpointError,
        match=r"config\.json is not what was saved; if it was edited on purpose, load it",
    ):
        load_layer(folder)


def test_what_is_no_layer_and_no_certificate_is_refused_and_leaves_nothing(
    tmp_path, without_type_checks
):
    with pytest.raises(ArgumentError, match=r"^layer must be an nn\.Module, but is of type int$"):
        save_layer(3, tmp_path / "layer")
    with pytest.raises(
        ArgumentError, match=r"^certificate must be what the conversion returned, but is 'passed'$"
    ):
        save_layer(nn.Conv1d(2, 3, 5), tmp_path / "layer", certificate="passed")
    assert not list(tmp_path.iterdir())
