"""What `replace_heads` refuses, and why heads and layers are left."""

import re
from dataclasses import replace
from math import nan

import pytest
import torch
from convattn.heads.patch_grid import PatchGrid
from tests.heads.report_cases import (
    attention_maps,
    bert,
    images,
    report_of,
    timm_vit,
    torchvision_vit,
    words,
)
from torch import nn
from torch.nn.utils import parametrizations

from convattn.errors import ArgumentError, ShapeError, UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.catalogue import read_matrices
from convattn.heads.head_report import Estimate
from convattn.heads.replace import replace_heads
from convattn.heads.replaceable_heads import every_head, random_heads


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
    "model must be a network": ("model", [None, "vit", torch.zeros(3)]),
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
        with pytest.raises(ArgumentError) as caught:
            replace_heads(**{"model": network, "report": report, argument: value})
        assert re.match(message, str(caught.value)), value


def other_report(network, report):
    """Calls with a report of another network, or one that contradicts itself, by the message."""
    twice = replace(report, layers=(report.layers[0], report.layers[0]))
    rope = with_layer(report, kind="timm.layers.attention.AttentionRope")
    return {
        "have layers": (network, replace(report, layers=())),
        "name each layer once": (network, twice),
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
            replace_heads(*given)


@pytest.mark.parametrize("count", [-1, 7, 2.0, True], ids=repr)
def test_counts_of_random_heads(report, count, without_type_checks):
    with pytest.raises(ArgumentError, match="count must be from 0 to 6"):
        random_heads(report, count)


def test_layers_that_run_twice():
    network = timm_vit()
    network.blocks[1].attn = network.blocks[0].attn
    report = analyze(network, images(), controls=(), progress=False)
    with pytest.raises(
        UnsupportedModelError,
        match=r"^blocks\.0\.attn runs more than once on an image, and its heads",
    ):
        replace_heads(network, report)


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("size", [(20, 20), (28, 20), (4, 140)], ids=str)
def test_grids_of_another_size(prefix, size):
    """The prefix tokens' maps are those of the measured grid, and as many patches may lie in other rows."""
    network = timm_vit(prefix, dynamic_img_size=True)
    report = report_of(network, attention_maps(network, images()), prefix=prefix)
    made, _ = replace_heads(network, report, heads=every_head(report))
    made(images())
    grid = f"{size[0] // 4} x {size[1] // 4}"
    with pytest.raises(
        ShapeError, match=f"images must be cut into 5 x 7 patches, .* but these are cut into {grid}"
    ):
        made(images(size))
    with pytest.raises(
        ShapeError,
        match=rf"tokens must be {35 + prefix} \({prefix} prefix and 5 x 7 positions\), .* 26",
    ):
        made.blocks[0].attn(torch.zeros(1, 26, 18))


def test_a_grid_in_a_network_around():
    network = nn.Sequential(timm_vit(dynamic_img_size=True), nn.Linear(5, 2))
    report = report_of(network, attention_maps(network, images()))
    made, _ = replace_heads(network, report, heads=[("0.blocks.0.attn", 0)])
    again, _ = replace_heads(
        made, replace(report, layers=report.layers[1:]), heads=[("0.blocks.1.attn", 1)]
    )
    assert len(again[0].patch_embed.proj._forward_hooks) == 1
    with pytest.raises(ShapeError, match="but these are cut into 7 x 5"):
        again(images((28, 20)))


@pytest.mark.parametrize(
    ("tower", "bound"), [("text", set()), ("image", {"image.patch_embed.proj"})]
)
def test_of_two_towers_that_of_the_replaced_heads_is_bound(tower, bound):
    """The text's layers lie beside the image's, whose grid is not theirs."""
    towers = nn.ModuleDict({"text": bert(), "image": timm_vit(dynamic_img_size=True)})
    given = {"text": (words(), (11,), 0), "image": (images(), (5, 7), 1)}
    x, *sizes = given[tower]
    report = report_of(towers[tower], attention_maps(towers[tower], x), *sizes)
    layers = []
    for layer in report.layers:
        source = layer.grid_source and f"{tower}.{layer.grid_source}"
        layers.append(replace(layer, name=f"{tower}.{layer.name}", grid_source=source))
    made, _ = replace_heads(
        towers, replace(report, layers=tuple(layers)), heads=[(layers[0].name, 0)]
    )
    hooks = {name: [*part._forward_hooks.values()] for name, part in made.named_modules()}
    assert {
        name for name, found in hooks.items() if any(isinstance(hook, PatchGrid) for hook in found)
    } == bound
    if bound:
        with pytest.raises(ShapeError, match="images must be cut into 5 x 7 patches"):
            made["image"](images((20, 20)))
    else:
        made["image"](images((20, 20)))


def test_networks_of_which_nothing_can_be_read(report):
    network = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.ModuleDict({"attn": nn.Linear(3, 3)}) for _ in range(2)])}
    )
    other = {"kind": "torch.nn.modules.linear.Linear", "grid_source": ""}
    layers = tuple(replace(layer, **other) for layer in report.layers)
    with pytest.raises(
        UnsupportedModelError,
        match=r"(?s)cannot replace heads of ModuleDict.*attn \(Linear\): attention of",
    ):
        replace_heads(network, replace(report, layers=layers))


