"""Networks that are built so that the answer is known."""

from math import exp

import pytest
import timm
import torch
from tests.heads.analyze_cases import gated, noise, report_of
from tests.heads.reference_statistics import reference
from torch import nn

from convattn import network_to_attention
from convattn.heads.analysis import analyze
from convattn.heads.controls import SHUFFLED, UNTRAINED
from convattn.heads.reading import watch

EPS = torch.finfo(torch.float32).eps


TAPS = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]


@pytest.fixture(scope="module")
def converted():
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 3, padding=1)
    ).eval()
    network, _ = network_to_attention(conv, images=noise(2, 3, 7, 8))
    return analyze(network, noise(20, 3, 7, 8), progress=False)


def test_every_head_of_a_converted_network_is_hard(converted):
    for layer in converted.layers:
        assert [verdict.tap for verdict in layer.verdicts] == TAPS
        for head, verdict in zip(layer.heads, layer.verdicts, strict=True):
            assert (head.hard_share.value, head.hard_share.error) == (1.0, 0.0)
            assert tuple(estimate.value for estimate in head.shift) == head.hard_shift
            assert (head.spread.value, head.entropy.value, head.content_share.value) == (
                0.0,
                0.0,
                0.0,
            )
            assert head.shift_invariance.value == 1.0
            assert (verdict.word, verdict.by_construction) == ("convolution", True)
            assert max(head.kernel) == sum(head.kernel) == head.kernel_share.value == 1.0


def test_a_converted_network_covers_all_taps_and_is_a_convolution(converted):
    for layer in converted.layers:
        measured = layer.measured
        # 36 window entries of float32 rounding, squared, are far below this.
        assert measured.convolution_score.value > 1 - 1e-8
        assert "They hold 9 of the 9 taps of a 3 × 3 kernel" in layer.sentence
        assert layer.sentence.startswith(
            "9 of 9 heads are convolutions, and 9 of 9 with untrained weights: the architecture does it."
        )


def truth_of(network, images):
    """Every number on whole maps of many other images."""
    calls = []
    for part in images.split(100):
        watch(network, part, lambda call: calls.append((call.weights[:, 0].double(), call.layout)))
    layout = calls[0][1]
    maps = torch.cat([weights for weights, _ in calls]).numpy()
    queries, keys = layout.query_positions()[0].numpy(), layout.keys[0].numpy()
    return [reference(maps[:, head], queries, keys) for head in range(3)]


NAMES = [
    "spread",
    "entropy",
    "hard_share",
    "shift_invariance",
    "content_share",
    "distance",
    "non_locality",
]


def test_heads_of_pure_content_are_no_convolutions():
    report = report_of(0.0, 50)
    layer = report.layers[0]
    for measured in (layer.measured, layer.controls[SHUFFLED]):
        for head in measured.heads:
            assert head.shift_invariance.value < 0.05
            assert head.position_score.value < 0.05
            assert head.content_share.value > 0.9
    assert [verdict.word for verdict in report.layers[0].verdicts] == ["content"] * 3
    assert report.layers[0].sentence.startswith("0 of 3 heads are convolutions; 3 content.")


