"""Vision transformers and parts of them that have no convolution for a start."""

import copy

import pytest
import timm
import torch
from tests.convert.network.network_cases import assert_unchanged, fingerprint
from tests.heads.vit_cases import vit
from torch import nn
from torch.nn.utils import parametrizations

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import convolutional_init

BLOCKS = timm.models.vision_transformer
WINDOWS = "it attends in windows, not over the grid of patches"
WIDTHS = {"embed_dim": 18, "num_heads": 9}

NETWORKS = {
    "swin_tiny_patch4_window7_224": ("SwinTransformer", WINDOWS),
    "swinv2_tiny_window8_256": ("SwinTransformerV2", WINDOWS),
    "samvit_base_patch16_224": ("VisionTransformerSAM", WINDOWS),
    "vit_relpos_small_patch16_224": (
        "VisionTransformerRelPos",
        "it has its own relative positions",
    ),
    "beit_base_patch16_224": ("Beit", "it has its own relative positions"),
    "eva02_tiny_patch14_224": ("Eva", "it rotates queries and keys by their positions"),
    "naflexvit_base_patch16_gap": (
        "NaFlexVit",
        "supported are VisionTransformer and VisionTransformerDistilled of",
    ),
    "cait_xxs24_224": (
        "Cait",
        "supported are VisionTransformer and VisionTransformerDistilled of timm, ViTModel",
    ),
}


def hooked():
    network = vit(**WIDTHS)
    network.blocks[0].attn.register_forward_hook(lambda *_: None)
    return network


def weight_normalised():
    network = vit(**WIDTHS)
    parametrizations.weight_norm(network.blocks[0].attn.qkv)
    return network


def replaced():
    network = vit(**WIDTHS)
    network.blocks[0].attn.proj = nn.Sequential(network.blocks[0].attn.proj)
    return network


def unfinished():
    network = vit(**WIDTHS)
    with torch.no_grad():
        network.blocks[0].attn.proj.weight[0, 0] = torch.nan
    return network


def gated_heads():
    network = vit(**WIDTHS)
    network.blocks[0].attn = timm.layers.Attention(18, 9, gated=True)
    return network


PARTS = {
    "one product": (
        lambda: vit(**WIDTHS, block_fn=BLOCKS.ParallelScalingBlock),
        "  blocks.0 (ParallelScalingBlock): it computes attention and feed-forward in one product",
    ),
    "difference": (
        lambda: vit(embed_dim=32, num_heads=4, attn_layer="diff"),
        "  blocks.0.attn (DiffAttention): it takes the difference of two attentions",
    ),
    "normalised heads": (
        lambda: vit(**WIDTHS, scale_attn_norm=True),
        "  blocks.0.attn (Attention): it normalises the heads' outputs, which no convolution does",
    ),
    "gated heads": (
        gated_heads,
        "  blocks.0.attn (Attention): it multiplies the heads' outputs by a gate, which no convolution does",
    ),
    "hooks": (
        hooked,
        "  blocks.0.attn (Attention): it has hooks, which would be lost; remove them first",
    ),
    "parametrised": (
        weight_normalised,
        "  blocks.0.attn (Attention): its qkv has a parametrised weight; make it permanent first",
    ),
    "replaced": (
        replaced,
        "  blocks.0.attn (Attention): its proj must be an nn.Linear, but is a Sequential",
    ),
    "dropped patches": (
        lambda: vit(**WIDTHS, patch_drop_rate=0.5),
        "  patch_drop (PatchDropout): it drops patches, and the remaining ones form no grid",
    ),
}


@pytest.mark.parametrize(("name", "expected"), NETWORKS.items(), ids=NETWORKS)
def test_networks_are_refused_by_name(name, expected):
    with torch.device("meta"):
        network = timm.create_model(name)
    kind, reason = expected
    with pytest.raises(UnsupportedModelError) as caught:
        convolutional_init(network)
    assert str(caught.value).startswith(f"cannot initialise {kind} as a convolution: {reason}")


@pytest.mark.parametrize(("build", "line"), PARTS.values(), ids=PARTS)
def test_parts_are_refused_by_name(build, line):
    network = build()
    with pytest.raises(UnsupportedModelError) as caught:
        convolutional_init(network)
    first, second, *_ = str(caught.value).splitlines()
    assert (first, second) == ("cannot initialise VisionTransformer as a convolution:", line)


def test_what_is_no_network_or_has_no_weights_is_refused(without_type_checks):
    with pytest.raises(
        ArgumentError, match=r"^vit must be a network \(torch\.nn\.Module\), but is of type str$"
    ):
        convolutional_init("vit_tiny_patch16_224")
    with pytest.raises(
        ArgumentError, match=r"^vit must have weights, but cls_token is on the meta device$"
    ):
        convolutional_init(vit(**WIDTHS).to("meta"))


def test_numbers_that_are_not_finite_are_refused():
    network = unfinished()
    before = fingerprint(network)
    with pytest.raises(
        UnsupportedModelError,
        match=r"^blocks\.0\.attn: .* must be finite, but holds \d+ NaN or infinite numbers?$",
    ):
        convolutional_init(network)
    assert_unchanged(network, before)


def test_a_network_that_was_initialised_is_refused():
    made, _ = convolutional_init(vit(**WIDTHS))
    with pytest.raises(
        UnsupportedModelError,
        match=r"blocks\.0\.attn\.tokens \(GatedPatchAttention\): it mixes what two attentions gave out",
    ):
        convolutional_init(copy.deepcopy(made))
