"""Normalised convolutions: what attention computes, borders included."""

import copy
from random import Random

import pytest
import torch
from tests.convert.layer.layer_check_cases import random_images, random_layer, random_sizes
from tests.convert.layer.test_layer_check import real_attention, require_promise
from torch import nn

from convattn import load_network, save_network
from convattn.budget import assert_within_budget, references
from convattn.convert import (
    attention_to_conv,
    conv_to_attention,
)
from convattn.encodings import Quadratic
from convattn.errors import (
    ArgumentError,
    ConversionError,
    ShapeError,
    UnsupportedModelError,
)
from convattn.layers import RelativeAttention1d, RelativeAttention2d
from convattn.layers.normalised_conv import NormalisedConv


def seeded(kind, *arguments, **options):
    torch.manual_seed(0)
    return kind(*arguments, **options)


def exact(layer, spatial):
    return attention_to_conv(layer, spatial=spatial, borders="exact")


def layer_is_exact(random):
    """Holds one random layer to what its certificate promises; returns what came of it."""
    layer, sizes = random_layer(random), None
    sizes = random_sizes(random, layer.dims)
    try:
        conv, certificate = exact(layer, sizes)
    except (ArgumentError, ConversionError, ShapeError) as error:
        return "too far" if "so far beyond" in str(error) else "refused"
    if type(conv) is not NormalisedConv:
        return type(conv).__name__
    assert certificate.exact, (layer, certificate)
    assert certificate.verdict == "exact", (layer, certificate)
    x = random_images(random, layer.in_channels, sizes, next(layer.values.parameters()).dtype)
    if not require_promise(certificate, conv, real_attention(layer), x):
        return "overflow"
    return type(conv).__name__


@pytest.mark.parametrize(
    "count", [40, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_random_layers_are_exact(count):
    found = [layer_is_exact(Random(seed)) for seed in range(count)]
    assert found.count("NormalisedConv") >= count // 3, {
        kind: found.count(kind) for kind in set(found)
    }


def test_a_fault_in_one_border_row_or_a_changed_score_is_found():
    layer = seeded(RelativeAttention2d, 3, 5, num_heads=4)
    conv, _ = exact(layer, (7, 11))
    x = torch.randn(2, 3, 7, 11)
    hi, lows = references(lambda layer, x: layer(x), layer, x)
    plain, _ = attention_to_conv(layer, spatial=(7, 11))
    assert (plain(x) - conv(x)).abs().max() > 1e-2
    with torch.no_grad():
        conv.scores[0][:, conv.taps[0] // 2] += 1e-4
    with pytest.raises(AssertionError):
        assert_within_budget(conv(x), hi, lows)


def test_images_of_other_sizes():
    layer = seeded(RelativeAttention2d, 3, 5, num_heads=4)
    conv, _ = exact(layer, (21, 23))
    for size in [(1, 1), (2, 5), (29, 31)]:
        x = torch.randn(2, 3, *size)
        hi, lows = references(lambda layer, x: layer(x), layer, x)
        assert_within_budget(conv(x), hi, lows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_layer_that_is_cast_to_half_precision_correlates_in_float32(dtype):
    layer = seeded(
        RelativeAttention2d,
        1,
        1,
        num_heads=1,
        encoding=Quadratic(1, 2, centres=[[0.0, 6.0]], sharpness=0.5),
        bias=False,
    )
    with torch.no_grad():
        layer.values.weight.fill_(1)
    conv, _ = exact(layer, (19, 23))
    conv.to(dtype)
    x = 3 + torch.randn(2, 1, 19, 23).to(dtype)
    wide = copy.deepcopy(conv).double()
    assert (conv(x) - wide(x.double())).abs().max() <= torch.finfo(dtype).eps / 2 * x.abs().max()


def test_hard_heads_stay_plain_and_far_ones_are_refused():
    hard = RelativeAttention1d(
        2, 3, num_heads=3, encoding=Quadratic(3, 1, centres=[[-1.2], [0.1], [1.9]], sharpness=200.0)
    )
    assert type(exact(hard, 9)[0]) is nn.Conv1d
    far = RelativeAttention1d(
        2, 3, num_heads=1, encoding=Quadratic(1, 1, centres=[[15.5]], sharpness=0.6)
    )
    with pytest.raises(
        ConversionError, match=r"looks so far beyond the image that what it sees has e\^-110.4"
    ):
        exact(far, 9)
    assert type(attention_to_conv(far, spatial=9, borders="auto")[0]) is nn.Conv1d
    padded = RelativeAttention2d(
        2,
        3,
        num_heads=4,
        encoding=Quadratic(4, 2, centres=[[0.0, 0.0]] * 4, sharpness=5.0),
        kernel_size=1,
        padding=4,
    )
    assert (
        type(exact(padded, 9)[0]) is nn.Conv2d
    )  # with zeros around, a plain convolution is exact, too


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="box must be"):
        NormalisedConv(2, 3, 2, box=[(1, 2)])


@pytest.mark.parametrize("narrow", [None, 1])
def test_it_is_trained_saved_loaded_and_copied(narrow, tmp_path):
    layer = seeded(RelativeAttention2d, 3, 5, num_heads=4, head_width=narrow)
    conv, certificate = exact(layer, (7, 11))
    x = torch.randn(2, 3, 7, 11)
    loaded = load_network(save_network(conv, tmp_path / "layer", certificate=certificate))
    assert torch.equal(loaded(x), conv(x))
    assert torch.equal(copy.deepcopy(conv)(x), conv(x))
    hi, lows = references(lambda module, x: module(x), layer, x[0])
    assert_within_budget(conv(x[0]), hi, lows)

    def gradients(module, x):
        return torch.autograd.grad(module(x).square().mean(), next(module.values.parameters()))[0]

    hi, lows = references(gradients, layer, x)
    assert_within_budget(gradients(conv, x), hi, lows)
    conv(x).square().mean().backward()
    optimiser, before = torch.optim.SGD(conv.parameters(), lr=0.1), conv(x).square().mean().item()
    optimiser.step()
    assert conv(x).square().mean().item() < before


@pytest.mark.parametrize("frozen", ["value", "output"])
def test_each_factor_learns_as_it_did(frozen):
    layer = seeded(RelativeAttention2d, 3, 5, num_heads=4, head_width=2)
    layer.values.get_parameter(frozen).requires_grad_(False)
    conv, _ = exact(layer, (7, 11))
    assert [
        name for name, factor in conv.values.named_parameters() if not factor.requires_grad
    ] == [frozen]


def test_it_does_not_become_attention_again(without_type_checks):
    conv, _ = exact(seeded(RelativeAttention1d, 2, 3, num_heads=2), 9)
    message = "NormalisedConv: it is attention already, as correlations; convert the attention that"
    with pytest.raises(UnsupportedModelError, match=message):
        conv_to_attention(conv)


def test_gradients_of_every_input():
    layer = seeded(RelativeAttention1d, 2, 2, num_heads=2, dtype=torch.float64)
    conv, _ = exact(layer, 5)
    x = torch.randn(1, 2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: conv(x), (x, *conv.parameters()))
    assert torch.autograd.gradgradcheck(lambda x, *_: conv(x), (x, *conv.parameters()))
