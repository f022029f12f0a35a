"""Vision transformers and parts of them whose heads are not initialised."""

import pytest
import timm
import torch
from tests.convert.network.network_cases import assert_unchanged, fingerprint
from tests.heads.vit_cases import vit
from torch import nn
from torch.nn.utils import parametrizations

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import init_heads_

BLOCKS = timm.models.vision_transformer
WIDTHS = {"embed_dim": 18, "num_heads": 9}

NETWORKS = {
    "swin_tiny_patch4_window7_224": "SwinTransformer",
    "beit_base_patch16_224": "Beit",
    "naflexvit_base_patch16_gap": "NaFlexVit",
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


@pytest.mark.parametrize(("name", "kind"), NETWORKS.items())
def test_networks_are_refused_by_name(name, kind):
    with torch.device("meta"):
        network = timm.create_model(name)
    with pytest.raises(UnsupportedModelError) as caught:
        init_heads_(network, "exact")
    assert str(caught.value).startswith(
        f"cannot initialise the heads of {kind}: supported are VisionTransformer and"
    )


@pytest.mark.parametrize(("build", "line"), PARTS.values(), ids=PARTS)
def test_parts_are_refused_by_name(build, line):
    network = build()
    with pytest.raises(UnsupportedModelError) as caught:
        init_heads_(network, "exact")
    first, second, *_ = str(caught.value).splitlines()
    assert (first, second) == ("cannot initialise the heads of VisionTransformer:", line)


def test_what_is_no_network_or_has_no_weights_is_refused(without_type_checks):
    with pytest.raises(UnsupportedModelError, match="heads of str: supported are"):
        init_heads_("vit_tiny_patch16_224", "exact")
    with pytest.raises(
        ArgumentError, match=r"^vit must have weights, but cls_token is on the meta device$"
    ):
        init_heads_(vit(**WIDTHS).to("meta"), "exact")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "exakt"}, ArgumentError, r"^unknown kind 'exakt': did you mean 'exact'\?"),
        ({"kind": "exact", "kernel_size": 2}, ArgumentError, r"^kernel_size must be odd"),
        ({"kind": "exact"}, UnsupportedModelError, r"^heads must be at least 3 wide .* are 2$"),
    ],
)
def test_what_is_out_of_range_is_refused_and_nothing_changes(
    options, error, message, without_type_checks
):
    network = vit(**WIDTHS)
    before = fingerprint(network)
    with pytest.raises(error, match=message):
        init_heads_(network, **options)
    assert_unchanged(network, before)


def test_a_network_without_a_position_embedding_is_refused():
    with pytest.raises(
        UnsupportedModelError, match=r"VisionTransformer: it has no position embedding$"
    ):
        init_heads_(vit(**WIDTHS, pos_embed="none"), "impulse")