def reasons(network, report, **options):
    _, record = replace_heads(network, report, threshold=0.001, **options)
    return {head.head: head.reason for head in record.heads if head.layer == "blocks.0.attn"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"pattern": "shifted windows"},
            r"its layer attends in a pattern (shifted windows) whose borders are not those",
        ),
        ({"normalised": False}, "its layer's weights do not sum to one"),
    ],
    ids=["windows", "gates"],
)
def test_layers_that_are_left_whole(network, report, changes, reason):
    found = reasons(network, with_layer(report, **changes))
    assert len(found) == 3
    assert all(item.startswith(reason) for item in found.values())


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


def test_keys_between_positions(network, report):
    halves = tuple((row / 2, col) for row, col in report.layers[0].displacements)
    found = reasons(network, with_layer(report, displacements=halves), heads=[("blocks.0.attn", 0)])
    assert found == {
        0: "its keys lie between the positions",
        1: "it was not named",
        2: "it was not named",
    }


@pytest.mark.parametrize("part", ["qkv", "attn_drop"])
def test_hooks_that_would_be_lost(network, report, part):
    network.blocks[0].attn.get_submodule(part).register_forward_hook(lambda *_: None)
    assert set(reasons(network, report).values()) == {
        f"its {part} has hooks, which would be lost; remove them first"
    }


def test_dropout_of_another_kind(network, report):
    attention = network.blocks[0].attn
    attention.attn_drop = nn.Identity()
    assert read_matrices(attention).dropout == 0
    attention.attn_drop = nn.AlphaDropout()
    assert set(reasons(network, report).values()) == {
        "its attn_drop must be an nn.Dropout, but is a AlphaDropout"
    }


def test_calls_that_heads_by_position_do_not_take(network, report):
    made, _ = replace_heads(network, report, heads=[("blocks.0.attn", 0)])
    with pytest.raises(ArgumentError, match="attn_mask must be None or False, but is"):
        made.blocks[0].attn(torch.zeros(1, 36, 18), attn_mask=torch.zeros(1, 1, 36, 36))
    text = bert()
    told = report_of(text, attention_maps(text, words()), (11,), 0)
    layer = (
        replace_heads(text, told, heads=[(told.layers[0].name, 0)])[0]
        .encoder.layer[0]
        .attention.self
    )
    x = torch.zeros(1, 11, 15)
    causal = torch.ones(1, 1, 11, 11, dtype=torch.bool).tril()
    for given, message in (
        ({"attention_mask": causal}, "attention_mask must be the same for all queries"),
        ({"attention_mask": torch.ones(1, 11)}, "attention_mask must be of the shape"),
        ({"past_key_values": object()}, "^past_key_values must be None or False, but is"),
        ({"output_attentions": True}, "^output_attentions must be None or False, but is"),
        ({"is_causal": True}, "^is_causal must be None or False, but is"),
    ):
        with pytest.raises(ArgumentError, match=message):
            layer(x, **given)
    vision = torchvision_vit()
    told = report_of(vision, attention_maps(vision, images((28, 28))), (7, 7))
    layer = (
        replace_heads(vision, told, heads=[(told.layers[0].name, 0)])[0]
        .encoder.layers[0]
        .self_attention
    )
    x = torch.zeros(1, 50, 15)
    for arguments, given, message in (
        ((x, x, x.clone()), {"need_weights": False}, "query, key and value must be one tensor"),
        ((x, x, x), {}, "^need_weights must be None or False, but is"),
        (
            (x, x, x),
            {"need_weights": False, "attn_mask": torch.zeros(50, 50)},
            "^attn_mask must be None or False, but is",
        ),
        (
            (x, x, x),
            {"need_weights": False, "is_causal": True},
            "^is_causal must be None or False, but is",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            layer(*arguments, **given)


def test_a_computed_output_matrix_and_hooks_of_torchvision_are_not_lost():
    """torch computes attention from the tensors of `out_proj` itself, so a copy of them would look right."""
    vision = torchvision_vit()
    told = report_of(vision, attention_maps(vision, images((28, 28))), (7, 7))
    attention = vision.encoder.layers[0].self_attention
    heads = [(told.layers[0].name, 0)]
    handle = attention.register_forward_hook(lambda *_: None)
    _, record = replace_heads(vision, told, heads=heads)
    assert [head.reason for head in record.left][:1] == [
        "it has hooks, which would be lost; remove them first"
    ]
    handle.remove()
    parametrizations.weight_norm(attention.out_proj)
    _, record = replace_heads(vision, told, heads=heads, same_weights=False)
    assert {head.reason for head in record.left if head.layer == heads[0][0]} == {
        "its out_proj has a parametrised weight; make it permanent first"
    }
    assert not record.replaced


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


def torch_layer(**options):
    return nn.MultiheadAttention(15, 3, **{"batch_first": True, **options})


UNREAD = {
    "a decoder": (
        lambda: bert(is_decoder=True).encoder.layer[0].attention.self,
        "it is a decoder's, which sees only what comes before",
    ),
    "keys of another width": (
        lambda: torch_layer(kdim=7),
        "its keys and values have widths of their own",
    ),
    "learned keys": (
        lambda: torch_layer(add_bias_kv=True),
        "it has learned keys and values beside the tokens",
    ),
    "an empty key": (
        lambda: torch_layer(add_zero_attn=True),
        "it has learned keys and values beside the tokens",
    ),
    "images second": (lambda: torch_layer(batch_first=False), "its batch is the second axis"),
    "no attention": (
        lambda: nn.Linear(15, 15),
        "attention of its class is not replaced; `matrices` of register_attention says where its weights are",
    ),
}


@pytest.mark.parametrize(("build", "reason"), UNREAD.values(), ids=UNREAD)
def test_layers_that_are_not_read_have_a_reason(build, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        read_matrices(build())
    assert str(caught.value) == reason
