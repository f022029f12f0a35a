"""Networks that are built so that the answer is known."""

import copy
from collections.abc import Sequence
from math import exp

import pytest
import timm
import torch
from tests.analysis.reference_statistics import reference
from torch import nn

from convattn import AttentionNet, GatedRelativeAttention2d, Shift, network_to_attention
from convattn.adapters.attention import watch
from convattn.analysis.analyze import analyze, control_count
from convattn.analysis.measure.controls import SHUFFLED, UNTRAINED, shuffled, untrained
from convattn.errors import ArgumentError, CheckpointError, UnknownNameError, UnsupportedModelError
from convattn.records.head_report import HeadReport

EPS = torch.finfo(torch.float32).eps
TAPS = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]


def noise(images, *sizes, seed=1):
    return torch.randn(images, *sizes, generator=torch.Generator().manual_seed(seed))


def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


@pytest.fixture(scope="module")
def converted():
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 3, padding=1)).eval()
    network, _ = network_to_attention(conv, images=noise(2, 3, 7, 8))
    return analyze(network, noise(20, 3, 7, 8), progress=False)


def test_every_head_of_a_converted_network_is_hard(converted):
    for layer in converted.layers:
        assert [head.hard_shift for head in layer.heads] == TAPS
        for head in layer.heads:
            assert (head.hard_share.value, head.hard_share.error) == (1.0, 0.0)
            assert tuple(estimate.value for estimate in head.shift) == head.hard_shift
            assert (head.spread.value, head.entropy.value, head.content_share.value) == (0.0, 0.0, 0.0)
            assert head.shift_invariance.value == 1.0
            assert head.hard
            assert head.convolutional
            assert max(head.kernel) == sum(head.kernel) == head.kernel_share.value == 1.0


def test_a_converted_network_covers_all_taps_and_is_a_convolution(converted):
    for layer in converted.layers:
        measured = layer.measured
        assert measured.tap_coverage.value == measured.hard_tap_coverage.value == 1.0
        # 36 window entries of float32 rounding, squared, are far below this.
        assert measured.convolution_score.value > 1 - 1e-8
        assert "and together they cover 9 of the 9 taps of a 3 × 3 kernel" in layer.sentence
        assert "All heads attend by position alone" in layer.sentence


def gated(share, sharpness=6.0):
    """Three heads that look with a known share at a fixed displacement, and otherwise at what the pixels are."""
    torch.manual_seed(0)
    network = GatedRelativeAttention2d(
        6, 5, 3, Shift(3, 2, displacements=[(0, 1), (-1, 0), (1, 1)]), kernel_size=3, padding=1
    )
    with torch.no_grad():
        network.gate.copy_(torch.logit(torch.tensor(share, dtype=torch.float64)))
        network.content.query.weight.mul_(sharpness)
    return network.eval()


def truth_of(network, images):
    """Every number on whole maps of many other images."""
    calls = []
    for part in images.split(100):
        watch(network, part, lambda call: calls.append((call.weights[:, 0].double(), call.layout)))
    layout = calls[0][1]
    maps = torch.cat([weights for weights, _ in calls]).numpy()
    queries, keys = layout.query_positions()[0].numpy(), layout.keys[0].numpy()
    return [reference(maps[:, head], queries, keys) for head in range(3)]


NAMES = ["spread", "entropy", "hard_share", "shift_invariance", "content_share", "distance", "non_locality"]


def test_heads_of_pure_content_are_no_convolutions():
    report = analyze(gated(0.0), noise(100, 6, 5, 6), progress=False)
    for measured in (report.layers[0].measured, *(item.measured for item in report.layers[0].controls)):
        assert measured.hard_tap_coverage.value == 0.0
        for head in measured.heads:
            assert head.shift_invariance.value < 0.05
            assert head.position_score.value < 0.05
            assert head.content_share.value > 0.9
            assert not head.hard
    assert "No head attends by position alone" in report.layers[0].sentence


def test_a_known_share_of_position_is_recovered():
    """Weights mix linearly, so that the mean weight at a displacement does; on the same images this is exact."""
    images = noise(40, 6, 5, 6)
    alone = analyze(gated(0.0), images, controls=(), progress=False).layers[0]
    for share in (0.25, 0.6, 0.9):
        mixed = analyze(gated(share), images, controls=(), progress=False).layers[0]
        for one, other in zip(mixed.heads, alone.heads, strict=True):
            place = mixed.displacements.index(one.hard_shift)
            for number, (found, content) in enumerate(zip(one.kernel, other.kernel, strict=True)):
                expected = share * (number == place) + (1 - share) * content
                assert abs(found - expected) <= 16 * EPS
            assert abs(one.hard_share.value - share - (1 - share) * other.kernel[place]) <= 16 * EPS
            assert one.hard == (share > 0.5)
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
        layer = analyze(network, noise(40, 6, 5, 6, seed=seed), controls=(), progress=False).layers[0]
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
            query, key = qkv.weight[4 * head : 4 * head + 4], qkv.weight[36 + 4 * head : 40 + 4 * head]
            query[0, 0] = query[1, 1] = 60.0  # α = 15, and a factor 2 that the scale of width 4 takes away
            query[0, 3], query[1, 3], query[2, 3] = 60.0 * row, 60.0 * col, -30.0
            key[:3, :3] = torch.eye(3)
    return vit


