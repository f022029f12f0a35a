"""Every replacement of a head, in grids, sequences and windows, against weights made by hand; and what is refused."""

import copy
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.heads.arm_cases import CASES, HEAD, arm_weights, outputs_of, timm_beit, with_weights
from tests.heads.attention_cases import TIMM
from tests.heads.report_cases import (
    attention_maps,
    bert,
    images,
    outputs,
    timm_vit,
    transformers_vit,
    words,
)
from torch import nn

from convattn.budget import assert_within_budget, references, roundings
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import analyze, mean_maps, replace_heads
from convattn.heads.catalogue import register_attention
from convattn.heads.fixed_attention import DisplacedHeads

EVERYWHERE = ("kernel", "mean_map", "uniform")
OTHERS = {
    "a head pruned": ("zero", "one_tap", "other", "turned_90", "turned_180", "turned_270"),
    "words, some padded": ("zero", "one_tap", "other", "reversed"),
}
"""What is put into the same places as a kernel is, in an image and in a sequence."""


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
    arms = EVERYWHERE + OTHERS.get(name, ())
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
    assert torch.equal(mean_maps(network, [*x])[name], maps[name])
    mistakes = (
        (None, "be a tensor, a list of single images"),
        (torch.tensor(0.0), "be a batch, whose first axis numbers the images"),
        ({"x": x, "y": x[:3]}, "hold a batch of each input, all as long"),
    )
    for wrong, expected in mistakes:
        with pytest.raises(ArgumentError, match=f"images must {expected}"):
            mean_maps(network, wrong)


@pytest.mark.parametrize(("part", "pattern"), [("attn_block", "windows"), ("attn_grid", "grid")])
def test_a_kernel_lies_where_its_layer_attends_if_one_block_holds_two(part, pattern, monkeypatch):
    """The layer in the block is another module when its heads are replaced."""
    case = TIMM["both partitions at once"]
    network, seen = case.build().eval(), []
    x = torch.randn(2, *case.size, generator=torch.Generator().manual_seed(0))
    place = case.layer.replace("attn_grid", part)
    report = analyze(network, x, layers=place, controls=(), progress=False)
    honest = DisplacedHeads.maps

    def maps(self, layout, **options):
        seen.append(layout.pattern)
        return honest(self, layout, **options)

    monkeypatch.setattr(DisplacedHeads, "maps", maps)
    replace_heads(network, report, [(place, 0)])[0](x)
    assert seen == [report.layers[0].pattern] == [pattern]


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
    """Weights that are those of the image change nothing; those that are everywhere alike do."""
    case = TIMM[name]
    network = case.build().eval()
    x = torch.randn(2, *case.size, generator=torch.Generator().manual_seed(0))
    report = analyze(network, x, layers=case.layer, controls=(), progress=False)
    (layer,) = report.layers
    heads = [(layer.name, head.head) for head in layer.heads]
    maps = mean_maps(network, x[:1], layers=case.layer)
    given = partial(given_by, case.layer)
    hi, lows = references(given, network, x[:1])
    same, alike = (
        replace_heads(network, report, heads, by, maps=maps)[0] for by in ("mean_map", "uniform")
    )
    assert_within_budget(given(same, x[:1]), hi, lows, name)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(given(alike, x[:1]), hi, lows)


class FoundError(Exception):
    """What comes after a layer is not asked for."""


def given_by(layer, network, x):
    """What a layer of a network gives out."""
    found = []

    def note(*call):
        found.append(call[2])
        raise FoundError

    hook = network.get_submodule(layer).register_forward_hook(note)
    with suppress(FoundError):
        outputs_of(network, x)
    hook.remove()
    return found[0] if isinstance(found[0], torch.Tensor) else found[0][0]


def test_a_layer_whose_heads_became_fewer_is_refused():
    """Six heads of three images are no two images of three heads."""
    network, x = timm_vit(), images(count=3)
    report = analyze(network, x, controls=(), progress=False)
    made, _ = replace_heads(network, report, [("blocks.0.attn", HEAD)], "zero")
    made.blocks[0].attn.attention.num_heads = 2
    made.blocks[0].attn.attention.head_dim = 9
    with pytest.raises(UnsupportedModelError, match="must have the 3 heads of the report, but has"):
        made(x)


def replaced(weights):
    """Weights of heads with those of one that looks everywhere alike."""
    alike = torch.ones_like(weights[:, HEAD])
    return weights.index_copy(1, torch.tensor([HEAD]), divided(alike)[:, None])


def test_a_layer_returns_the_weights_that_it_used():
    """So that nobody reads what the head would have done; gradients are those of a layer that returns none."""
    network, x = transformers_vit(attn_implementation="eager"), images((28, 28))
    report = analyze(network, x, controls=(), progress=False)
    head = (report.layers[0].name, HEAD)
    made, _ = replace_heads(network, report, [head], "uniform")
    weights, found = (one(x, output_attentions=True).attentions[0] for one in (network, made))
    hi, lows = references(replaced, weights.detach())
    assert_within_budget(found, hi, lows)

    def learned(network):
        weight = network.get_submodule(f"{head[0]}.attention").q_proj.weight
        return torch.autograd.grad(network(x.to(weight)).logits.square().sum(), weight)[0]

    fused = copy.deepcopy(made)
    fused.set_attn_implementation("sdpa")
    hi, lows = references(learned, fused)
    assert_within_budget(learned(made), hi, lows)


