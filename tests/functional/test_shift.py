"""Hard heads found by their scores alone."""

import copy
from importlib import import_module

import pytest
import torch
from torch import nn

from convattn.convert import conv_to_attention
from convattn.functional import attention_weights, displacement_scores, find_shifts, table_shifts
from convattn.grid import Axis
from convattn.testing.budget import assert_within_budget

MODULE = import_module("convattn.functional.shift_convolution")  # a function has the same name
AXES = (Axis(range(1, 12, 2), 13), Axis(range(2, 9), 11))


def tables(centres, sharpness):
    """Scores −α(δ − Δ)² along each axis, (heads, displacements)."""
    made = []
    for along, axis in zip(zip(*centres, strict=True), AXES, strict=True):
        distances = axis.displacements().double() - torch.tensor(along, dtype=torch.float64)[:, None]
        made.append(-sharpness * distances.square())
    return made


def softmax(scores):
    return [attention_weights(displacement_scores(table, (axis,))) for table, axis in zip(scores, AXES, strict=True)]


@pytest.mark.parametrize("sharpness", [800.0, 40.0, 37.25])
def test_heads_inside_are_found_as_by_their_weights(sharpness):
    scores = tables([(-1, 0), (1, 2), (0, -2)], sharpness)
    quick, slow = table_shifts(scores, AXES, 1e-15), find_shifts(softmax(scores), AXES, 1e-15)
    assert quick.offsets == slow.offsets == ((-1, 0), (1, 2), (0, -2))
    assert slow.leak <= quick.leak <= 2 * slow.leak
    assert (quick.leak == 0) == (sharpness == 800)


@pytest.mark.parametrize(
    ("centres", "sharpness"),
    [
        ([(0, 3)], 800.0),  # beyond the keys from the last query: the weights tell that it looks at the last key
        ([(-2, 0)], 800.0),
        ([(0.5, 0)], 800.0),  # between two pixels
        ([(0, 0), (0, 0.4)], 20.0),
        ([(0, 0)], 5.0),
    ],
)
def test_other_heads_are_left_to_their_weights(centres, sharpness):
    assert table_shifts(tables(centres, sharpness), AXES, 1e-15) is None


def test_scores_that_are_no_numbers_are_no_shift():
    scores = tables([(0, 0)], 800.0)
    scores[1][0, 3] = torch.nan
    assert table_shifts(scores, AXES, 1e-15) is None


def test_a_long_sequence_takes_no_memory_for_pairs():
    """10¹⁰ pairs of queries and keys would."""
    torch.manual_seed(0)
    conv = nn.Conv1d(2, 3, 5, padding=2)
    layer, _ = conv_to_attention(conv)
    x = torch.randn(1, 2, 100_000)
    assert layer.plan(x.shape).path == "shift"
    high = nn.Conv1d(2, 3, 5, padding=2).double()
    high.load_state_dict(conv.state_dict())
    with torch.no_grad():
        assert_within_budget(layer(x), high(x.double()), conv(x), "long")


def pointwise(dims=2, channels=12, outputs=20, **options):
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](channels, outputs, 1, **options)
    return conv_to_attention(conv)[0].eval(), conv


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_pointwise_convolution_of_one_image_is_a_product(dims, bias, monkeypatch):
    layer, conv = pointwise(dims, bias=bias)
    x = torch.randn(1, 12, *(8, 7, 5)[:dims] if dims > 1 else (17,))
    expected, high = conv(x), copy.deepcopy(conv).double()(x.double())
    monkeypatch.setattr(MODULE, "_CONVOLUTIONS", {})  # there is none to call
    for _ in range(2):  # the second call is the quick one
        assert_within_budget(layer(x), high, expected)
        with torch.no_grad():
            assert_within_budget(layer(x), high, expected)


def test_gradients_of_a_product_are_those_of_the_convolution():
    layer, conv = pointwise()
    x = torch.randn(1, 12, 8, 7)
    found, low, high = [], [], []
    for network, grads, images in ((layer, found, x), (conv, low, x), (copy.deepcopy(conv).double(), high, x.double())):
        leaf = images.clone().requires_grad_()
        network(leaf).square().sum().backward()
        weight = network.values.weight.grad[0, :, :, None, None] if network is layer else network.weight.grad
        grads.extend((leaf.grad, weight, network.bias.grad))
    for ours, exact, theirs in zip(found, high, low, strict=True):
        assert_within_budget(ours, exact, theirs)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 12, 8, 7), {}),  # with many images a network was slower
        ((1, 12, 3, 5), {}),  # too few pixels to matter
        ((1, 12, 8, 7), {"groups": 4}),
        ((1, 12, 8, 7), {"stride": 2}),
        ((1, 12, 8, 7), {"padding": 1}),
        ((1, 512, 8, 7), {"channels": 512, "outputs": 512}),
        ((1, 64, 56, 56), {"channels": 64, "outputs": 256}),
    ],
)
def test_others_are_convolutions(shape, options, monkeypatch):
    layer, conv = pointwise(**options)
    x = torch.randn(shape)
    monkeypatch.setattr(MODULE, "_product", None)
    with torch.no_grad():
        assert torch.equal(layer(x), conv(x))
        assert torch.equal(layer(x), conv(x))


def test_images_with_channels_last_keep_their_order():
    layer, _ = pointwise()
    x = torch.randn(1, 12, 8, 7).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            assert layer(x).is_contiguous(memory_format=torch.channels_last)
