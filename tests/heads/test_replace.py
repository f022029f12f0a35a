"""Networks whose heads were replaced: what they compute, what they hold, and what their record says."""

import copy
from functools import partial
from math import isnan, prod
from types import MethodType

import pytest
import torch
import transformers
from tests.heads.report_cases import (
    KINDS,
    NETWORKS,
    attention_maps,
    attention_of,
    bert,
    fixed_weights,
    images,
    measured,
    outputs,
    replaced_layer,
    timm_vit,
    words,
)
from torch import nn

from convattn.budget import assert_within_budget, references, roundings
from convattn.errors import UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.catalogue import read_matrices
from convattn.heads.fixed_attention import FixedAttention
from convattn.heads.replace import HeadReplacement, replace_heads
from convattn.heads.replaceable_heads import every_head, random_heads
from convattn.models import AttentionNet


def replaced_references(network, name, weights, tokens):
    """What a layer gives whose heads all use these weights: in float64, and in float32 with several roundings."""

    def low(network, weights, tokens):
        return replaced_layer(network, name, weights, torch.float32)(tokens)

    return replaced_layer(network, name, weights)(tokens), roundings(
        low, network, weights.float(), tokens
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_replaced_heads_use_the_fixed_weights(name):
    network, _, report = measured(name)
    made, _ = replace_heads(network, report, heads=every_head(report))
    layer = report.layers[1]
    attention = attention_of(made, layer.name)
    weights = fixed_weights(layer)
    tokens = torch.randn(2, layer.prefix + prod(layer.grid), attention.value.in_features)
    assert_within_budget(
        attention(tokens), *replaced_references(network, layer.name, weights, tokens), name
    )


@pytest.mark.parametrize("name", KINDS)
def test_layers_without_heads_by_content_hold_no_queries_and_keys(name):
    network, x, report = measured(name)
    made, record = replace_heads(network, report, heads=every_head(report))
    assert record.layers_without_softmax == tuple(layer.name for layer in report.layers)
    held = {
        parameter.rpartition(".")[0].rpartition(".")[2] for parameter, _ in made.named_parameters()
    }
    assert not held & {"query", "key", "qkv", "q_proj", "k_proj"}
    assert outputs(made, x).shape == outputs(network, x).shape


@pytest.mark.parametrize("name", KINDS)
def test_a_threshold_that_nothing_meets_changes_no_bit(name):
    network, x, report = measured(name)
    made, record = replace_heads(network, report, threshold=1.0)
    assert not record.replaced
    assert {head.reason for head in record.left} == {"its position score is below the threshold"}
    assert torch.equal(outputs(made, x), outputs(network, x))
    assert not {id(part) for part in made.parameters()} & {
        id(part) for part in network.parameters()
    }


@pytest.mark.parametrize("name", KINDS)
def test_the_network_itself_stays_as_it_was(name):
    network, x, report = measured(name)
    before, state, text = outputs(network, x), copy.deepcopy(network.state_dict()), repr(network)
    replace_heads(network, report, heads=every_head(report))
    assert repr(network) == text
    assert torch.equal(outputs(network, x), before)
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_other_heads_attend_as_before(name):
    """With one head at its fixed weights."""
    network, _, report = measured(name)
    layer = report.layers[0]
    made, record = replace_heads(network, report, heads=[(layer.name, 1)])
    assert [(head.layer, head.head) for head in record.replaced] == [(layer.name, 1)]
    assert record.layers_without_softmax == ()
    attention = attention_of(made, layer.name)
    tokens = torch.randn(2, layer.prefix + prod(layer.grid), attention.value.in_features)
    hi, lows = references(partial(expected, layer), network, tokens)
    assert_within_budget(attention(tokens), hi, lows, name)


SCALED = {
    "timm, class token": ("blocks.0.attn", "scale", "qkv"),
    "transformers": ("vit.layers.0.attention", "scaling", "q_proj"),
    "whisper": ("layers.0.self_attn", "scaling", "q_proj"),
}


@pytest.mark.parametrize("name", SCALED)
def test_heads_that_stay_keep_a_changed_scale(name):
    """Four times the scale is four times the queries, in every bit."""
    network, x, report = measured(name)
    place, scale, query = SCALED[name]
    scaled, multiplied = copy.deepcopy(network), copy.deepcopy(network)
    layer = scaled.get_submodule(place)
    layer.fused_attn = False  # timm's fused attention has a scale of its own
    setattr(layer, scale, 4 * getattr(layer, scale))
    with torch.no_grad():
        for part in multiplied.get_submodule(f"{place}.{query}").parameters():
            part[: 18 if query == "qkv" else None] *= 4
    one, two, same = (
        outputs(replace_heads(made, report, heads=[(place, 0)])[0], x)
        for made in (scaled, multiplied, network)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, same)


def softened(self, x, *args, **named):
    """Attention of timm whose own `forward` halves what it is given."""
    return type(self).forward(self, x / 2, *args, **named)


def test_a_layer_with_a_forward_of_its_own_runs_as_it_is():
    """Built anew from its matrices, it would attend as its class does."""
    network, x = timm_vit(2), images(count=10)
    attention = network.blocks[0].attn
    attention.forward = MethodType(softened, attention)
    report = analyze(network, x, controls=(), progress=False)
    made, _ = replace_heads(network, report, [("blocks.0.attn", 0)])
    kept = made.get_submodule("blocks.0.attn")
    assert isinstance(kept, FixedAttention)
    assert "forward" in vars(kept.attention)


def test_a_tower_of_texts_keeps_its_masks():
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 16,
    }
    config = transformers.CLIPConfig(
        vision_config={**sizes, "image_size": 20, "patch_size": 4},
        text_config={**sizes, "vocab_size": 40},
    )
    torch.manual_seed(0)
    network = transformers.CLIPModel(config).eval()
    given = {"pixel_values": torch.randn(10, 3, 20, 20), "input_ids": words(count=10)}
    report = analyze(network, given, controls=(), progress=False)
    text, image = (f"{tower}_model.encoder.layers.0.self_attn" for tower in ("text", "vision"))
    made, record = replace_heads(network, report, [(text, 1), (image, 1)])
    assert {head.layer for head in record.replaced} == {text, image}
    assert made(**given).logits_per_image.isfinite().all()


