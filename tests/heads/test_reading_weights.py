"""Weights × values is what each module itself computed; rows sum to one; other roads to the weights agree."""

import copy

import pytest
import torch
from tests.heads.arm_cases import naflex, padded_patches
from tests.heads.attention_cases import TIMM
from tests.heads.attention_other_cases import (
    AUDIO,
    CASES,
    OWN,
    SQUARE,
    TEXT,
    TEXTS,
    TOWER,
    transformers_model,
)
from tests.heads.watch_cases import drawn, seen_by

from convattn.budget import assert_within_budget, roundings
from convattn.errors import UnsupportedModelError
from convattn.heads import attention_maps
from convattn.heads.catalogue import attention_layers


@pytest.mark.parametrize("case", CASES)
def test_every_layer_of_a_network(case):
    network = case.build()
    found = {layer.name: layer for layer in attention_layers(network) if layer.refused is None}
    calls = seen_by(network, drawn(*case.size))
    assert [call.name for call in calls] == list(found)
    for call in calls:
        assert call.error <= call.budget < 1e-3
        assert call.normalised or "TalkingHead" in call.kind
        assert call.kind == found[call.name].kind
        images, groups, _, queries, keys = call.weights.shape
        assert (images, groups, queries) == (2, *call.layout.queries.shape)
        assert (groups, keys) == tuple(call.layout.keys.shape[:2])
        for tokens in (call.inputs, call.outputs):
            assert tokens is None or tuple(tokens.shape[:2]) == (2, call.layout.positions)
    looked_at = next(call for call in calls if call.name == case.layer)
    assert (looked_at.layout.pattern, looked_at.layout.grid, looked_at.layout.prefix) == case[3:6]


@pytest.mark.parametrize(("build", "size"), OWN.values(), ids=OWN)
def test_our_own_layers(build, size):
    network = build()
    for call in seen_by(network, drawn(*size)):
        assert call.normalised
        assert call.error <= call.budget < 1e-4
        layer = network.get_submodule(call.name)
        place = (call.layout.keys - call.layout.query_positions()[:, :1])[0]
        if call.name == "" and layer.content is None:
            whole = layer.attention(size[1:]).flatten(-len(size) + 1).flatten(1, -2)
            assert torch.equal(call.weights[0, 0], whole)
        assert place.shape == (call.weights.shape[-1], len(size) - 1)


def test_keys_of_a_strided_layer_are_seen_in_steps_of_its_queries():
    build, size = OWN["strided"]
    (call,) = seen_by(build(), drawn(*size))
    assert call.layout.grid == (3, 5)
    assert call.layout.keys[0, :3].tolist() == [[-0.5, -0.5], [-0.5, 0.0], [-0.5, 0.5]]
    assert call.inputs is None


@pytest.mark.parametrize(("build", "layer", "causal"), TEXTS.values(), ids=TEXTS)
def test_texts(build, layer, causal):
    ids = torch.randint(5, 90, (2, 11), generator=torch.Generator().manual_seed(1))
    (call,) = seen_by(build(), ids)
    assert (call.name, call.layout.pattern, call.layout.grid) == (layer, "sequence", (11,))
    expected = torch.ones(1, 11, 11, dtype=torch.bool).tril() if causal else None
    assert (call.layout.allowed is None) is (expected is None)
    if expected is not None:
        assert torch.equal(call.layout.allowed, expected)
        assert not call.weights[:, :, :, ~expected[0]].any()
    assert call.normalised


