"""The page of the speed run: what it computes from the records of runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm, ttest_rel

from convattn.encodings import Quadratic
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention2d
from evidence.speedrun.centres import (
    attention_on_taps,
    away_from_pixels,
    by_chance,
    paired,
    permuted,
    rotated,
    scattered,
    shuffled,
    taps_of_all,
    taps_with_a_centre,
)
from evidence.speedrun.occupied_taps import occupy, place_heads
from evidence.speedrun.operations import petaflops
from evidence.speedrun.plans import (
    CONVERTED,
    MIXINGS,
    TAPS,
    accuracies_of,
    converted_in_words,
    eighteen_in_words,
    occupied_in_words,
    pairs_in_words,
)
from evidence.studies import Study, TrainedRun


def test_share_on_the_taps_is_that_of_the_layer():
    encoding = Quadratic(9, 2, centres=torch.randn(9, 2).tolist(), sharpness=0.7)
    layer = RelativeAttention2d(1, 1, num_heads=9, encoding=encoding).double()
    with torch.no_grad():
        expected = layer.attention((7, 7))[:, 3, 3, 2:5, 2:5].sum((1, 2)).numpy()
        centres, sharpness = encoding.centres.numpy(), encoding.sharpness.numpy()
    found = attention_on_taps(centres, 2 * sharpness[:, None, None] * np.eye(2), 7)
    assert found == pytest.approx(expected, rel=1e-12)


def test_operations_are_those_of_the_products():
    model = {"mixing": "conv", "widths": [4, 6], "patch": 2}
    recipe = {"model": model, "training": {"epochs": 2}}
    images = 3 * 50_000 * 2 / 1e15
    assert petaflops(recipe) == pytest.approx(
        images * SpeedNet("conv", widths=[4, 6]).flops().total
    )
    soft = {**recipe, "model": {**model, "mixing": "attention"}}
    inputs = {31: 24, 15: 4 + 4, 7: 6}
    means = sum(2 * 2 * side**3 * 9 * channels for side, channels in inputs.items())
    assert petaflops(soft) - petaflops(recipe) == pytest.approx(images * means)


def test_taps_by_chance_of_centres_that_do_not_spread() -> None:
    """Centres all alike are at one tap of each layer, or at none, in every draw."""
    layers = [np.zeros((9, 2)), np.full((9, 2), 1.2), np.full((9, 2), 1.6)]
    assert by_chance(layers, taps_of_all) == (2.0, 2, 2)
    assert taps_of_all(layers) == 2
    away = (0 + 0.2 + 0.4) * 2**0.5 / 3
    assert by_chance(layers, away_from_pixels) == pytest.approx((away, away, away))


def test_draws_that_keep_what_heads_did() -> None:
    """Permuted displacements keep their sum, rotated ones their lengths, scattered centres their window."""
    numbers = np.random.default_rng(2)
    start, end = numbers.normal(0, 2, (2, 9, 2))
    (given,) = permuted([start])([end], 5)
    assert (given - start).sum(1) == pytest.approx(np.broadcast_to((end - start).sum(0), (5, 2)))
    (turned,) = rotated([start])([end], 5)
    lengths = np.linalg.norm(end - start, axis=-1)
    assert np.linalg.norm(turned - start, axis=-1) == pytest.approx(
        np.broadcast_to(lengths, (5, 9))
    )
    (put,) = scattered([end], 5)
    outside = (np.abs(end) > 1.5).any(-1)
    assert np.array_equal(put[:, outside], np.broadcast_to(end[outside], put[:, outside].shape))
    assert set(put[:, ~outside].ravel()) == {-1, 0, 1}


def test_peaks_by_chance_keep_which_are_equal() -> None:
    """Permuted displacements put equal peaks at equal places; a null of pairs keeps each axis."""
    layer = np.array([[0, 3], [0, -2], [1, 3], [-3, -2]])
    (permutation,) = shuffled([layer], 7)
    assert np.array_equal(permutation[:, 0, 0], permutation[:, 1, 0])
    assert np.array_equal(permutation[:, 0, 1], permutation[:, 2, 1])
    assert len(np.unique(permutation[:, :, 0])) > 3
    (pairs,) = paired([layer], 7)
    assert np.array_equal(pairs[:, :, 0], np.broadcast_to(layer[:, 0], (7, 4)))
    assert np.array_equal(np.sort(pairs[:, :, 1]), np.broadcast_to([-2, -2, 3, 3], (7, 4)))


def test_taps_by_chance_of_two_heads() -> None:
    """Two heads of deviation 2 are at a tap as often as the normal distribution says."""
    centres = np.array([[-2.0, -2.0], [2.0, 2.0]])
    inside = (2 * norm.cdf(0.75) - 1) ** 2
    mean, low, high = by_chance([centres], taps_of_all)
    assert 0 <= low <= mean <= high <= 2
    # At most both heads at a tap of their own; the sum less the chance that they share one of the nine.
    each = np.diff(norm.cdf(np.array([-0.75, -0.25, 0.25, 0.75])))
    shared = (np.outer(each, each) ** 2).sum()
    assert mean == pytest.approx(
        2 * inside - shared, abs=4 / np.sqrt(1000)
    )  # A number from 0 to 2 deviates by 1 at most


def test_spread_centres_are_as_far_from_pixels_as_random_places() -> None:
    """The mean distance of a uniform place to the middle of its unit square is (√2 + arsinh 1) / 6."""
    centres = np.random.default_rng(1).normal(0, 3, (9, 2))
    mean, low, high = by_chance([centres] * 4, away_from_pixels)
    expected = (2**0.5 + np.arcsinh(1)) / 6
    assert low < expected < high
    assert mean == pytest.approx(
        expected, abs=4 * 0.5**0.5 / np.sqrt(1000 * 36)
    )  # a distance is at most √½


def runs_of(accuracies: dict[str, list[float]]) -> Study:
    """Makes runs of networks with such accuracies, a seed each from 3 on."""
    runs = {}
    for label, of_seeds in accuracies.items():
        runs[label] = {
            seed: TrainedRun(Path(label), label, {"results": {"test_accuracy": one}}, [])
            for seed, one in enumerate(of_seeds, 3)
        }
    return Study(runs)


def test_the_rule_of_whole_pairs_is_for_ten_of_them() -> None:
    """Ten seeds each: one network is ahead by its p times three, the other two are not told apart."""
    numbers = np.random.default_rng(0).normal(0.8, 0.01, (3, 10))
    numbers[1] -= 0.1
    accuracies = dict(zip(MIXINGS, numbers.tolist(), strict=True))
    soft, conv, hard = pairs_in_words(runs_of(accuracies)).split("); ")
    assert soft.startswith("soft heads less convolutions +")
    assert soft.endswith("ahead")
    assert conv.startswith("hard heads less convolutions +")
    assert hard.endswith("not resolved)")
    p = min(ttest_rel(numbers[i], numbers[j]).pvalue for i, j in ((0, 1), (2, 1), (0, 2)))
    assert f"p = {3 * p:.2g}" in soft + conv
    accuracies["hard"].pop()
    study = runs_of(accuracies)
    assert pairs_in_words(study) == "9 of 10 have finished, and the rule is for all of them"
    assert accuracies_of(study, 12)[2] == "not run"


def around(middle: float, count: int, spread: float = 0.001) -> list[float]:
    """Returns accuracies with this mean, half of them `spread` above it and half below but for the middle one."""
    return [middle + spread * ((place % 2) * 2 - 1) for place in range(count // 2 * 2)] + [
        middle
    ] * (count % 2)


@pytest.mark.parametrize(
    ("middle", "words"),
    [(0.9395, "is reached"), (0.9385, "is not shown to be reached"), (0.93, "is not shown to be")],
)
def test_the_rule_of_eighteen_epochs_takes_the_lower_limit_of_five(
    middle: float, words: str
) -> None:
    """Limits of five with a deviation of 0.1 points are 0.124 points from their mean: 93.85 % is not enough."""
    accuracies = around(middle, 5)
    assert words in eighteen_in_words(runs_of({"speedrun": accuracies}))
    assert eighteen_in_words(runs_of({"speedrun": accuracies[1:]})).startswith("4 of 5 have")
    assert eighteen_in_words(Study({})).startswith("0 of 5 have")


@pytest.mark.parametrize(
    ("slope", "words"), [(0.004, "causes accuracy"), (0.0, "is not shown to"), (-0.004, "is not")]
)
def test_the_rule_of_covered_taps_takes_the_slope(slope: float, words: str) -> None:
    noise = np.random.default_rng(0).normal(0, 0.002, (3, 10))
    accuracies = {
        taps: (0.8 + slope * int(taps) + of_taps).tolist()
        for taps, of_taps in zip(TAPS, noise, strict=True)
    }
    found = occupied_in_words(runs_of(accuracies))
    assert words in found
    slopes = [
        np.polyfit([3, 6, 9], [accuracies[taps][seed] for taps in TAPS], 1)[0] for seed in range(10)
    ]
    assert f"{100 * np.mean(slopes):+.2f} points a tap".replace("-", "−") in found
    del accuracies["6"]
    assert occupied_in_words(runs_of(accuracies)).startswith("0 of 10 have")


@pytest.mark.parametrize(
    ("gain", "spread", "words"),
    [
        (0.01, 0.002, "is worth it"),
        (0.001, 0.002, "is not worth it"),
        (0.001, 0.02, "nothing is shown"),
        (-0.01, 0.002, "nothing is shown"),
    ],
)
def test_the_rule_of_converted_networks_knows_a_tight_null(
    gain: float, spread: float, words: str
) -> None:
    """Deviations of 0.2 points have limits 0.15 points from the mean of ten, of 2 points ten times as far."""
    conv = [0.8] * 10
    gated = around(0.8 + gain, 10, spread)
    accuracies = dict(zip(CONVERTED, (conv, around(0.8, 10), gated), strict=True))
    assert converted_in_words(runs_of(accuracies)).endswith(words)


@pytest.mark.parametrize("taps", [3, 6, 9])
def test_heads_stand_on_so_many_taps_at_the_same_distances(taps: int) -> None:
    for seed in range(20):
        places = occupy(taps, np.random.default_rng(seed))
        assert taps_with_a_centre(places) == taps
        lengths = np.sort(np.linalg.norm(places, axis=1))
        assert lengths == pytest.approx([0, *[1] * 4, *[2**0.5] * 4])


def test_layers_of_a_network_are_placed_apart_and_the_middle_head_copies() -> None:
    torch.manual_seed(0)
    network = SpeedNet("random-frozen", widths=[4, 6])
    place_heads(network, 3, seed=1)
    layers = [one for one in network.stages.modules() if isinstance(one, RelativeAttention2d)]
    centres = [layer.encoding.centres.numpy() for layer in layers]
    assert [taps_with_a_centre(one) for one in centres] == [3] * 4
    assert not np.array_equal(centres[0], centres[1])
    for layer, places in zip(layers, centres, strict=True):
        middle = int(np.linalg.norm(places, axis=1).argmin())
        copied = min(layer.in_channels, layer.out_channels)
        weight = layer.values.weight[middle, :copied]
        assert torch.equal(weight, torch.eye(*weight.shape))