def test_torch_returns_the_mean_of_the_weights_that_it_used():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 3, batch_first=True)

        def forward(self, x, **options):
            return self.attention(x, x, x, **options)

    network, x = Whole().eval(), torch.randn(3, 35, 6)
    with register_attention(nn.MultiheadAttention, lambda call: call.global_layout((5, 7))):
        report = analyze(network, x, controls=(), progress=False)
        made, _ = replace_heads(network, report, [("attention", HEAD)], "uniform")
        _, found = made(x)
    _, weights = network(x, average_attn_weights=False)
    hi, lows = references(lambda weights: replaced(weights).mean(1), weights.detach())
    assert_within_budget(found, hi, lows)


def test_a_checkpoint_that_computes_a_layer_outside_its_network_is_refused():
    network, x = timm_beit(), images()
    report = analyze(network, x, controls=(), progress=False)
    made, _ = replace_heads(network, report, [("blocks.0.attn", HEAD)], "one_tap")
    made.train().set_grad_checkpointing()
    loss = made(x).square().sum()
    with pytest.raises(UnsupportedModelError, match=r"blocks.0.attn: .* and no checkpoint"):
        loss.backward()
    with pytest.raises(UnsupportedModelError, match=r"must be called as `layer\(…\)`"):
        made.blocks[0].attn.forward(torch.zeros(1, 36, 18))


def divided(weights):
    return weights / weights.sum(-1, keepdim=True)


MASKS = {
    "lowest scores": lambda scores, mask: scores.masked_fill(~mask, -1e9).softmax(-1),
    "times": lambda scores, mask: divided(scores.softmax(-1) * mask),
    "filled": lambda scores, mask: divided(scores.softmax(-1).masked_fill(~mask, 0)),
    "in place": lambda scores, mask: divided(scores.softmax(-1).mul_(mask)),
    "powers": lambda scores, mask: divided(scores.exp() * mask),
}


class Masked(nn.Module):
    """Attention with two heads over the pixels of an image, with a mask after its softmax."""

    def __init__(self, mask):
        super().__init__()
        self.mask, self.qkv = mask, nn.Linear(2, 12)

    def forward(self, x, seen=None):
        seen = torch.ones(1, 35) if seen is None else seen
        q, k, v = self.qkv(x.flatten(2).mT).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        weights = MASKS[self.mask](q @ k.mT, seen[:, None, None].bool())
        return (weights @ v)[:, HEAD]


@pytest.mark.parametrize("mask", MASKS)
def test_what_a_mask_hides_after_the_softmax_stays_hidden(mask):
    torch.manual_seed(0)
    network, x = nn.Sequential(Masked(mask)), torch.randn(3, 2, 5, 7)
    seen = torch.rand(3, 35) > 0.4
    with register_attention(Masked, lambda call: call.global_layout((5, 7))):
        report = analyze(network, x, controls=(), progress=False)
        made, _ = replace_heads(network, report, [("0", HEAD)], "uniform")
        found = made[0](x, seen).detach()

    def by_hand(network, x):
        values = network[0].qkv(x.flatten(2).mT).unflatten(-1, (3, 2, 2))[:, :, 2, HEAD].detach()
        return divided(seen.to(x.dtype))[:, None] @ values

    hi, lows = references(by_hand, network, x)
    assert_within_budget(found, hi.expand_as(found), [low.expand_as(found) for low in lows])


def test_the_little_weight_that_padding_leaves_is_all_of_it():
    network = bert()
    report = analyze(network, words(11, 6), radius=10, controls=(), progress=False)
    layer = report.layers[0]
    taps = {(1,): 1.0, (-1,): 1e-40}
    kernel = tuple(taps.get(step, 0.0) for step in layer.displacements)
    heads = tuple(replace(head, position_kernel=kernel) for head in layer.heads)
    changed = replace(layer, measured=replace(layer.measured, heads=heads))
    report = replace(report, layers=(changed, *report.layers[1:]))
    made, _ = replace_heads(network, report, [(layer.name, HEAD)])
    mask = torch.ones(1, 11, dtype=torch.long)
    mask[:, 7:] = 0
    values = made.get_submodule(layer.name).attention.value
    seen = []
    hooks = [
        values.register_forward_hook(lambda *call: seen.append(call[2])),
        made.get_submodule(layer.name).register_forward_hook(lambda *call: seen.append(call[2][0])),
    ]
    outputs(made, words(11, 1), attention_mask=mask)
    for hook in hooks:
        hook.remove()
    width = seen[0].shape[-1] // len(layer.heads)
    own = slice(HEAD * width, (HEAD + 1) * width)
    assert torch.equal(seen[1][0, 6, own], seen[0][0, 5, own])
