"""ConViT, whose heads mix position and content by a gate: replaced heads, and those that stay."""

import copy
from functools import partial
from math import prod

import pytest
import timm
import torch
from tests.heads.report_cases import every_head, fixed_weights, outputs, randomised
from torch.nn import functional

from convattn.budget import assert_within_budget, roundings
from convattn.heads import analyze
from convattn.heads import kernel_fit as likelihood
from convattn.heads.replace import replace_convolutional_heads

GATED = ["blocks.0.attn", "blocks.1.attn"]
LAYERS = [*GATED, "blocks.2.attn"]


def convit(gate=0.0, **options):
    """Two layers of four gated heads and one without position, on a grid of 5 × 5 patches."""
    sizes = {
        "img_size": 20,
        "patch_size": 4,
        "num_classes": 5,
        "embed_dim": 3,
        "num_heads": 4,
        "depth": 3,
    }
    network = randomised(timm.models.ConVit(**{**sizes, "local_up_to_layer": 2, **options}))
    with torch.no_grad():
        for name in GATED:
            network.get_parameter(f"{name}.gating_param").copy_(gate + torch.linspace(-1, 1, 4))
    return network


def images(count, size=(20, 20)):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def report_of(network, count=8, size=(20, 20)):
    return analyze(network, images(count, size), controls=(), progress=False)


def with_weights(replaced, layer, tokens):
    """The output of timm's gated layer, with some rows of its own weights exchanged."""
    with torch.no_grad():
        layer(tokens)  # makes its table of displacements
        weights = layer.get_attention(tokens)
        for head, fixed in replaced.items():
            weights[:, head] = fixed.to(weights.dtype)
        value = layer.v(tokens).unflatten(-1, (layer.num_heads, -1)).movedim(-2, 1)
        return functional.linear(
            (weights @ value).movedim(1, -2).flatten(-2), layer.proj.weight, layer.proj.bias
        )


@pytest.mark.parametrize("size", [(20, 20), (8, 32)], ids=["5 x 5 patches", "2 x 8 patches"])
@pytest.mark.parametrize("heads", [(0,), (1, 2), (0, 1, 3)], ids=str)
def test_gated_heads_that_stay_attend_as_before(heads, size):
    """timm takes the patches of any grid for those of a square, and so do the heads that stay."""
    network = convit(qkv_bias=True, img_size=size)
    report = report_of(network, size=size)
    made, record = replace_convolutional_heads(
        network, report, heads=[(GATED[1], head) for head in heads]
    )
    assert {(head.layer, head.head) for head in record.replaced} == {
        (GATED[1], head) for head in heads
    }
    layer = report.layers[1]
    fixed = fixed_weights(layer, heads)
    old, tokens = network.get_submodule(GATED[1]), torch.randn(2, prod(layer.grid), 12)
    compute = partial(with_weights, {head: fixed[head] for head in heads})
    wide = compute(copy.deepcopy(old).double(), tokens.double())
    assert_within_budget(
        made.get_submodule(GATED[1])(tokens), wide, roundings(compute, old, tokens)
    )


@pytest.mark.parametrize("place", [GATED[0], LAYERS[2]])
def test_heads_that_stay_keep_a_changed_scale(place):
    """Four times the scale is four times the queries, in every bit."""
    network, x = convit(), images(2)
    report = report_of(network)
    scaled, multiplied = copy.deepcopy(network), copy.deepcopy(network)
    scaled.get_submodule(place).scale *= 4
    queries = (
        multiplied.get_submodule(place).qk
        if place in GATED
        else multiplied.get_submodule(place).qkv
    )
    with torch.no_grad():
        queries.weight[:12] *= 4
    one, two, same = (
        outputs(
            replace_convolutional_heads(made, report, heads=[(place, 0)], same_weights=False)[0], x
        )
        for made in (scaled, multiplied, network)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, same)


def test_layers_without_other_heads_hold_no_queries_keys_and_gates():
    network = convit()
    report = report_of(network)
    assert [layer.name for layer in report.layers] == LAYERS
    assert [layer.prefix for layer in report.layers] == [0, 0, 1]
    made, record = replace_convolutional_heads(network, report, heads=every_head(report))
    assert list(record.layers_without_softmax) == LAYERS
    held = {name.rpartition(".")[2] for name, _ in made.named_parameters()}
    assert not held & {"gating_param", "gates"}
    assert not any(
        part in name for name, _ in made.named_parameters() for part in ("qk", "query", "pos_proj")
    )


def test_heads_of_position_alone_are_replaced_and_others_are_left(monkeypatch):
    """Gates of σ(40), which rounds to 1, make convolutions; nothing is lost with these if kernels are fitted closely.

    The fit commonly ends where displacements get what was measured to 1e-5 of the largest.
    """
    monkeypatch.setattr(likelihood, "_SETTLED", 1e-9)
    network = convit(gate=40.0)
    with torch.no_grad():
        network.get_parameter(f"{GATED[1]}.gating_param")[2] = -40.0
    report = report_of(network, 40)
    made, record = replace_convolutional_heads(network, report)
    positional = {(name, head) for name in GATED for head in range(4)} - {(GATED[1], 2)}
    assert {(head.layer, head.head) for head in record.replaced} == positional
    x = images(48)[40:]
    wide = outputs(copy.deepcopy(network).double(), x.double())
    # The kernels are means of float32 weights over 40 images and 25 queries, so they are right to float32's rounding.
    assert_within_budget(outputs(made, x), wide, roundings(outputs, network, x))


def test_dropout_of_weights_stays_on_the_heads_that_attend():
    network = convit(attn_drop_rate=0.5).train()
    made, _ = replace_convolutional_heads(
        network, report_of(convit()), heads=[(GATED[0], 0)], same_weights=False
    )
    tokens = torch.randn(2, 25, 12)
    assert made.training
    layer = made.get_submodule(GATED[0])
    assert not torch.equal(layer(tokens), layer(tokens))
    layer.eval()
    assert torch.equal(layer(tokens), layer(tokens))
