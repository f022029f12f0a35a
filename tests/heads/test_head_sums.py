from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tests.heads.reference_statistics import reference, reference_jackknife
from tests.heads.statistics_cases import (
    EPS,
    LAYOUTS,
    added,
    call_of,
    make_call,
    measured,
    whole_maps,
    within,
)

from convattn.errors import UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.head_sums import make_pairs
from convattn.heads.kernel_fit import KernelFit
from convattn.heads.layout import OUTSIDE, Layout
from convattn.heads.measure import layer_statistics
from convattn.heads.verdict import judge
from convattn.layers import RelativeAttention2d

NUMBERS = [
    "spread",
    "entropy",
    "effective_positions",
    "hard_share",
    "shift_invariance",
    "content_share",
    "distance",
    "non_locality",
    "prefix_share",
]


def heads_of(call, groups, radius=0, batches=(slice(None),)):
    return layer_statistics(measured(call, groups, batches), radius).heads


@pytest.mark.parametrize("signed", [False, True], ids=["", "signed"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_number_is_that_of_whole_maps(layout, signed):
    call = make_call(layout, signed=signed)
    layer = measured(call, 3)
    pairs = layer.pairs
    for number, head in enumerate(layer_statistics(layer, 2).heads):
        hi = reference(*whole_maps(call, number))
        terms = call.weights[:, :, 0].numel()
        for name in set(NUMBERS) - {"shift_invariance"}:
            within(getattr(head, name).value, hi[name], terms)
        for axis, estimate in enumerate(head.shift):
            within(estimate.value, hi["shift"][axis], terms)
        assert np.abs(np.subtract(head.hard_shift, hi["hard_shift"])).max() < 1e-3
        steps = pairs.displacements[pairs.within(2)].numpy().round(6)
        assert (
            len(steps) == len(head.kernel) == sum(max(map(abs, step)) <= 2 for step in hi["kernel"])
        )
        for step, weight in zip(steps, head.kernel, strict=True):
            within(weight, hi["kernel"][tuple(step)], terms)
        for found, expected in zip(head.prefix_weights, hi["prefix_weights"], strict=True):
            within(found, expected, terms)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_standard_errors_are_those_of_whole_maps_without_each_group(layout):
    call = make_call(layout, images=6, heads=1)
    (head,) = heads_of(call, 3)
    maps, *places = whole_maps(call, 0)
    hard = reference(maps, *places)["hard_shift"]
    others = [
        reference(np.delete(maps, [2 * left, 2 * left + 1], axis=0), *places) for left in range(3)
    ]
    for name in set(NUMBERS) - {"content_share", "hard_share"}:
        hi = reference_jackknife([float(other[name]) for other in others])
        within(getattr(head, name).error, hi, maps.size)
    bias = 2 * (
        np.mean([other["shift_invariance"] for other in others])
        - reference(maps, *places)["shift_invariance"]
    )
    within(
        head.shift_invariance.value, reference(maps, *places)["shift_invariance"] - bias, maps.size
    )
    within(
        head.hard_share.error,
        reference_jackknife([float(other["kernel"][hard]) for other in others]),
        maps.size,
    )


@pytest.mark.parametrize("layout", [LAYOUTS["one class token"], LAYOUTS["windows"]])
def test_batches_add_up(layout):
    call = make_call(layout, images=8)
    whole = added(call, 4)
    parts = added(call, 4, [slice(0, 3), slice(3, 5), slice(5, 8)])
    terms = call.weights[:, :, 0].numel()
    for name in (
        "by_displacement",
        "absolute",
        "squares",
        "entropies",
        "prefix",
        "prefix_maps",
        "prefix_size",
    ):
        hi, found = getattr(whole, name), getattr(parts, name)
        if hi.numel():
            assert (found - hi).abs().max() <= terms * EPS * hi.abs().max()


def test_variance_over_images_is_unbiased_in_small_batches():
    """In batches of two the mean of many estimates is the variance, and the control without correction is half."""
    call = make_call(LAYOUTS["sequence"], images=400, heads=1)
    batches = [slice(start, start + 2) for start in range(0, 400, 2)]
    (head,) = heads_of(call, 10, batches=batches)
    exact = reference(*whole_maps(call, 0))["content_share"]
    assert abs(head.content_share.value - exact) < 3 * head.content_share.error
    assert abs(head.content_share.value / 2 - exact) > 10 * head.content_share.error


def test_an_image_alone_in_its_batch_says_nothing_of_variance_over_images():
    call = make_call(LAYOUTS["sequence"])
    maps = whole_maps(call, 0)[0]
    hi = maps[:5].var(axis=0, ddof=1).mean() / np.square(maps - maps.mean()).mean()
    (head, *_) = heads_of(call, 3, batches=[slice(0, 5), slice(5, 6)])
    within(head.content_share.value, hi, maps.size)
    (head, *_) = heads_of(call, 3, batches=[slice(number, number + 1) for number in range(6)])
    assert np.isnan(head.content_share.value)


def test_float32_weights_lose_only_their_rounding():
    layout = LAYOUTS["one class token"]
    narrow = heads_of(make_call(layout, dtype=torch.float32), 3)
    for one, other in zip(narrow, heads_of(make_call(layout), 3), strict=True):
        for name in NUMBERS:
            apart = abs(getattr(one, name).value - getattr(other, name).value)
            assert apart <= 64 * torch.finfo(torch.float32).eps * max(
                1.0, abs(getattr(other, name).value)
            )


def test_hard_heads_are_exact():
    layout = LAYOUTS["keys outside"]
    delta = layout.keys[0][None] - layout.query_positions()[0][:, None]
    weights = (delta == torch.tensor([1.0, -1.0])).all(-1).float().expand(4, 1, 1, -1, -1)
    (head,) = heads_of(call_of(layout, weights), 4, 1)
    assert [estimate.value for estimate in head.shift] == [1.0, -1.0]
    assert (head.hard_shift, head.hard_shift_error) == ((1.0, -1.0), (0.0, 0.0))
    assert head.hard_share.error == 0.0
    assert head.distance.value == head.non_locality.value == pytest.approx(2**0.5, abs=4 * EPS)
    for name in ("hard_share", "effective_positions", "shift_invariance"):
        assert getattr(head, name).value == 1.0, name
    for name in ("spread", "entropy", "content_share", "prefix_share"):
        assert getattr(head, name).value == 0.0, name
    assert sorted(head.kernel) == [0.0] * 8 + [1.0]


def test_a_hard_shift_that_hangs_on_single_images_has_an_error():
    layout = LAYOUTS["keys outside"]
    delta = layout.keys[0][None] - layout.query_positions()[0][:, None]
    right, left = ((delta == torch.tensor([0.0, column])).all(-1).float() for column in (1.0, -1.0))
    weights = torch.stack([right, right, left, left])[:, None, None]
    (head,) = heads_of(call_of(layout, weights), 4)
    # Without one image the other side has more: −1, −1, 1, 1, whose variance is 3/4 · 4.
    assert head.hard_shift_error == pytest.approx((0.0, 3**0.5))


def test_weights_that_are_all_alike_explain_nothing():
    layout = LAYOUTS["global"]
    weights = torch.full((4, 1, 2, 15, 15), 1 / 15)
    for head in heads_of(call_of(layout, weights), 2):
        assert np.isnan(head.shift_invariance.value)
        assert np.isnan(head.content_share.value)
        assert judge(head, 4).word == "anywhere"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_in_half_precision_are_summed_as_they_are(dtype):
    layout = LAYOUTS["one class token"]
    half = make_call(layout, dtype=dtype)
    found, expected = (
        added(replace(half, weights=weights), 3) for weights in (half.weights, half.weights.float())
    )
    for item in fields(found):
        assert torch.equal(getattr(found, item.name), getattr(expected, item.name)), item.name


def test_images_of_several_batches_are_scored_as_in_one():
    call = make_call(LAYOUTS["global"])
    sums, pairs = added(call, 3), make_pairs(call.layout, "layer")
    whole, parts = KernelFit(), KernelFit()
    whole.score(call.weights, pairs, sums)
    parts.score(call.weights[:2], pairs, sums)
    parts.score(call.weights[2:], pairs, sums)
    assert torch.equal(parts.logs, whole.logs)
    assert torch.equal(parts.mass, whole.mass)
    assert torch.equal(torch.cat(parts.squares, dim=2), *whole.squares)
    assert parts.estimate(1) == whole.estimate(1)


def test_images_that_look_everywhere_alike_have_no_position_score():
    call = make_call(LAYOUTS["global"])
    alike = replace(call, weights=torch.full_like(call.weights, 1 / 15))
    sums, pairs = added(alike, 3), make_pairs(call.layout, "layer")
    fit = KernelFit()
    fit.score(alike.weights, pairs, sums)
    assert [np.isnan(fit.estimate(head).value) for head in range(3)] == [True] * 3
    fit.score(call.weights, pairs, sums)
    assert np.isfinite(fit.estimate(0).value)


def test_maps_of_prefix_queries_are_means():
    call = make_call(LAYOUTS["five prefix tokens"])
    for number, head in enumerate(heads_of(call, 2)):
        hi = call.weights[:, 0, number, :5].mean(0)
        assert (torch.tensor(head.prefix_maps, dtype=torch.float64) - hi).abs().max() <= 6 * EPS
        assert sum(head.prefix_maps[0]) == pytest.approx(1.0, abs=15 * EPS)


def test_layouts_without_positions_are_refused():
    layout = Layout(
        "none",
        (2,),
        torch.tensor([[-1, OUTSIDE]]),
        torch.zeros(1, 2, 1),
        torch.tensor([True, True]),
        None,
    )
    with pytest.raises(
        UnsupportedModelError, match=r"^blocks\.0: none of its queries, or none of its keys, has"
    ):
        make_pairs(layout, "blocks.0")


@pytest.mark.parametrize("size", [3, 7, 20])
def test_what_rounding_hides_is_not_determined(size):
    """Weights that are nearly alike vary by less than the rounding of the sum of their squares."""
    network = RelativeAttention2d(3, 3, num_heads=1, encoding="quadratic")
    images = torch.randn(4, 3, size, size)
    found = {}
    barely = 0.15 / size  # weights differ by some thousandths
    for root in (0.0, 1e-3, barely, 0.1):
        with torch.no_grad():
            network.encoding.centres.fill_(0.3)
            network.encoding.root_sharpness.fill_(root)
        (layer,) = analyze(network, images, controls=(), progress=False).layers
        found[root] = layer.measured.heads[0].shift_invariance.value
    assert np.isnan(found[0.0])
    assert found[0.1] > 0.5
    assert not np.isnan(found[barely])
    for value in found.values():
        assert np.isnan(value) or abs(value - found[0.1]) < 0.05
