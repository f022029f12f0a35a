"""What `replace_heads` refuses, and why heads are left."""

import re
from dataclasses import replace
from math import nan

import pytest
import torch
from tests.heads.report_cases import (
    attention_maps,
    bert,
    images,
    outputs,
    report_of,
    timm_vit,
    torchvision_vit,
    transformers_vit,
    whisper,
    words,
)
from torch import nn
from torch.nn.utils import parametrizations

from convattn.budget import assert_within_budget, references
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.catalogue import read_matrices
from convattn.heads.head_report import Estimate
from convattn.heads.replace import replace_heads
from convattn.heads.replaceable_heads import random_heads


@pytest.fixture
def network():
    return timm_vit()


@pytest.fixture
def report(network):
    return report_of(network, attention_maps(network, images()))


def with_layer(report, **changes):
    """The report with its first layer changed."""
    return replace(report, layers=(replace(report.layers[0], **changes), *report.layers[1:]))


def changed_head(layer, **changes):
    """The statistics of a layer with its first head changed."""
    heads = (replace(layer.heads[0], **changes), *layer.heads[1:])
    return {"measured": replace(layer.measured, heads=heads)}


def with_head(report, **changes):
    """The report with the first head of its first layer changed."""
    return with_layer(report, **changed_head(report.layers[0], **changes))


MISTAKES = {
    r"threshold must be a number in \(0, 1\]": (
        "threshold",
        [0, -0.1, 1.01, nan, float("inf"), "0.9", None, True, torch.tensor(0.5)],
    ),
    r"model must be an nn\.Module": ("model", [None, "vit", torch.zeros(3)]),
    "unknown prefix": ("prefix", ["keep", None, 1]),
    "unknown replacement": ("by", ["", "turned", "random"]),
    "by must be one of kernel, .* or pairs": ("by", [None, 3, ("blocks.7.attn", 0)]),
    r"maps must hold those of the 3 heads of blocks\.0\.attn": (
        "maps",
        [None, {}, {"blocks.1.attn": torch.zeros(1, 3, 36, 36)}, {"blocks.0.attn": torch.zeros(3)}],
    ),
    "heads must name each head once": ("heads", [[("blocks.0.attn", 0)] * 2]),
    "report must be a HeadReport": ("report", [None, "report.json", {}]),
    "heads must be pairs of a layer's name and .*, but is": (
        "heads",
        [
            3,
            "blocks.0.attn",
            [0],
            [("blocks.0.attn",)],
            [([], 0)],
            [("blocks.7.attn", 0)],
            [("blocks.0.attn", 3)],
            [("blocks.0.attn", -1)],
        ],
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_told(network, report, message, without_type_checks):
    argument, values = MISTAKES[message]
    for value in values:
        given = {"by": "mean_map", "threshold": 0.001, argument: value}
        with pytest.raises(ArgumentError) as caught:
            replace_heads(**{"model": network, "report": report, **given})
        assert re.match(message, str(caught.value)), value


def other_report(network, report):
    """Calls with a report of another network, or one that contradicts itself, by the message."""
    rope = with_layer(report, kind="timm.layers.attention.AttentionRope")
    return {
        "have layers": (network, replace(report, layers=())),
        "be of this network, but this one has no layer 'blocks.0.attn'": (
            torchvision_vit(),
            report,
        ),
        "be of this network, but this one has no layer 'blocks.1.attn'": (
            timm_vit(depth=1),
            report,
        ),
        "be of this network, where blocks.0.attn is a timm": (network, rope),
        "be of this network, but blocks.0.attn has 9 heads": (timm_vit(num_heads=9), report),
    }


def test_a_report_of_another_network(network, report):
    for message, given in other_report(network, report).items():
        with pytest.raises(ArgumentError, match=f"^report must {message}"):
            replace_heads(*given, heads=[("blocks.0.attn", 0)])


def test_random_heads_of_what_is_not_there_or_leaves_too_few(report):
    with pytest.raises(ArgumentError, match=r"^heads must be pairs of a layer's name"):
        random_heads(report, [("blocks.0.attn", 9)])
    most = r"^heads must be at most half of those of blocks\.0\.attn, .* but is '2 of 3'"
    with pytest.raises(ArgumentError, match=most):
        random_heads(report, [("blocks.0.attn", 0), ("blocks.0.attn", 1)])


def test_layers_that_run_twice():
    network = timm_vit()
    network.blocks[1].attn = network.blocks[0].attn
    report = analyze(network, images(), controls=(), progress=False)
    with pytest.raises(
        UnsupportedModelError,
        match=r"^blocks\.0\.attn runs more than once on an image, and its heads",
    ):
        replace_heads(network, report)


def test_networks_of_which_nothing_can_be_read(report):
    network = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.ModuleDict({"attn": nn.Linear(3, 3)}) for _ in range(2)])}
    )
    other = {"kind": "torch.nn.modules.linear.Linear", "grid_source": ""}
    layers = tuple(replace(layer, **other) for layer in report.layers)
    with pytest.raises(
        UnsupportedModelError,
        match=r"(?s)cannot replace heads of ModuleDict.*attn, head 0: its class is not known; register_attention",
    ):
        replace_heads(network, replace(report, layers=layers))


