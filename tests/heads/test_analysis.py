"""What `analyze` leaves as it is, its controls and mistakes."""

import copy
import math
import re
from dataclasses import replace
from math import nan
from types import SimpleNamespace

import pytest
import timm
import torch
from tests.heads.analyze_cases import gated, hooks, noise, report_of
from torch import nn
from torch.utils.data import DataLoader

from convattn.errors import (
    ArgumentError,
    ConvAttnError,
    UnknownNameError,
    UnsupportedModelError,
)
from convattn.heads import attention_maps, mean_maps
from convattn.heads.analysis import Images, Run, analyze
from convattn.heads.catalogue import register_attention
from convattn.heads.controls import CONTROLS, can_shuffle, control_count, shuffled
from convattn.heads.head_report import Estimate, HeadReport
from convattn.heads.layout import global_layout
from convattn.heads.products import Product
from convattn.layers import RelativeAttention1d, RelativeAttention2d


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


@pytest.mark.parametrize(
    ("sizes", "grid"), [((3, 8, 12), (2, 3)), ((2, 21), (7,)), ((3, 9, 13), (2, 3))]
)
def test_shuffled_images_hold_the_same_patches(sizes, grid):
    image = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    made = shuffled(image, grid, 0)

    def patches(picture):
        parts = [picture]
        for axis, cells in enumerate(grid, start=1):
            pieces = []
            for part in parts:
                pieces += part.split(picture.shape[axis] // cells, axis)[:cells]
            parts = pieces
        return {tuple(part.flatten().tolist()) for part in parts}

    assert patches(made) == patches(image)
    assert not torch.equal(made, image)
    assert torch.equal(made.flatten().sort().values, image.flatten().sort().values)


def test_shuffled_tokens_keep_their_ends():
    tokens = torch.arange(20)
    made = shuffled(tokens, (20,), 0)
    assert (made[0].item(), made[-1].item()) == (0, 19)
    assert torch.equal(made.sort().values, tokens)
    assert not torch.equal(made, tokens)


def test_a_wave_is_shuffled_in_stretches():
    wave = torch.arange(37.0)
    made = shuffled(wave, (7,), 0)
    assert torch.equal(made, shuffled(wave[None], (7,), 0)[0])
    assert not torch.equal(made, wave)


def test_four_images_give_every_number_its_error():
    layer = report_of(0.3, 4, controls=()).layers[0]
    assert all(math.isfinite(head.position_score.error) for head in layer.heads)


def test_a_report_is_read_back():
    report = report_of(0.3, 3)
    assert HeadReport.from_json(report.to_json()).to_json() == report.to_json()
    assert len(repr(report.layers[0])) < 1000
    assert len(repr(report.layers[0].heads[0])) < 1000
    assert report.layer("").heads == report.layers[0].heads
    with pytest.raises(UnknownNameError, match="unknown layer 'blocks'"):
        report.layer("blocks")


@pytest.mark.parametrize(("error", "told"), [(0.96, False), (0.1, True), (nan, True)])
def test_a_convolution_score_within_two_errors_of_nothing_is_not_told(error, told):
    layer = report_of(0.3, 4, controls=()).layers[0]
    measured = replace(layer.measured, convolution_score=Estimate(0.37, error))
    sentence = replace(layer, measured=measured, controls={}).sentence
    assert ("explains at least 37" in sentence) == told
    assert ("is not resolved on these images" in sentence) != told


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        (0.3, 0.01, True),
        (0.3, 0.04, False),
        (0.5, 0.01, False),
        (0.36, nan, True),
        (nan, nan, True),
    ],
)
def test_what_a_convolution_explains_is_told_where_controls_leave_something(value, error, told):
    """78 % is no finding if a network without training has 80 %."""
    layer = report_of(0.3, 4).layers[0]
    controls = {}
    scores = (Estimate(0.1, 0.01), Estimate(value, error))
    for (name, control), score in zip(layer.controls.items(), scores, strict=True):
        controls[name] = replace(control, convolution_score=score)
    measured = replace(layer.measured, convolution_score=Estimate(0.37, nan))
    sentence = replace(layer, measured=measured, controls=controls).sentence
    assert (
        "Whatever its heads are, the best 3 × 3 convolution explains at least" in sentence
    ) == told
    if not told:
        both = f"10 % with shuffled images, {100 * value:.0f} % with untrained weights"
        said = f"explains 37 % of the layer's output, and as much in a control ({both})."
        assert sentence.endswith(said)