def test_a_known_share_of_position_is_recovered():
    """Weights mix linearly, so that the mean weight at a displacement does; on the same images this is exact."""
    images = noise(12, 6, 5, 6)
    alone = analyze(gated(0.0), images, controls=(), progress=False).layers[0]
    for share in (0.25, 0.6, 0.9):
        mixed = analyze(gated(share), images, controls=(), progress=False).layers[0]
        for one, other in zip(mixed.heads, alone.heads, strict=True):
            place = mixed.displacements.index(one.hard_shift)
            for number, (found, content) in enumerate(zip(one.kernel, other.kernel, strict=True)):
                expected = share * (number == place) + (1 - share) * content
                assert abs(found - expected) <= 16 * EPS
            assert abs(one.hard_share.value - share - (1 - share) * other.kernel[place]) <= 16 * EPS
        assert all((one.tap is not None) == (share > 0.5) for one in mixed.verdicts)
        assert [head.hard_shift for head in mixed.heads] == [(0.0, 1.0), (-1.0, 0.0), (1.0, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_numbers_are_right_within_their_standard_errors(share):
    """The squares of (estimate − truth)/σ over 60 samples: jackknifed over ten groups, each is a t² of 9 degrees.

    Their mean is 9/7 with a standard error of 0.3, and truth itself is known five times as well as a sample knows it.
    """
    network = gated(share)
    truth = truth_of(network, noise(1000, 6, 5, 6, seed=99))
    squares = {name: [] for name in NAMES}
    for seed in range(60):
        layer = analyze(network, noise(40, 6, 5, 6, seed=seed), controls=(), progress=False).layers[
            0
        ]
        for head, hi in zip(layer.heads, truth, strict=True):
            for name in NAMES:
                estimate = getattr(head, name)
                squares[name].append(((estimate.value - hi[name]) / estimate.error) ** 2)
    for name, found in squares.items():
        assert 9 / 7 - 3 * 0.3 < torch.tensor(found).mean() < 9 / 7 + 4 * 0.3, name


def planted():
    """A vision transformer whose nine heads look at the nine taps, by its position embedding alone.

    With the position features (r, c, r² + c², 1), scores of 2α(q + Δ)·k − α‖k‖² are −α‖k − q − Δ‖² but for a term
    that the softmax cancels.
    """
    torch.manual_seed(0)
    vit = timm.models.VisionTransformer(
        img_size=48, patch_size=4, embed_dim=36, depth=1, num_heads=9, class_token=False, global_pool="avg",
        norm_layer=nn.Identity,
    ).eval()  # fmt: skip
    rows, cols = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    with torch.no_grad():
        vit.patch_embed.proj.weight[:4] = 0
        vit.patch_embed.proj.bias[:4] = 0
        features = torch.stack([rows, cols, rows**2 + cols**2, torch.ones(12, 12)])
        vit.pos_embed[0, :, :4] = features.flatten(1).mT
        qkv = vit.blocks[0].attn.qkv
        qkv.bias.zero_()
        qkv.weight[:72] = 0
        for head, (row, col) in enumerate(TAPS):
            query, key = (
                qkv.weight[4 * head : 4 * head + 4],
                qkv.weight[36 + 4 * head : 40 + 4 * head],
            )
            query[0, 0] = query[1, 1] = (
                60.0  # α = 15, and a factor 2 that the scale of width 4 takes away
            )
            query[0, 3], query[1, 3], query[2, 3] = 60.0 * row, 60.0 * col, -30.0
            key[:3, :3] = torch.eye(3)
    return vit


def test_planted_heads_are_found_and_controls_do_not_light_up():
    report = analyze(planted(), noise(12, 3, 48, 48), progress=False)
    (layer,) = report.layers
    assert [(one.word, one.tap) for one in layer.verdicts] == [("convolution", tap) for tap in TAPS]
    assert not any(one.by_construction for one in layer.verdicts)
    for head, tap in zip(layer.heads, TAPS, strict=True):
        assert head.hard_shift == tap
        assert head.hard_share.value > 1 - 5 * exp(
            -15
        )  # α = 15, and four patches at a distance of 1
        assert head.position_score.value > 1 - 1e-4
        if tap != (0, 0):  # at the border another patch takes the place of one outside
            assert 0.7 < head.shift_invariance.value < 0.95
        assert head.content_share.value < 1e-9
    assert all(
        one.word != "convolution" and one.tap is None for one in layer.verdicts_in(UNTRAINED)
    )
    # These heads do not look at the image, so that another image changes nothing.
    for head, other in zip(layer.heads, layer.controls[SHUFFLED].heads, strict=True):
        assert other.hard_shift == head.hard_shift
        assert other.hard_share.value > 1 - 5 * exp(-15)


def test_a_head_that_looks_at_a_place_in_the_image_is_no_convolution():
    """Six heads of 25 patches: a neighbour, a square, a column, one fixed patch, a permutation, everywhere alike."""
    torch.manual_seed(0)
    vit = timm.models.VisionTransformer(
        img_size=20, patch_size=4, embed_dim=6 * 27, depth=1, num_heads=6, class_token=False, global_pool="avg",
        norm_layer=nn.Identity,
    ).eval()  # fmt: skip
    places = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    row, col = (places[None] - places[:, None]).unbind(-1)
    fixed, other = torch.zeros(25, 25, dtype=torch.bool), torch.zeros(25, 25, dtype=torch.bool)
    fixed[:, 7] = True
    other[torch.arange(25), torch.randperm(25)] = True
    near = (row == 0) & (col == 1), (row.abs() <= 1) & (col.abs() <= 1), col == 0
    with torch.no_grad():
        vit.patch_embed.proj.weight[:25] = 0
        vit.patch_embed.proj.bias[:25] = 0
        vit.pos_embed.zero_()
        vit.pos_embed[0, :, :25] = torch.eye(25)
        qkv = vit.blocks[0].attn.qkv
        qkv.bias.zero_()
        qkv.weight[: 2 * 6 * 27] = 0
        for head, looks in enumerate((*near, fixed, other, torch.zeros(25, 25))):
            qkv.weight[27 * head : 27 * head + 25, :25] = 12 * 27**0.5 * looks.mT.float()
            qkv.weight[27 * (6 + head) : 27 * (6 + head) + 25, :25] = torch.eye(25)
    report = analyze(vit, noise(20, 3, 20, 20), controls=(), progress=False)
    heads = report.layers[0].heads
    verdicts = report.layers[0].verdicts
    words = [verdict.word for verdict in verdicts]
    assert words == ["convolution"] * 3 + ["mixed", "mixed", "anywhere"]
    assert [verdict.tap for verdict in verdicts] == [(0.0, 1.0), None, None, None, None, None]
    assert all(head.content_share.value < 1e-9 for head in heads[:5])


def test_heads_that_find_neighbours_by_content_lose_them_on_shuffled_images():
    smooth = nn.functional.interpolate(noise(60, 6, 2, 2), size=(8, 8), mode="bilinear")
    network = gated(0.0, sharpness=4.0)
    with torch.no_grad():
        network.content.key.weight.copy_(
            network.content.query.weight
        )  # a pixel looks for those that are like it
    report = analyze(network, smooth, progress=False)
    (layer,) = report.layers
    for head, other in zip(layer.heads, layer.controls[SHUFFLED].heads, strict=True):
        assert other.distance.value - head.distance.value > 5 * (
            head.distance.error + other.distance.error
        )