def reasons(network, report, **options):
    _, record = replace_heads(network, report, threshold=0.001, **options)
    return {head.head: head.reason for head in record.heads if head.layer == "blocks.0.attn"}


def test_a_layer_whose_weights_do_not_sum_to_one_is_left_whole(network, report):
    found = reasons(network, with_layer(report, normalised=False))
    assert set(found.values()) == {"its layer's weights do not sum to one"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"position_score": Estimate(0.0005, nan)}, "its position score is below the threshold"),
        ({"position_score": Estimate(nan, nan)}, "its position score is not known"),
        (
            {"kernel_share": Estimate(0.9, nan)},
            "the report's radius holds less than 95% of its attention",
        ),
        (
            {"kernel_share": Estimate(nan, nan)},
            "the report's radius holds less than 95% of its attention",
        ),
        ({"position_kernel": ()}, "the report holds no kernel of weights"),
        ({"position_kernel": (nan,) * 117}, "the report holds no kernel of weights"),
        ({"position_kernel": (1e308,) * 117}, "the report holds no kernel of weights"),
        ({"position_kernel": (-1.0,) * 117}, "the report holds no kernel of weights"),
        ({"position_kernel": (0.0,) * 117}, "its kernel holds no weight"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_heads_that_are_left(network, report, changes, reason):
    report = with_head(report, **{"position_score": Estimate(1.0, nan), **changes})
    assert reasons(network, report)[0].startswith(reason)


def test_heads_that_are_named_and_cannot_be_replaced_so(network, report):
    halves = tuple((row / 2, col) for row, col in report.layers[0].displacements)
    between = with_layer(report, displacements=halves)
    text = bert()
    line = (text, analyze(text, words(count=6), controls=(), progress=False))
    for given, by, reason in (
        ((network, between), "kernel", "its keys lie between the positions"),
        (
            (network, with_layer(report, normalised=False)),
            "one_tap",
            "its layer's weights do not sum",
        ),
        ((network, report), "reversed", "a kernel of one axis is only reversed, and one of two"),
        (
            line,
            "turned_180",
            "a kernel of one axis is only reversed, and one of two",
        ),
    ):
        head = (given[1].layers[0].name, 0)
        with pytest.raises(UnsupportedModelError, match=f"{head[0]}, head 0: {reason}"):
            replace_heads(*given, [head], by)
        if given[1] is not report:
            made, _ = replace_heads(*given, [head], "zero")
            assert type(made.get_submodule(head[0])).__name__ == "FixedAttention"
    with pytest.raises(ArgumentError, match="heads must be None where `by` names the head"):
        replace_heads(network, report, [("blocks.0.attn", 0)], {("blocks.0.attn", 0): "zero"})


def hooked(part):
    return part.register_forward_hook(lambda *_: None)


UNBUILT = {
    "a hook within": lambda layer: hooked(layer.qkv),
    "a hook": hooked,
    "a computed output": lambda layer: parametrizations.weight_norm(layer.proj),
    "another dropout": lambda layer: setattr(layer, "attn_drop", nn.AlphaDropout()),
}


@pytest.mark.parametrize("name", UNBUILT)
def test_a_layer_that_cannot_be_built_anew_runs_as_it_is(name):
    """Its hooks and what it computes are not lost, and its heads have the weights of a layer that was built anew."""
    network, x = timm_vit(), images()
    report = report_of(network, attention_maps(network, x))
    heads = [(report.layers[0].name, 1)]
    built, record = replace_heads(network, report, heads)
    assert record.replaced[0].box
    UNBUILT[name](network.get_submodule(heads[0][0]))
    made, record = replace_heads(network, report, heads, same_weights=False)
    assert not record.replaced[0].box
    hi, lows = references(lambda net: outputs(net, x.to(next(net.parameters()).dtype)), built)
    assert_within_budget(outputs(made, x), hi, lows)
    inside = dict(made.named_modules())[f"{heads[0][0]}.attention"]
    assert type(inside) is type(network.get_submodule(heads[0][0]))
    assert len(inside._forward_hooks) == (name == "a hook")


def test_calls_that_heads_by_position_do_not_take(network, report):
    made, _ = replace_heads(network, report, heads=[("blocks.0.attn", 0)])
    with pytest.raises(ArgumentError, match="attn_mask must be None or False, but is"):
        made.blocks[0].attn(torch.zeros(1, 36, 18), attn_mask=torch.zeros(1, 1, 36, 36))
    with pytest.raises(ArgumentError, match=r"^options must be among .* but is 'rope'"):
        made.blocks[0].attn(torch.zeros(1, 36, 18), rope=torch.zeros(36, 6))
    network = transformers_vit()
    told = report_of(network, attention_maps(network, images((28, 28))), (7, 7))
    made, _ = replace_heads(network, told, heads=[(told.layers[0].name, 0)])
    layer = made.get_submodule(told.layers[0].name)
    for name, option in (
        ("attention_mask", torch.ones(1, 50)),
        ("past_key_values", object()),
        ("output_attentions", True),
        ("is_causal", True),
    ):
        with pytest.raises(ArgumentError, match=f"^{name} must be None or False, but is"):
            layer(torch.zeros(1, 50, 15), **{name: option})


@pytest.fixture
def measured(network):
    return analyze(network, images(count=4), controls=(), progress=False)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["blocks.1.attn.qkv.bias"], r"\(blocks.1.attn\)"),
        (
            ["blocks.0.attn.proj.weight", "blocks.1.attn.qkv.bias"],
            r"\(blocks.0.attn, blocks.1.attn\)",
        ),
        (["blocks.0.mlp.fc1.weight"], r"\(other layers than those measured\)"),
    ],
)
def test_a_report_of_other_weights_is_refused_or_said_to_be_one(network, measured, changed, named):
    heads = [("blocks.0.attn", 0)]
    _, record = replace_heads(network, measured, heads=heads)
    assert not [item for item in record.not_covered if "report was" in item]
    with torch.no_grad():
        for name in changed:
            network.get_parameter(name)[0] += 1e-3
    message = f"report must be measured with the weights that this VisionTransformer has now, but .* others {named}"
    with pytest.raises(ArgumentError, match=message):
        replace_heads(network, measured, heads=heads)
    _, record = replace_heads(network, measured, heads=heads, same_weights=False)
    assert record.not_covered[-1].startswith("weights that the report was not measured with")
    assert len(record.replaced) == 1


def test_layers_whose_matrices_are_not_read_have_a_reason():
    decoder = whisper().layers[0].self_attn
    decoder.is_decoder = True
    for module, reason in (
        (decoder, "it is a decoder's, which sees only what comes before"),
        (nn.Linear(15, 15), "where its matrices are is not known"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"^{reason}$"):
            read_matrices(module)