def test_rows_hold_every_head_in_every_condition():
    report = report_of(0.3, 3)
    rows = report.rows()
    assert len(rows) == 3 * len(report.layers[0].heads)
    assert {row["condition"] for row in rows} == {"measured", *CONTROLS}
    head = report.layers[0].heads[1]
    assert rows[1]["layer"] == report.layers[0].name
    assert (rows[1]["depth"], rows[1]["head"]) == (0, 1)
    assert (rows[1]["spread"], rows[1]["spread_error"]) == (head.spread.value, head.spread.error)
    assert rows[1]["shift"] == tuple(one.value for one in head.shift)
    assert rows[1]["kernel"] == head.kernel


def test_a_report_prints_its_answer_in_the_first_line():
    report = report_of(0.3, 4, controls=())
    assert str(report) == report.summary()
    first = str(report).splitlines()[0]
    assert first == f"RelativeAttention2d: {report.headline()}"
    assert first.endswith(", on 4 images")
    assert not any(layer.sentence in str(report) for layer in report.layers)


@pytest.mark.parametrize(
    "make",
    [lambda: gated(0.3), lambda: RelativeAttention2d(6, 5, num_heads=4, encoding="quadratic")],
)
def test_what_one_image_does_not_tell_is_nan(make):
    layer = analyze(make(), noise(1, 6, 5, 6), progress=False).layers[0]
    for part in layer.conditions().values():
        assert part.images == 1
        assert math.isnan(part.convolution_score.value)
        for head in part.heads:
            assert math.isnan(head.distance.error)
            assert math.isfinite(head.distance.value)
            assert math.isnan(head.position_score.value)
            assert math.isnan(head.content_share.value)


def test_controls_are_measured_on_a_tenth_of_the_images():
    assert [control_count(count) for count in (1, 9, 10, 50, 100, 1000)] == [1, 9, 10, 10, 10, 100]


def test_the_tenth_is_drawn(monkeypatch):
    """In a folder that is sorted by class the first images are of one class."""
    batch = Images.batch
    taken = []

    def noted(images, numbers, grid=None):
        if grid is not None:
            taken.extend(numbers)
        return batch(images, numbers, grid)

    monkeypatch.setattr(Images, "batch", noted)
    analyze(gated(0.3), noise(30, 6, 5, 6), controls=["shuffled images"], progress=False)
    assert len(set(taken)) == len(taken) == 10
    assert sorted(taken) != [*range(10)]


def test_shares_of_controls_are_of_the_same_displacements():
    torch.manual_seed(0)
    layer = RelativeAttention2d(6, 6, num_heads=3, encoding="quadratic")
    (report,) = analyze(layer, noise(4, 6, 5, 6), radius=1, progress=False).layers
    measured = [head.kernel_share.value for head in report.heads]
    assert 0.1 < min(measured) < 0.99
    shuffled = report.controls["shuffled images"]
    assert [head.kernel_share.value for head in shuffled.heads] == pytest.approx(measured)
    assert {head.kernel for head in shuffled.heads} == {()}


def test_images_are_given_to_a_network_in_its_dtype():
    network, images = gated(0.5).double(), noise(4, 6, 5, 6)
    reports = [
        analyze(network, given, controls=(), progress=False) for given in (images, images.double())
    ]
    assert reports[0].layers == reports[1].layers
    maps = [mean_maps(network, given)[""] for given in (images, images.double())]
    assert torch.equal(*maps)


def test_layers_without_positions_are_passed_over_unless_they_are_named():
    network = timm.create_model(
        "cait_xxs24_224", img_size=32, depth=1, embed_dim=8, num_heads=2, num_classes=3
    )
    report = analyze(network, noise(4, 3, 32, 32), progress=False)
    assert [layer.name for layer in report.layers] == ["blocks.0.attn"]
    assert [*report.layers[0].controls] == ["shuffled images"]
    assert any("nothing says how cls_token starts" in line for line in report.not_covered)
    note = "none of its queries, or none of its keys, has a position"
    assert [item for item in report.not_covered if note in item] == [
        f"blocks_token_only.{number}.attn: {note}" for number in range(2)
    ]
    with pytest.raises(UnsupportedModelError, match=rf"^blocks_token_only\.0\.attn: {note}$"):
        analyze(network, noise(4, 3, 32, 32), layers=["blocks_token_only.0.attn"], progress=False)


