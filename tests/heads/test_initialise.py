"""Weights of vision transformers that are changed in place: where heads look then, and what stays."""

from functools import partial

import pytest
import timm
import torch
from tests.heads.vit_cases import pixels, vit
from timm.layers import HybridEmbed
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional

from convattn import analyze, init_heads_

KINDS = ("mimetic", "impulse", "exact")
GRID = (4, 5)
WIDE = {"embed_dim": 36, "num_heads": 9}  # 4 × 5 patches have fewer rows than 36


def made(kind, **options):
    network = vit(GRID, **{**WIDE, **options})
    return network, init_heads_(network, kind, generator=torch.Generator().manual_seed(3))


def positions(network):
    patches = network.pos_embed[0, -GRID[0] * GRID[1] :].detach()
    return functional.layer_norm(patches, patches.shape[1:])


def attention(network, head):
    """The weights of a head of the first layer between P, by plain products."""
    layer = network.blocks[0].attn
    width = layer.head_dim
    rows = slice(head * width, (head + 1) * width)
    query, key, _ = layer.qkv.weight.detach().chunk(3)
    q_bias, k_bias, _ = layer.qkv.bias.detach().chunk(3)
    tokens = positions(network)
    queries, keys = (
        tokens @ matrix[rows].T + bias[rows] for matrix, bias in ((query, q_bias), (key, k_bias))
    )
    return (queries @ keys.T * width**-0.5).softmax(-1)


def on_tap(weights, tap):
    """The mean weight at a tap, query by query."""
    found = []
    for query in range(len(weights)):
        row, col = query // GRID[1] + tap[0], query % GRID[1] + tap[1]
        if 0 <= row < GRID[0] and 0 <= col < GRID[1]:
            found.append(weights[query, row * GRID[1] + col].item())
    return sum(found) / len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_modules_names_and_shapes_stay_and_the_network_runs(kind):
    network = vit(GRID, **WIDE)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modules = [type(module) for module in network.modules()]
    masses = init_heads_(network, kind)
    after = network.state_dict()
    assert [type(module) for module in network.modules()] == modules
    assert {name: value.shape for name, value in after.items()} == {
        name: value.shape for name, value in before.items()
    }
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    expected = {"attn.qkv.weight", "attn.qkv.bias"} | (
        {"attn.proj.weight"} if kind != "exact" else set()
    )
    assert changed == {f"blocks.{n}.{name}" for n in range(2) for name in expected}
    assert len(masses) == 2
    assert network(pixels(GRID)).isfinite().all()


@pytest.mark.parametrize("kind", ["impulse", "exact"])
def test_the_mass_is_that_of_the_heads_on_their_taps(kind):
    network, masses = made(kind)
    taps = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]
    shares = [on_tap(attention(network, head), tap) for head, tap in enumerate(taps)]
    assert masses[0] == pytest.approx(sum(shares) / 9, abs=1e-4)
    others = [on_tap(attention(network, head), taps[head - 1]) for head in range(9)]
    assert sum(others) < 0.3 * sum(shares)


def test_exact_heads_are_those_of_a_quadratic_encoding():
    """−α‖δ − Δ‖² at α = 20 leaves 4 e^−20 off the tap, and P has 20 independent rows: float32 rounding remains."""
    network, masses = made("exact")
    assert min(masses) > 1 - 1e-3
    rows, cols = torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij")
    places = torch.stack([rows.flatten(), cols.flatten()], 1)
    away = places[None] - places[:, None] - torch.tensor([-1.0, 1.0])
    expected = (-20 * away.square().sum(-1)).softmax(-1)
    assert (
        attention(network, 2) - expected
    ).abs().max() < 2e-2  # scores of some 100, rounded through P⁺


def test_narrow_heads_hold_less_of_an_impulse():
    narrow = made("impulse", embed_dim=18)[1]
    assert max(narrow) < min(made("impulse", embed_dim=72)[1]) - 0.2


def test_mimetic_products_are_near_the_identity():
    """W_Q W_Kᵀ of all width is 0.7 Z/√D + 0.7 I, and W_V W_out 0.4 Z/√D − 0.4 I: their traces tell, within 6 σ."""
    network, _ = made("mimetic", embed_dim=64, num_heads=1)
    layer = network.blocks[0].attn
    query, key, value = layer.qkv.weight.detach().chunk(3)
    noise = 6 * 64**-0.5 / 64**0.5
    assert (query.T @ key).trace().item() / 64 == pytest.approx(0.7, abs=0.7 * noise)
    assert (value.T @ layer.proj.weight.detach().T).trace().item() / 64 == pytest.approx(
        -0.4, abs=0.4 * noise
    )
    assert layer.qkv.bias[:128].abs().max() == 0


def test_a_seed_decides_and_another_kernel_has_other_taps():
    def weights(seed, **options):
        network = vit(GRID, **WIDE)
        init_heads_(network, "impulse", generator=torch.Generator().manual_seed(seed), **options)
        return network.blocks[1].attn.qkv.weight.detach()

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
    network = vit(GRID, **WIDE)
    init_heads_(network, "exact", kernel_size=(1, 3))
    shares = [on_tap(attention(network, head), (0, (head % 3) - 1)) for head in range(9)]
    assert min(shares) > 0.99


def test_prefix_tokens_and_masks_are_as_before():
    network = vit(GRID, **WIDE, reg_tokens=2)
    init_heads_(network, "exact")
    mask = torch.ones(1, 1, 23, 23, dtype=torch.bool)
    layer, tokens = network.blocks[0].attn, torch.randn(2, 23, 36)
    masked = layer(tokens, attn_mask=mask)
    size = masked.abs().max()
    assert (masked - layer(tokens)).abs().max() < 36 * torch.finfo(torch.float32).eps * size * 36


def test_analyze_finds_heads_on_their_taps_where_the_embedding_outweighs_the_patches():
    torch.manual_seed(0)
    network = timm.models.VisionTransformer(
        img_size=16,
        patch_size=4,
        depth=1,
        num_classes=2,
        class_token=False,
        global_pool="avg",
        **WIDE,
    ).eval()
    with torch.no_grad():
        network.pos_embed.mul_(1000)
    init_heads_(network, "exact")
    report = analyze(network, torch.randn(4, 3, 16, 16), controls=(), progress=False)
    (layer,) = report.layers
    assert min(head.position_score.value for head in layer.heads) > 0.9


def test_the_grid_is_that_of_the_tokens_where_a_network_cuts_an_image_into_patches():
    """Patches of a hybrid have one cell of its feature map."""
    backbone = torch.nn.Conv2d(3, 8, 16, 16)
    backbone.num_features = 8
    embedding = partial(HybridEmbed, backbone, feature_size=(4, 4))
    network = VisionTransformer(
        img_size=64, patch_size=1, embed_layer=embedding, embed_dim=24, depth=1, num_heads=3
    )
    (mass,) = init_heads_(network, "exact")
    assert mass > 0.99
