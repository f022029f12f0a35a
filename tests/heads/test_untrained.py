"""Networks as they were before training: what their heads are called, and what is said where no rule draws them."""

import pytest
import timm
import torch
import torchvision
import transformers
from tests.heads.analyze_cases import noise
from tests.heads.report_cases import SIZES
from torch import nn

from convattn import network_to_attention
from convattn.errors import UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.controls import UNTRAINED
from convattn.heads.untrained import untrained
from convattn.models import AttentionNet

VIT = {"image_size": 16, "patch_size": 4, **SIZES}
SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 12, "depths": (2,), "num_heads": (3,)}
BEIT = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3}
FRESH = {
    "timm Swin": (lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN), 32),
    "timm BEiT": (lambda: timm.models.beit.Beit(**BEIT, use_rel_pos_bias=True), 16),
    "timm ViT": (lambda: timm.models.VisionTransformer(**BEIT), 16),
    "torchvision ViT": (lambda: torchvision.models.VisionTransformer(16, 4, 2, 3, 12, 20), 16),
    "torchvision Swin": (
        lambda: torchvision.models.SwinTransformer([4, 4], 12, [2], [3], [4, 4]),
        32,
    ),
    "torchvision MaxViT": (
        lambda: torchvision.models.MaxVit((64, 64), 8, 4, [8, 8], [1, 1], 4, 0.0),
        64,
    ),
    "Swin": (
        lambda: transformers.SwinModel(
            transformers.SwinConfig(
                image_size=32, embed_dim=12, depths=[2], num_heads=[3], window_size=4
            )
        ),
        32,
    ),
    "BEiT": (
        lambda: transformers.BeitModel(
            transformers.BeitConfig(**VIT, use_relative_position_bias=True)
        ),
        16,
    ),
    "ViT": (lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)), 16),
    "CLIP": (lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VIT)), 16),
}
"""Networks as they are initialised, and the size of their images."""


@pytest.mark.parametrize("name", FRESH)
def test_no_head_of_a_fresh_network_is_a_convolution(name):
    build, size = FRESH[name]
    torch.manual_seed(0)
    report = analyze(build().eval(), noise(12, 3, size, size), progress=False)
    by_position = {"convolution", "neighbour", "window", "row", "column", "half-plane"}
    assert not [line for line in report.not_covered if UNTRAINED in line]
    for layer in report.layers:
        assert UNTRAINED in layer.controls
        for verdict in (*layer.verdicts, *layer.verdicts_in(UNTRAINED)):
            assert verdict.word not in by_position, layer.name
            assert not verdict.by_construction, layer.name


def planted(name, table, index):
    """A fresh network of which head h of each layer looks at displacement `TAPS[h]`, by a table of biases."""
    torch.manual_seed(0)
    network = FRESH[name][0]().eval()
    for part in network.modules():
        biases = getattr(part, table, None)
        if biases is not None:
            with torch.no_grad():
                for head, tap in enumerate(TAPS):
                    biases[index(tap), head] = 12.0
    return network


TAPS = {(1, 0): "1 below", (0, -1): "1 left", (0, 0): "itself"}
TABLES = {
    "timm Swin": "relative_position_bias_table",
    "torchvision Swin": "relative_position_bias_table",
    "timm BEiT": "relative_position_bias_table",
    "Swin": "relative_position_bias_table",
    "BEiT": "relative_position_bias_table",
}


@pytest.mark.parametrize("name", TABLES)
def test_planted_tables_are_told_with_their_place(name):
    """A table of 7 × 7 differences of positions, query minus key, row by row, as of 4 × 4 windows or patches."""
    network = planted(name, TABLES[name], lambda tap: 7 * (3 - tap[0]) + 3 - tap[1])
    size = FRESH[name][1]
    report = analyze(network, noise(12, 3, size, size), progress=False)
    for layer in report.layers:
        assert [verdict.place for verdict in layer.verdicts] == [*TAPS.values()], layer.name
        words = {verdict.word for verdict in layer.verdicts}
        assert words <= {"convolution", "neighbour"}, layer.name
        assert not any(verdict.by_construction for verdict in layer.verdicts)
        assert {verdict.word for verdict in layer.verdicts_in(UNTRAINED)} == {"anywhere"}
    assert "the architecture does it" not in report.headline()


