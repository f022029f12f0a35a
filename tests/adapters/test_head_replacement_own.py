"""Layers of this library with content: replaced whole, or left with the reason."""

import copy
from dataclasses import replace
from math import nan

import pytest
import torch
from tests.adapters.report_cases import every_head, fixed_weights

from convattn.errors import ShapeError, UnsupportedModelError
from convattn.functional import attend
from convattn.heads import analyze
from convattn.heads.convolved_attention import ConvolvedImages
from convattn.heads.head_report import Estimate
from convattn.heads.replace import replace_convolutional_heads, require_replaceable
from convattn.heads.replaceable_heads import measured_heads
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet
from convattn.testing.budget import assert_within_budget, roundings

SIZES = {"width": 12, "depth": 2, "heads": 3, "ffn": 8, "num_classes": 5}


def measured(**options):
    torch.manual_seed(0)
    network = AttentionNet(**{"encoding": "learned_axial", "content": True, **SIZES, **options}).eval()
    x = torch.randn(6, 3, 14, 14)
    return network, x, analyze(network, x, controls=(), progress=False)


@pytest.mark.parametrize("head_width", [None, 5], ids=["merged", "factored"])
def test_whole_layers_use_the_fixed_weights(head_width):
    network, _, report = measured()
    name = report.layers[1].name
    old = network.get_submodule(name)
    if head_width is not None:
        old = RelativeAttention2d(12, 12, 3, "learned_axial", head_width=head_width, content=True)
    layer = report.layers[1]
    groups = measured_heads(layer, (0, 1, 2))
    made, pixels = ConvolvedImages(old, groups), torch.randn(2, 12, 7, 7)
    weights = fixed_weights(layer)

    def expected(old, weights, pixels):
        y = attend(weights[None].expand(2, -1, -1, -1), pixels, old.values.maps(), 1)
        return (y + old.bias[:, None]).unflatten(2, (7, 7))

    hi = expected(copy.deepcopy(old).double(), weights, pixels.double())
    assert_within_budget(made(pixels), hi, roundings(expected, old, weights.float(), pixels))


def test_networks_of_this_library_are_made_anew():
    network, x, report = measured()
    before = copy.deepcopy(network.state_dict())
    made, record = replace_convolutional_heads(network, report, heads=every_head(report), images=x)
    assert record.layers_without_softmax == tuple(layer.name for layer in report.layers)
    assert record.trial.images == 6
    assert made(x).shape == (6, 5)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    made(x).sum().backward()
    assert not [key for key, value in made.named_parameters() if value.grad is None]
    assert not any("content" in key or "encoding" in key for key in made.state_dict())


@pytest.mark.parametrize(
    ("head_width", "frozen", "expected"),
    [
        (None, "values.weight", {"output", "means.0.kernel"}),
        (None, "bias", {"bias"}),
        (5, "values.value", {"value", "means.0.kernel"}),
        (5, "values.output", {"output"}),
        (5, "bias", {"bias"}),
    ],
)
def test_each_part_keeps_whether_it_learns(head_width, frozen, expected):
    _, _, report = measured()
    old = RelativeAttention2d(12, 12, 3, "learned_axial", head_width=head_width, content=True)
    old.get_parameter(frozen).requires_grad_(requires_grad=False)
    with torch.no_grad():
        made = ConvolvedImages(old, measured_heads(report.layers[1], (0, 1, 2)))
    assert {key for key, part in made.named_parameters() if not part.requires_grad} == expected


def test_single_heads_are_left():
    network, _, report = measured()
    _, record = replace_convolutional_heads(network, report, heads=every_head(report)[:4])
    assert record.layers_without_softmax == (report.layers[0].name,)
    reasons = {head.reason for head in record.left}
    assert reasons == {"its other heads attend by content, and only whole layers of its class are replaced"}


def test_layers_without_content_are_for_another_function():
    network, _, report = measured(content=False, encoding="quadratic")
    with pytest.raises(UnsupportedModelError, match="it has no content: attention_to_conv makes a convolution of it"):
        replace_convolutional_heads(network, report, 0.5)


def test_a_threshold_that_nothing_meets_changes_no_bit():
    network, x, report = measured()
    low = tuple(
        replace(
            layer,
            measured=replace(
                layer.measured,
                heads=tuple(replace(head, position_score=Estimate(0.1, nan)) for head in layer.heads),
            ),
        )
        for layer in report.layers
    )
    made, record = replace_convolutional_heads(network, replace(report, layers=low), 0.9)
    assert not record.replaced
    assert torch.equal(made(x), network(x))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernel_size": 3, "padding": 1}, "its keys are not the pixels that its queries are at"),
        ({"stride": 2}, "its keys are not the pixels that its queries are at"),
        ({"groups": 2}, "its channels are in groups"),
    ],
    ids=str,
)
def test_other_geometries_are_left(options, reason):
    layer = RelativeAttention2d(4, 6, 3, "learned_axial", content=True, **options)
    with pytest.raises(UnsupportedModelError, match=reason):
        require_replaceable(layer, 3)


def test_images_of_another_rank():
    network, _, report = measured()
    made, _ = replace_convolutional_heads(network, report, heads=every_head(report))
    with pytest.raises(ShapeError, match="x must have 4 axes"):
        made.get_submodule(report.layers[0].name)(torch.zeros(2, 12, 7))