def expected(layer, network, tokens):
    """The first layer on tokens with head 1 at its fixed weights, the others by the definition."""
    read = read_matrices(network.get_submodule(layer.name))
    with torch.no_grad():
        query, key, value = (
            part(tokens).unflatten(-1, (read.heads, -1)).movedim(-2, 1)
            for part in (read.query, read.key, read.value)
        )
        query, key = read.query_norm(query), read.key_norm(key)
        weights = (query @ key.mT * read.head_width**-0.5).softmax(-1)
        weights[:, 1] = fixed_weights(layer, [1])[1].to(weights.dtype)
        y = (weights @ value).movedim(1, -2).flatten(-2)
        return y if read.output is None else read.output(y)


def test_a_report_of_analyze_is_taken_as_it_comes():
    network, x = timm_vit(2), images(count=12)
    report = analyze(network, x[:10], controls=(), progress=False)
    made, record = replace_heads(network, report, heads=every_head(report))
    assert record.layers_without_softmax == ("blocks.0.attn", "blocks.1.attn")
    moved = attention_of(made, "blocks.1.attn")

    def means(network, x):
        weights = attention_maps(network, x)["blocks.1.attn"]
        return weights[:, :, 2:, :2].mean((0, 2)), weights[:, :, :2].mean(0)

    highs = means(copy.deepcopy(network).double(), x[:10].double())
    found = (moved.prefix_shares, moved.prefix_maps)
    for mean, high, *lows in zip(found, highs, *roundings(means, network, x[:10]), strict=True):
        assert_within_budget(mean, high, [low.float() for low in lows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtype_stays_and_kernels_are_wide(dtype):
    network, x, report = measured("timm, class token")
    made, _ = replace_heads(network.to(dtype), report, heads=every_head(report))
    assert outputs(made, x.to(dtype)).dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    kinds = {name.rpartition(".")[2]: value.dtype for name, value in made.named_parameters()}
    assert {kinds[name] for name in ("kernel", "prefix_shares", "prefix_maps")} == {wide}
    assert kinds["weight"] == dtype


def test_the_little_that_a_prefix_token_leaves_is_not_rounded_away():
    """As of a token into which heads sink their attention, and of which the values are small."""
    network, _, report = measured("timm, class token")
    made, _ = replace_heads(
        network.bfloat16(), report, heads=every_head(report), same_weights=False
    )
    attention = attention_of(made, "blocks.0.attn")
    nn.init.constant_(attention.prefix_shares, 0.999)
    values = torch.ones(1, 3, 36, 6, dtype=torch.bfloat16)
    values[:, :, 0] = 0
    y = attention._averaged(values[:, 0], values, (5, 7))[:, :, 1:]
    assert (y.double() - 0.001).abs().max() <= 0.001 * 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("name", KINDS)
def test_the_made_network_can_be_trained(name):
    network, x, report = measured(name)
    made, _ = replace_heads(network, report, heads=every_head(report)[::2])
    output = made.train()(x)
    (output if isinstance(output, torch.Tensor) else output[0]).square().sum().backward()
    missing = [
        key
        for key, parameter in made.named_parameters()
        if parameter.grad is None and parameter.requires_grad
    ]
    assert not missing
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("frozen", ["weight", "bias", "values", "others"])
@pytest.mark.parametrize("name", ["timm, class token", "transformers", "whisper"])
def test_each_part_keeps_whether_it_learns(name, frozen):
    network, _, report = measured(name)
    inner = ("qkv.", "in_proj_", "q_proj.", "k_proj.", "v_proj.", "query.", "key.", "value.")
    for key, parameter in network.named_parameters():
        values = any(part in key for part in inner)
        parameter.requires_grad_(
            {"values": not values, "others": values}.get(frozen, not key.endswith(frozen))
        )
    layer = report.layers[0]
    made, _ = replace_heads(network, report, heads=[(layer.name, 1)])
    parameters = attention_of(made, layer.name).named_parameters()
    learns = {key: part.requires_grad for key, part in parameters if part.numel()}
    assert len(learns) >= 7
    for key, found in learns.items():
        last = "bias" if key.endswith("bias") else "weight"
        expected = {"values": key.startswith("output"), "others": not key.startswith("output")}
        assert found == expected.get(frozen, last != frozen), key


@pytest.mark.parametrize("name", KINDS)
def test_its_weights_load_into_another_one_made_alike(name):
    network, x, report = measured(name)
    chosen = every_head(report)[1::2]
    made, _ = replace_heads(network, report, heads=chosen)
    torch.manual_seed(1)
    other = copy.deepcopy(network)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    again, _ = replace_heads(other, report, heads=chosen)
    again.load_state_dict(made.state_dict())
    assert torch.equal(outputs(again, x), outputs(made, x))


def test_parts_that_are_taken_over_keep_their_modes():
    network, _, report = measured("timm, queries normalised")
    for training in (True, False):
        network.train(training)
        network.blocks[0].attn.proj_drop.train(not training)
        network.blocks[0].attn.q_norm.train(not training)
        made, _ = replace_heads(network, report, heads=[("blocks.0.attn", 0)])
        layer = attention_of(made, "blocks.0.attn")
        others = {part for part in made.modules() if part.training != training}
        assert others == {layer.after, layer.content.query_norm}


def test_padded_words_count_for_nothing():
    """The kernel is renormalised over the words that are there, as softmax does; what pads is seen by no word."""
    network, x = bert(), words(17)
    report = analyze(network, words(11, 6), radius=10, controls=(), progress=False)
    made, _ = replace_heads(network, report, heads=every_head(report)[1::2])
    mask = torch.ones_like(x)
    mask[1, 7:] = 0
    other = x.clone()
    other[1, 7:] = 3
    one, two = (outputs(made, ids, attention_mask=mask) for ids in (x, other))
    assert torch.equal(one[1, :7], two[1, :7])
    wide = copy.deepcopy(made).double()
    assert_within_budget(one[1:, :7], outputs(wide, x[1:, :7]), roundings(outputs, made, x[1:, :7]))


def test_the_record_tells_all_heads_and_comes_back_from_json():
    network, _, report = measured("timm, class token")
    made, record = replace_heads(network, report, heads=every_head(report)[:2])
    assert [(head.layer, head.head) for head in record.heads] == every_head(report)
    assert len(record.replaced) == 2
    assert {head.reason for head in record.left} == {"it was not named"}
    assert isnan(record.threshold)
    assert all(head.box for head in record.replaced)
    assert record.parameters == sum(parameter.numel() for parameter in made.parameters())
    again = HeadReplacement.from_json(record.to_json())
    assert again.heads == record.heads
    text = record.summary()
    assert text.startswith(
        "head replacement: 2 of 6 heads of VisionTransformer (named by the caller)"
    )
    assert "4 heads: it was not named" in text
    assert "  softmax         left in 2 of 2 layers\n" in text


def test_random_heads_are_as_many_others_of_the_same_layers():
    _, _, report = measured("timm, class token")
    heads = [("blocks.0.attn", 0), ("blocks.1.attn", 2)]
    drawn = {random_heads(report, heads, seed=seed) for seed in range(9)}
    assert all(
        [name for name, _ in others] == ["blocks.0.attn", "blocks.1.attn"] for others in drawn
    )
    assert not {head for others in drawn for head in others}.intersection(heads)
    assert len(drawn) > 1
    assert random_heads(report, heads) == random_heads(report, heads)
    assert random_heads(report, []) == ()


def test_layers_of_this_library_are_left():
    network = AttentionNet(width=12, depth=2, heads=3, ffn=8, num_classes=5).eval()
    report = analyze(network, torch.randn(6, 3, 14, 14), controls=(), progress=False)
    with pytest.raises(UnsupportedModelError, match="heads of this library's layers are not"):
        replace_heads(network, report, threshold=0.5)