def test_planted_heads_are_found_and_controls_do_not_light_up():
    report = analyze(planted(), noise(12, 3, 48, 48), progress=False)
    (layer,) = report.layers
    assert layer.measured.tap_coverage.value == layer.measured.hard_tap_coverage.value == 1.0
    for head, tap in zip(layer.heads, TAPS, strict=True):
        assert head.hard_shift == tap
        assert head.hard_share.value > 1 - 5 * exp(-15)  # α = 15, and four patches at a distance of 1
        assert head.convolutional
        assert head.position_score.value > 1 - 1e-4
        if tap != (0, 0):  # at the border another patch takes the place of one outside
            assert 0.7 < head.shift_invariance.value < 0.95
        assert head.content_share.value < 1e-9
    without = layer.control(UNTRAINED)
    assert not any(head.hard or head.convolutional for head in without.heads)
    assert without.hard_tap_coverage.value == 0.0
    # These heads do not look at the image, so that another image changes nothing.
    for head, other in zip(layer.heads, layer.control(SHUFFLED).heads, strict=True):
        assert other.hard_shift == head.hard_shift
        assert other.hard_share.value > 1 - 5 * exp(-15)


def test_heads_that_find_neighbours_by_content_lose_them_on_shuffled_images():
    smooth = nn.functional.interpolate(noise(60, 6, 2, 2), size=(8, 8), mode="bilinear")
    network = gated(0.0, sharpness=4.0)
    with torch.no_grad():
        network.content.key.weight.copy_(network.content.query.weight)  # a pixel looks for those that are like it
    report = analyze(network, smooth, progress=False)
    (layer,) = report.layers
    for head, other in zip(layer.heads, layer.control(SHUFFLED).heads, strict=True):
        assert other.distance.value - head.distance.value > 5 * (head.distance.error + other.distance.error)