CUTS = {
    "patches": ((3, 22, 23), (5, 7), True),
    "fewer pixels than positions": ((3, 22, 6), (5, 7), False),
    "no channels": ((22, 23), (5, 7), False),
    "a sequence with channels": ((3, 22), (11,), True),
    "tokens": ((11,), (11,), True),
    "tokens on a grid": ((35,), (5, 7), False),
    "an image as a sequence": ((3, 5, 7), (35,), False),
    "a volume": ((3, 5, 7, 11), (5, 7, 11), False),
}


@pytest.mark.parametrize(("shape", "grid", "can"), CUTS.values(), ids=CUTS)
def test_only_what_has_a_patch_for_each_position_can_be_shuffled(shape, grid, can):
    assert can_shuffle(shape, grid) is can


def test_images_that_cannot_be_shuffled_are_told():
    network = nn.Sequential(
        nn.Flatten(2), RelativeAttention1d(3, 5, num_heads=2, encoding="distance")
    )
    report = analyze(network, noise(4, 3, 5, 7), progress=False)
    assert [*report.layers[0].controls] == ["untrained weights"]
    assert "shuffled images: (3, 5, 7) is not cut into a grid of (35,)" in report.not_covered


class Masked(nn.Module):
    """Attention of a sequence, in which each image has a mask of its own, to which its outputs need not belong."""

    def __init__(self, outputs=7):
        super().__init__()
        self.outputs = outputs

    def forward(self, x):
        there = x[:, None, None, :, 0] > 0
        y = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], there)
        return y[:, 0, : self.outputs]


def masked(count=7):
    """Images of which each hides some tokens, but never the third."""
    images = noise(8, 7, 5)
    images[:, 2, 0] = 1.0
    register_attention(Masked, lambda _: global_layout((7,)))
    return nn.Sequential(Masked(count)), images


@pytest.mark.parametrize("count", [7, 3])
def test_masks_and_outputs_off_the_grid_are_told(count):
    network, images = masked(count)
    report = analyze(network, images, controls=(), progress=False)
    assert any(item.startswith("masks differ between images: ") for item in report.not_covered)
    told = "convolution scores of layers whose inputs or outputs do not lie on the grid of their queries"
    assert (told in report.not_covered) is (count < 7)
    score = report.layers[0].measured.convolution_score.value
    assert math.isnan(score) is (count < 7)


@pytest.mark.parametrize("count", [4, 5, 8])
def test_a_batch_whose_images_share_a_mask_is_measured_with_the_others(count):
    """Of four or five images, the one held out is a batch of its own, and so has no other masks beside it."""
    network, images = masked()
    report = analyze(network, images[:count], controls=(), progress=False)
    assert report.layers[0].measured.images == count
    assert any(item.startswith("masks differ between images: ") for item in report.not_covered)


def test_a_mask_of_the_whole_first_batch_is_not_that_of_the_layer():
    """Two images hide the same tokens. What is measured does not depend on whether they come first."""
    network, _ = masked()
    images = noise(8, 7, 5)
    images[:, :, 0] = 1.0
    first, second, third = torch.randperm(8, generator=torch.Generator().manual_seed(0))[
        :3
    ]  # the order of images
    images[[first, second], 4:, 0] = -1.0
    later = images.clone()
    later[second], later[third] = images[third], images[second]
    reports = [analyze(network, given, controls=(), progress=False) for given in (images, later)]
    for report in reports:
        assert any(item.startswith("masks differ between images: ") for item in report.not_covered)
        assert report.layers[0].displacements == reports[0].layers[0].displacements
    head, other = (report.layers[0].heads[0] for report in reports)
    assert head.position_kernel == pytest.approx(other.position_kernel, rel=1e-6)
    assert head.entropy.value == pytest.approx(other.entropy.value, rel=1e-6)


def test_a_network_without_any_positions_is_refused():
    network, images = masked()
    note = "none of its queries, or none of its keys, has a position"
    register_attention(Masked, lambda _: global_layout((0,), 7))
    with pytest.raises(
        UnsupportedModelError, match=f"^no attention of Sequential can be measured: 0: {note}$"
    ):
        analyze(network, images, progress=False)
    idle = nn.ModuleDict({"used": nn.Identity(), "unused": Masked()})
    idle.forward = idle["used"].forward
    with pytest.raises(
        UnsupportedModelError, match=r"^no attention of ModuleDict can be measured: no layer ran$"
    ):
        analyze(idle, images, progress=False)


def test_a_head_that_looks_everywhere_alike_has_no_position_score():
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64, num_classes=3)
    with torch.no_grad():
        vit.blocks[0].attn.qkv.weight[:64] = 0
    (layer,) = analyze(vit, noise(5, 3, 64, 64), controls=(), progress=False).layers
    assert [math.isnan(head.position_score.value) for head in layer.heads] == [True, False, False]
    assert [str(verdict) for verdict in layer.verdicts] == ["anywhere"] * 3