@pytest.mark.parametrize(("build", "size", "layer", "tokens"), AUDIO.values(), ids=AUDIO)
def test_audio(build, size, layer, tokens):
    (call,) = seen_by(build(), drawn(*size))
    assert (call.name, call.layout.pattern, call.layout.grid) == (layer, "sequence", (tokens,))
    assert call.normalised


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("Bert", "sdpa"),
        ("Bert", "eager"),
        ("Albert", "sdpa"),
        ("Albert", "eager"),
        ("MPNet", "eager"),
    ],
)
def test_padded_texts_have_masks_of_their_own(kind, attention):
    ids, mask = torch.randint(5, 90, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[1, 7:] = 0
    network = transformers_model(kind, attn_implementation=attention, **TEXT)()
    (call,) = seen_by(network, {"input_ids": ids, "attention_mask": mask})
    assert call.layout.allowed is None
    assert torch.equal(call.allowed[:, 0, 0], mask.bool())
    assert not call.weights[1, ..., 7:].any()


def test_patches_with_their_places():
    network, given = naflex(), padded_patches()
    own, _ = seen_by(network, given)
    packed = {"patches": given["x"], **given}
    same, _ = seen_by(network, (packed,))
    assert own.layout.lies_like(same.layout)
    assert torch.equal(own.weights, same.weights)
    assert own.layout.pattern == "patches"
    assert not own.weights[:, :, :, :17, 17:].any()
    given["patch_coord"][1:, :15] = given["patch_coord"][1:, :15].flip(1)
    with pytest.raises(UnsupportedModelError, match="its images have patches in different places"):
        seen_by(network, given)


def test_maps_by_position():
    """Each weight is at the rows and columns of its query and key; those of tokens and padding are nowhere."""
    for name in ("registers", "shifted windows, padded", "reduced keys"):
        case = TIMM[name]
        network, x = case.build(), drawn(*case.size)
        maps = attention_maps(network, x, layers=case.layer)[case.layer]
        (call,) = seen_by(network, x, layers=case.layer)
        expected = torch.zeros(*call.weights.shape[::2][:2], *case.grid, *case.grid)
        cells = torch.cartesian_prod(*map(torch.arange, case.grid)).tolist()
        for group, query in (call.layout.queries >= 0).nonzero().tolist():
            looking = cells[call.layout.queries[group, query]]
            for key, (row, col) in enumerate(call.layout.keys[group].floor().long().tolist()):
                there = row in range(case.grid[0]) and col in range(case.grid[1])
                if there and not call.layout.key_prefix[key]:
                    place = (..., *looking, row, col)
                    expected[place] += call.weights[:, group, :, query, key]
        assert torch.equal(maps, expected), name
    case = TIMM["class attention"]
    assert not attention_maps(case.build(), drawn(*case.size), layers=case.layer)


@pytest.mark.parametrize("kind", ["ViT", "Bert"])
def test_the_weights_that_transformers_itself_gives_out(kind):
    sizes = {**(TOWER | SQUARE if kind == "ViT" else TEXT), "num_hidden_layers": 2}
    network = transformers_model(kind, **sizes)().eval()
    given = drawn(3, 20, 20) if kind == "ViT" else torch.randint(5, 90, (2, 11))
    plain = transformers_model(kind, **sizes, attn_implementation="eager")().eval()
    plain.load_state_dict(network.state_dict())

    def given_out(plain, given):
        with torch.no_grad():
            return plain(given, output_attentions=True).attentions

    highs = given_out(
        copy.deepcopy(plain).double(), given.double() if given.is_floating_point() else given
    )
    for call, hi, *lows in zip(
        seen_by(network, given), highs, *roundings(given_out, plain, given), strict=True
    ):
        assert_within_budget(call.weights[:, 0], hi, lows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    case = TIMM["class token"]
    for call in seen_by(case.build().to(dtype), drawn(*case.size).to(dtype)):
        assert call.weights.dtype == torch.promote_types(dtype, torch.float32)
        assert call.normalised


def test_inputs_and_outputs_lie_on_the_grid():
    case = TIMM["shifted windows, padded"]
    network, kept = case.build().eval(), {}
    block = network.get_submodule(case.moved)
    block.norm1.register_forward_hook(lambda *passed: kept.update(inputs=passed[2]))
    call = next(call for call in seen_by(network, drawn(*case.size)) if call.name == case.layer)
    assert torch.equal(call.inputs, kept["inputs"].flatten(1, 2))
    with torch.no_grad():
        assert torch.equal(call.outputs, block._attn(kept["inputs"]).flatten(1, 2))
