"""Every replacement of a head, in grids, sequences and windows, against weights made by hand; and what is refused."""

import copy
from functools import partial

import pytest
import torch
from tests.heads.arm_cases import CASES, HEAD, arm_weights, outputs_of, with_weights
from tests.heads.attention_cases import TIMM
from tests.heads.report_cases import attention_maps, images, timm_vit

from convattn.budget import assert_within_budget, references, roundings
from convattn.errors import ArgumentError
from convattn.heads import analyze, mean_maps, replace_heads

ALWAYS = ("kernel", "mean_map", "zero", "uniform", "one_tap", "other")
TURNED = {1: ("reversed",), 2: ("turned_90", "turned_180", "turned_270")}


def changed(arm, layer, other, maps, weights, layout):
    """The weights of a layer with those of a head replaced."""
    mean = maps[layer.name][:, HEAD].double()
    for image in weights:
        # Padded words, and other parts of shifted windows, are seen by no head
        allowed = (image > 1e-30).any(1)
        image[:, HEAD] = arm_weights(arm, layer, other, layout, allowed, mean)
    return weights


@pytest.mark.parametrize("name", CASES)
def test_a_head_has_the_weights_that_its_replacement_says(name):
    build, draw, place = CASES[name]
    network, x = build(), draw()
    report = analyze(network, x, radius=10, controls=(), progress=False)
    layer = report.layer(place)
    other = next(one for one in report.layers if one.name != place)
    maps = mean_maps(network, x)
    arms = ALWAYS + TURNED[len(layer.grid)]
    changes = [partial(changed, arm, layer, other, maps) for arm in arms]
    x = {key: part[:2] for key, part in x.items()} if isinstance(x, dict) else x[:2]
    his, lows = references(lambda net: with_weights(net, place, x, *changes), network)
    results = {}
    for number, arm in enumerate(arms):
        by = {(place, HEAD): (other.name, 0)} if arm == "other" else arm
        heads = None if arm == "other" else [(place, HEAD)]
        made, record = replace_heads(network, report, heads, by, maps=maps)
        words = f"kernel of {other.name} head 0" if arm == "other" else arm
        assert [head.by for head in record.replaced] == [words]
        results[arm] = outputs_of(made, x)
        own = [low[number] for low in lows]
        assert_within_budget(results[arm], his[number], own, f"{name}, {arm}")
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(results["uniform"], his[0], [low[0] for low in lows])
    assert len({result.numpy().tobytes() for result in results.values()}) == len(arms)


def test_maps_are_means_over_images_and_have_to_be_there(without_type_checks):
    network, x = timm_vit(), images(count=11)
    maps = mean_maps(network, x)
    for name, weights in attention_maps(copy.deepcopy(network).double(), x.double()).items():
        one = mean_maps(network, {"x": x}, layers=name)
        assert one.keys() == {name}
        assert torch.equal(one[name], maps[name])
        lows = [low[name].mean(0).float() for low in roundings(attention_maps, network, x)]
        assert_within_budget(maps[name][0], weights.mean(0), lows)
    for wrong in (None, 3, torch.tensor(0.0), {}, {"x": 3}):
        with pytest.raises(ArgumentError, match="images must be a batch of images"):
            mean_maps(network, wrong)


LAYOUTS = (
    "rotary, registers",
    "gated positional",
    "talking heads",
    "cosine windows",
    "padded windows",
    "sub-sampled keys",
    "pooled queries",
    "sparse grid",
    "both partitions at once",
    "heads before blocks",
    "channels first",
)


@pytest.mark.parametrize("name", LAYOUTS)
def test_in_every_kind_of_layout_an_image_keeps_its_own_maps(name):
    """Weights that are those of the image change nothing; half the heads at zero do."""
    case = TIMM[name]
    network = case.build().eval()
    x = torch.randn(2, *case.size, generator=torch.Generator().manual_seed(0))
    report = analyze(network, x, layers=case.layer, controls=(), progress=False)
    (layer,) = report.layers
    heads = [(layer.name, head.head) for head in layer.heads]
    maps = mean_maps(network, x[:1], layers=case.layer)
    given = partial(given_by, case.layer)
    hi, lows = references(given, network, x[:1])
    for by in ("mean_map", "zero", "uniform"):
        made, _ = replace_heads(network, report, heads, by, maps=maps)
        if by == "mean_map":
            assert_within_budget(given(made, x[:1]), hi, lows, name)
            continue
        with pytest.raises(AssertionError, match="above the budget"):
            assert_within_budget(given(made, x[:1]), hi, lows)


def given_by(layer, network, x):
    """What a layer of a network gives out."""
    found = []
    hook = network.get_submodule(layer).register_forward_hook(lambda *call: found.append(call[2]))
    outputs_of(network, x)
    hook.remove()
    return found[0] if isinstance(found[0], torch.Tensor) else found[0][0]