def test_layers_can_be_chosen():
    vit = timm.create_model("vit_tiny_patch16_224", depth=3, img_size=32, num_classes=3)
    report = analyze(vit, noise(4, 3, 32, 32), layers="*.1.attn", controls=(), progress=False)
    assert [layer.name for layer in report.layers] == ["blocks.1.attn"]
    assert (report.layers[0].prefix, report.layers[0].grid) == (1, (2, 2))


IMAGE = noise(6, 5, 6)
MISTAKES = {
    "no network": (noise(2, 3, 8, 8), {"model": "vit"}, "model must be an nn.Module"),
    "meta network": (IMAGE[None], {"model": gated(0.5).to("meta")}, "on the meta device"),
    "no images": (noise(0, 6, 5, 6), {}, "images must be at least one"),
    "a file name": ("images", {}, r"images\[0\] must be a tensor, but is of type str"),
    "one number": (torch.zeros(3), {}, "images must be a batch"),
    "nothing": (
        torch.zeros(3, 6, 0, 6),
        {},
        r"\[0\] must be dense, with values, but is float32 of shape \(6, 0, 6\)",
    ),
    "numbers": ([1, 2], {}, r"images\[0\] must be a tensor"),
    "array": ([IMAGE, IMAGE.numpy()], {}, r"\[1\] must be a tensor, .* type ndarray"),
    "sparse": (IMAGE[None].to_sparse(), {}, "must be dense, .* torch.sparse_coo on cpu$"),
    "grey": (noise(4, 1, 5, 6), {}, r"images must .* of shape \(2, 1, 5, 6\)"),
    "sizes": ([IMAGE, noise(6, 7, 6)], {}, r"of \(6, 5, 6\) and \(6, 7, 6\)"),
    "meta images": (IMAGE[None].to("meta"), {}, "must be dense, with .* on meta$"),
    "nan": (torch.full((3, 6, 5, 6), torch.nan), {}, "must hold finite numbers"),
    "convolutions": (noise(2, 3, 8, 8), {"model": nn.Conv2d(3, 3, 3)}, "attention"),
    "layer": (IMAGE[None], {"layers": ["x"]}, "layers must be a pattern that matches"),
    "no layer": (IMAGE[None], {"layers": []}, "layers must be a name pattern or"),
    "loader": (DataLoader(IMAGE[None]), {}, r"DataLoader: give one batch of the loader, as next\("),
    "bytes": (IMAGE[None].byte(), {}, r"on uint8 of shape \(1, 6, 5, 6\) it raised"),
    "a word": (
        IMAGE[None],
        {"controls": "untrained weights"},
        "controls must be names .* in a list",
    ),
    "no controls": (
        IMAGE[None],
        {"controls": False},
        "controls must be names of controls in a list",
    ),
    "control": (IMAGE[None], {"controls": ["x"]}, "unknown control"),
    "one number for all": (3, {}, "images must be a tensor, a list of single images, or"),
    "several inputs in a tuple": ((IMAGE[None], IMAGE[None]), {}, r'a mapping like \{"name of the'),
    "several inputs, of which one is a number": (
        {"x": IMAGE[None], "y": 2},
        {},
        r"hold \{'x': 1, 'y': None\}$",
    ),
    "several inputs, not of all": (
        {"x": noise(3, 6, 5, 6), "y": noise(2, 1)},
        {},
        r"images must hold a batch of each input, all as long, but hold \{'x': 3, 'y': 2\}$",
    ),
    "even": (IMAGE[None], {"kernel_size": 4}, "kernel_size must be odd"),
    "radius": (IMAGE[None], {"radius": -1}, "radius must be an integer"),
}


def test_mistakes_are_told(without_type_checks):
    for name, (images, options, message) in MISTAKES.items():
        with pytest.raises(ConvAttnError) as caught:
            analyze(**{"model": gated(0.5), "images": images, **options})
        assert re.search(message, str(caught.value)), (name, str(caught.value))