def test_heads_that_start_at_a_place_are_so_by_construction():
    torch.manual_seed(0)
    network = timm.create_model(
        "convit_tiny", img_size=64, embed_dim=12, num_heads=4, depth=2, local_up_to_layer=1
    ).eval()
    report = analyze(network, noise(12, 3, 64, 64), progress=False)
    first, last = report.layers
    assert {str(verdict) for verdict in first.verdicts} == {"convolution (by construction)"}
    assert not any(verdict.by_construction for verdict in last.verdicts)


class Positions(nn.Module):
    """Attention to patches with positions that no rule draws."""

    def __init__(self):
        super().__init__()
        self.attn = timm.layers.Attention(12, 3)
        self.patch_embed = nn.Conv2d(3, 12, 4, 4)
        self.num_prefix_tokens = 0
        self.place = nn.Parameter(torch.randn(1, 16, 12))

    def forward(self, x):
        return self.attn(self.patch_embed(x).flatten(2).mT + self.place)


class DrawnPositions(Positions):
    """The same with a rule."""

    def reset_parameters(self):
        nn.init.normal_(self.place)


def test_a_control_that_cannot_be_had_says_so():
    for kind in (Positions, DrawnPositions):
        report = analyze(kind().eval(), noise(12, 3, 16, 16), progress=False)
        said = [line for line in report.not_covered if line.startswith(UNTRAINED)]
        had = UNTRAINED in report.layers[0].controls
        expected = [
            "untrained weights: nothing says how place starts; a method `reset_parameters` of Positions would"
        ]
        assert (said, had) == ((expected, False) if kind is Positions else ([], True))
        assert not any(verdict.by_construction for verdict in report.layers[0].verdicts)


def test_weights_are_drawn_by_their_classes_and_nothing_else_changes():
    network = timm.models.VisionTransformer(**BEIT, reg_tokens=2, init_values=0.5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(7.0)
    before = torch.random.get_rng_state()
    drawn = untrained(network, 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(bool((parameter == 7).all()) for parameter in network.parameters())
    again = untrained(network, 3)
    other = untrained(network, 4)
    for name, parameter in drawn.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
        if name.endswith(("norm1.weight", "norm.weight")):
            assert bool((parameter == 1).all()), name
        elif name.endswith("gamma"):
            assert bool((parameter == 0.5).all()), name
        elif name.endswith("pos_embed") or "qkv.weight" in name:
            assert 0.01 < parameter.std() < 0.03, name
            assert not torch.equal(parameter, other.get_parameter(name)), name


def test_tied_weights_stay_tied():
    layer = nn.Linear(5, 5)
    one, other = untrained(nn.ModuleList([layer, layer]), 0)
    assert one is other


def test_a_network_of_this_library_draws_with_its_own_deviation():
    network = AttentionNet(width=32, depth=1, heads=4, ffn=32, initializer_range=0.3)
    drawn = untrained(network, 5)
    for name in ("embed.weight", "blocks.0.mixer.values.weight", "head.weight"):
        assert 0.2 < drawn.get_parameter(name).std() < 0.4, name
    assert not drawn.embed.bias.any()
    assert not drawn.blocks[0].mixer.bias.any()


def test_layers_of_this_library_are_built_again():
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)).eval()
    converted, _ = network_to_attention(conv, images=noise(2, 3, 5, 7))
    for network in (converted, AttentionNet(width=8, depth=1, heads=4, ffn=8)):
        drawn = untrained(network, 5)
        assert drawn.state_dict().keys() == network.state_dict().keys()
        names = [name for name, _ in network.named_parameters()]
        drawn_at_random = [name for name in names if name.endswith(("centres", "values.weight"))]
        assert drawn_at_random
        for name in drawn_at_random:
            assert not torch.equal(drawn.get_parameter(name), network.get_parameter(name)), name


class Failing(nn.Linear):
    """A layer whose rule fails."""

    def init_weights(self):
        raise OSError("no file")


def test_a_rule_that_fails_is_told():
    with pytest.raises(UnsupportedModelError, match=r"its weights anew raised OSError..no file"):
        untrained(Failing(5, 5), 0)


def test_weights_that_a_parametrisation_computes_have_no_rule():
    network = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)))
    with pytest.raises(
        UnsupportedModelError, match=r"how 0\.parametrizations\.weight\.original0 s"
    ):
        untrained(network, 0)