def test_a_network_is_not_changed():
    vit = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, num_classes=3).train()
    before, known = copy.deepcopy(vit.state_dict()), hooks(vit)
    modes = [module.training for module in vit.modules()]
    state = torch.random.get_rng_state()
    analyze(vit, noise(4, 3, 32, 32), progress=False)
    assert hooks(vit) == known
    assert [module.training for module in vit.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_untrained_weights_are_the_same_numbers_in_another_order():
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
    other = untrained(network, 0)
    moved = 0
    for (name, old), (_, new) in zip(network.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(old.flatten().sort().values, new.flatten().sort().values), name
        moved += not torch.equal(old, new)
    assert moved > 4
    assert all(
        torch.equal(one, two) for one, two in zip(other.parameters(), untrained(network, 0).parameters(), strict=True)
    )


@pytest.mark.parametrize(("sizes", "grid"), [((3, 8, 12), (2, 3)), ((2, 21), (7,)), ((3, 9, 13), (2, 3))])
def test_shuffled_images_hold_the_same_patches(sizes, grid):
    image = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    made = shuffled(image, grid, 0)
    steps = [size // cells for size, cells in zip(sizes[1:], grid, strict=True)]

    def patches(picture):
        found = set()
        for cell in torch.cartesian_prod(*[torch.arange(cells) for cells in grid]).view(-1, len(grid)).tolist():
            part = tuple(slice(at * step, (at + 1) * step) for at, step in zip(cell, steps, strict=True))
            found.add(tuple(picture[:, *part].flatten().tolist()))
        return found

    assert patches(made) == patches(image)
    assert not torch.equal(made, image)
    assert torch.equal(made.flatten().sort().values, image.flatten().sort().values)


def test_shuffled_tokens_keep_their_ends():
    tokens = torch.arange(20)
    made = shuffled(tokens, (20,), 0)
    assert (made[0].item(), made[-1].item()) == (0, 19)
    assert torch.equal(made.sort().values, tokens)
    assert not torch.equal(made, tokens)


def test_a_report_is_read_back():
    report = analyze(gated(0.3), noise(3, 6, 5, 6), progress=False)
    assert repr(HeadReport.from_json(report.to_json())) == repr(report)
    assert report.layer("").heads == report.layers[0].heads
    with pytest.raises(UnknownNameError, match="unknown layer 'blocks'"):
        report.layer("blocks")


def test_controls_are_measured_on_a_tenth_of_the_images():
    assert [control_count(count) for count in (1, 9, 10, 50, 100, 1000)] == [1, 9, 10, 10, 10, 100]


class Interrupting:
    """Images, as a sequence, of which one is not to be had the first time."""

    def __init__(self, images, at):
        self.images, self.left = images, at

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.images[number]


@pytest.mark.parametrize("at", [3, 12, 31, 47])
def test_an_interrupted_analysis_goes_on(at, tmp_path):
    network, images = gated(0.3), noise(24, 6, 5, 6)
    whole = analyze(network, images, progress=False)
    file = tmp_path / "partial"
    Sequence.register(Interrupting)
    with pytest.raises(KeyboardInterrupt):
        analyze(network, Interrupting(images, at + 3), progress=False, partial=file)
    assert file.exists()
    assert hooks(network) == 0
    assert repr(analyze(network, list(images), progress=False, partial=file)) == repr(whole)
    assert not file.exists()


def test_a_partial_report_of_something_else_is_refused(tmp_path):
    file = tmp_path / "partial"
    Sequence.register(Interrupting)
    with pytest.raises(KeyboardInterrupt):
        analyze(gated(0.3), Interrupting(noise(24, 6, 5, 6), 20), progress=False, partial=file)
    with pytest.raises(CheckpointError, match=r"is a partial report of another analysis \(model\); delete it$"):
        analyze(gated(0.4), noise(24, 6, 5, 6), progress=False, partial=file)
    with pytest.raises(CheckpointError, match=r"of another analysis \(images\)"):
        analyze(gated(0.3), noise(23, 6, 5, 6), progress=False, partial=file)
    with pytest.raises(CheckpointError, match=r"of another analysis \(settings\)"):
        analyze(gated(0.3), noise(24, 6, 5, 6), progress=False, partial=file, kernel_size=5)
    file.write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"is not a partial report: .*; delete it$"):
        analyze(gated(0.3), noise(24, 6, 5, 6), progress=False, partial=file)


def test_layers_can_be_chosen():
    vit = timm.create_model("vit_tiny_patch16_224", depth=3, img_size=32, num_classes=3)
    report = analyze(vit, noise(4, 3, 32, 32), layers=["blocks.1.attn"], controls=(), progress=False)
    assert [layer.name for layer in report.layers] == ["blocks.1.attn"]
    assert (report.layers[0].prefix, report.layers[0].grid) == (1, (2, 2))


MISTAKES = {
    "no network": (lambda: analyze("vit", noise(2, 3, 8, 8)), ArgumentError, "model must be a network"),
    "no images": (lambda: analyze(gated(0.5), noise(0, 6, 5, 6)), ArgumentError, "images must be at least one"),
    "a file name": (lambda: analyze(gated(0.5), "images"), ArgumentError, "images must be a tensor or a sequence"),
    "one number": (lambda: analyze(gated(0.5), torch.zeros(3)), ArgumentError, "images must be a batch"),
    "nothing": (lambda: analyze(gated(0.5), torch.zeros(3, 6, 0, 6)), ArgumentError, "at least one value each"),
    "numbers": (lambda: analyze(gated(0.5), [1, 2]), ArgumentError, r"images\[0\] must be a tensor"),
    "grey": (
        lambda: analyze(gated(0.5), noise(4, 1, 5, 6)),
        ArgumentError,
        r"images must .* of shape \(3, 1, 5, 6\)",
    ),
    "sizes": (
        lambda: analyze(gated(0.5), [noise(6, 5, 6), noise(6, 7, 6)]),
        ArgumentError,
        r"images must be of one size, but are of \(6, 5, 6\) and \(6, 7, 6\)",
    ),
    "meta network": (lambda: analyze(gated(0.5).to("meta"), noise(2, 6, 5, 6)), ArgumentError, "on the meta device"),
    "meta images": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6).to("meta")), ArgumentError, "on the meta device"),
    "nan": (
        lambda: analyze(gated(0.5), torch.full((3, 6, 5, 6), torch.nan)),
        ArgumentError,
        "must hold finite numbers",
    ),
    "convolutions": (lambda: analyze(nn.Conv2d(3, 3, 3), noise(2, 3, 8, 8)), UnsupportedModelError, "attention"),
    "layer": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6), layers=["x"]), UnknownNameError, "unknown layer 'x'"),
    "no layer": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6), layers=[]), ArgumentError, "layers must be names"),
    "control": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6), controls=["x"]), UnknownNameError, "unknown control"),
    "text": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6), controls="x"), ArgumentError, "controls must be a list"),
    "even": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6), kernel_size=4), ArgumentError, "kernel_size must be odd"),
    "radius": (lambda: analyze(gated(0.5), noise(2, 6, 5, 6), radius=-1), ArgumentError, "radius must be an integer"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told(name, without_type_checks):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()