class Scaled(nn.Module):
    """A network of two inputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, image, by):
        return self.layer(image * by)


def test_a_network_of_several_inputs_is_given_a_batch_of_each():
    images, by = noise(7, 6, 5, 6), noise(7, 1, 1, 1)
    expected = analyze(gated(0.5), images * by, progress=False).layers[0]
    inputs = {"by": by, "image": images}
    report = analyze(Scaled(gated(0.5)), inputs, controls=["shuffled images"], progress=False)
    assert report.layers[0].measured == expected.measured
    assert report.images == 7
    note = "shuffled images: inputs by name are not shuffled"
    assert note in report.not_covered


def test_the_input_that_is_wrong_is_named():
    inputs = {"image": noise(4, 6, 5, 6), "by": torch.full((4, 1, 1, 1), torch.inf)}
    with pytest.raises(ArgumentError, match=r"^images\['by'\] must hold finite numbers"):
        analyze(Scaled(gated(0.5)), inputs, controls=(), progress=False)


def test_a_control_that_fails_takes_nothing_with_it(monkeypatch):
    honest = Run.measure

    def measure(self, *args, like):
        if like is not self:
            raise RuntimeError("out of memory")
        honest(self, *args, like=like)

    monkeypatch.setattr(Run, "measure", measure)
    report = analyze(gated(0.5), noise(3, 6, 5, 6), progress=False)
    assert len(report.layers) == 1
    for name in CONTROLS:
        assert f"{name}: out of memory" in report.not_covered
    few = "errors of scores on held-out images: 3 images give none, and words rest on values"
    assert few in report.not_covered


def test_a_lack_of_memory_is_not_called_a_mistake_of_the_images(monkeypatch):
    network = gated(0.5)
    monkeypatch.setattr(type(network), "attention", lambda *_: torch.empty(2**50))
    with pytest.raises(
        UnsupportedModelError, match=r"^there is not enough memory for the attention of Relative"
    ):
        analyze(network, noise(2, 6, 5, 6))
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=3)
    monkeypatch.setattr("convattn.heads.products.weights_of", lambda *_: torch.empty(2**50))
    with pytest.raises(UnsupportedModelError, match=r"^there is not enough memory .* of Vision"):
        analyze(vit, noise(2, 3, 32, 32))


def test_off_a_terminal_progress_is_a_line_at_times(monkeypatch, capsys):
    times = iter(range(0, 1000, 11))
    monkeypatch.setattr(
        "convattn.heads.analysis.time", SimpleNamespace(monotonic=lambda: next(times))
    )
    analyze(gated(0.3), noise(4, 6, 5, 6), controls=())
    lines = capsys.readouterr().err.splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"measured: \d of 4 images", line)


def test_weights_are_proved_where_heads_are_measured_and_not_again_in_controls(monkeypatch):
    proof = Product.proof
    proofs = []

    def counted(product, weights, first):
        proofs.append(first)
        return proof(product, weights, first)

    monkeypatch.setattr(Product, "proof", counted)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    report = analyze(vit, noise(5, 3, 32, 32), progress=False)
    assert len(report.layers[0].controls) == 2
    assert len(proofs) == 2  # of the images of the fit, and of those held out


class Mixed(nn.Module):
    """Attention on a grid, then along a sequence."""

    def __init__(self):
        super().__init__()
        self.grid = RelativeAttention2d(3, 4, 3, padding=1)
        self.line = RelativeAttention1d(4, 4, 3, padding=1)
        for layer in (self.grid, self.line):
            layer.encoding.sharpness = 5.0

    def forward(self, x):
        return self.line(self.grid(x).flatten(2))


def test_taps_are_those_of_heads_on_as_many_axes():
    torch.manual_seed(0)
    report = analyze(Mixed(), noise(12, 3, 6, 6), progress=False, controls=())
    assert len(report.taps(0, 2)) == 9
    assert report.taps(0, 2) == report.taps(0, 1)
    assert len(report.taps(1, 1)) == 3
    with pytest.raises(ArgumentError, match="first must be a layer's number from 0 to 1, but is 2"):
        report.taps(2, 1)


class Twice(nn.Module):
    """Runs a transformer on images and on their mirror images."""

    def __init__(self):
        super().__init__()
        options = {"img_size": 32, "embed_dim": 48, "depth": 1}
        self.vit = timm.create_model("vit_tiny_patch16_224", **options)

    def forward(self, x):
        return self.vit(x) + self.vit(x.flip(-1))


def test_each_call_of_a_layer_has_its_own_maps():
    network, x = Twice().eval(), noise(5, 3, 32, 32)
    names = ["vit.blocks.0.attn", "vit.blocks.0.attn (call 2)"]
    for read in (attention_maps, mean_maps):
        both = read(network, x)
        assert [*both] == names
        for name, image in zip(names, (x, x.flip(-1)), strict=True):
            (alone,) = read(network.vit, image).values()
            assert torch.equal(both[name], alone)
