import json
from operator import call

import pytest
import torch
from tests.layers.layer_cases import LAYERS, one_of_each
from tests.testing.dense import as_dtype
from torch import nn

from convattn import load_network, save_network
from convattn.budget import assert_within_budget, roundings
from convattn.convert import conv_to_attention
from convattn.errors import CheckpointError
from convattn.layers import RelativeAttention2d

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
    loaded = load_network(save_network(conv, tmp_path / "layer"))
    assert type(loaded) is type(conv)
    assert repr(loaded) == repr(conv)
    assert_same_state(loaded.state_dict(), conv.state_dict())


SAVED = [
    *one_of_each(LAYERS, lambda case: (case.kind, case.encoding)),
    *one_of_each(LAYERS, lambda case: repr(case.options)),
]
"""A layer of each kind with each encoding, and one with each options: files hold these side by side."""


@pytest.mark.parametrize("case", one_of_each(SAVED, str), ids=str)
def test_attention_layers_come_back(case, tmp_path):
    torch.manual_seed(0)
    layer = case.create(
        3, 5, kernel_size=2, stride=2, padding=1, padding_mode="circular", bias=False, dropout=0.0
    )
    loaded = load_network(save_network(layer, tmp_path / "layer"))
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
    loaded = load_network(save_network(layer, tmp_path / "layer"))
    assert loaded.encoding.centres.dtype == torch.float32
    assert loaded.values.weight.dtype == torch.bfloat16
    x = images_for(layer)
    assert_within_budget(
        loaded(x), as_dtype(layer, torch.float64)(x.double()), roundings(call, layer, x)
    )


CONV = {"in_channels": 2, "out_channels": 3, "kernel_size": [5]}
DAMAGES = [
    ("Conv1d", {"options": None}, ""),
    ("Conv1d", {"options": {"size": 3}}, ""),
    # where sizes take memory before they are compared
    ("Conv1d", {"options": {**CONV, "device": "cpu"}}, ".*multiple values .* 'device'"),
    ("attention", {"encoding": None}, ""),
    ("attention", {"encoding": {"name": "quadratik", "options": {}}}, ""),
    ("attention", {"encoding": {"name": "distance", "options": {"hidden": "many"}}}, ""),
    ("attention", {"encoding": {"name": "distance", "options": {}}}, ""),
    ("attention", {"content": {"key_widht": 3}}, ""),
    ("attention", {"content": "yes"}, ""),
    ("attention", {"kind": "RelativeAttention1d"}, ""),
]


@pytest.mark.parametrize(("kind", "changes", "message"), DAMAGES, ids=str)
def test_damaged_descriptions_are_refused(kind, changes, message, tmp_path, without_type_checks):
    layer = nn.Conv1d(2, 3, 5)
    if kind == "attention":
        layer = RelativeAttention2d(2, 3, num_heads=2, encoding="quadratic")
    folder = save_network(layer, tmp_path / "layer")
    config = json.loads((folder / "config.json").read_text())
    config["layers"][0] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"do not fit together: {message}"):
        load_network(folder, verify=False)
    with pytest.raises(CheckpointError, match=r"config\.json is not what was saved"):
        load_network(folder)
