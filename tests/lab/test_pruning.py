import copy

import pytest
import torch
from tests.models.network_cases import run, small_images
from torch import nn

from convattn import load_network, save_network
from convattn.budget import assert_within_budget, references
from convattn.encodings import Distance, GeneralizedQuadratic, Quadratic
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.lab import degenerate_heads, prune_heads
from convattn.layers import RelativeAttention2d
from convattn.models import AttentionNet, ConvNet

SMALL = {"width": 14, "depth": 3, "heads": 5, "ffn": 11, "num_classes": 5}
DEGENERATE = ([1, 4], [], [0, 2, 3])
"""Heads of each block that `damaged` makes degenerate."""


def with_eigenvalues(*pairs, angle=0.7):
    """Heads whose Σ⁻¹ has these eigenvalues, on axes turned by an angle."""
    encoding, turn = (
        GeneralizedQuadratic(len(pairs), 2).double(),
        torch.tensor(angle, dtype=torch.float64),
    )
    rotation = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()]).view(2, 2)
    with torch.no_grad():
        encoding.shape.copy_(
            torch.diag_embed(torch.tensor(pairs, dtype=torch.float64).sqrt()) @ rotation
        )
    return encoding


def damaged(encoding="generalized_quadratic", **options):
    """A network of which `DEGENERATE` heads are flat, or look at a line."""
    torch.manual_seed(0)
    network = AttentionNet(encoding, **{**SMALL, "initializer_range": 0.3, **options}).eval()
    for block, heads in zip(network.blocks, DEGENERATE, strict=True):
        for head in heads:
            flatten(block.mixer.encoding, head)
    return network


@torch.no_grad()
def flatten(encoding, head):
    """Makes a head flat; of a generalised one with an odd number, a line."""
    if isinstance(encoding, Quadratic):
        encoding.root_sharpness[head] = 0.05
    else:
        encoding.shape[head] = (
            torch.tensor([[1.0, 0.0], [1.0, 0.0]]) if head % 2 else 0.03 * torch.eye(2)
        )


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((1.0, 1.0), False),
        ((0.0, 0.0), True),
        ((1.01 / 256, 1.01 / 256), False),
        ((0.99 / 256, 0.99 / 256), True),
        ((1.0, 1.01e-3), False),
        ((1.0, 0.99e-3), True),
        ((1.0, 0.0), True),
    ],
)
def test_heads_are_degenerate_by_the_eigenvalues_of_their_precision(pair, expected):
    found = degenerate_heads(with_eigenvalues((2.0, 1.0), pair))
    assert found.tolist() == [False, expected]


@pytest.mark.parametrize("sharpness", [0.49 / 256, 0.51 / 256])
def test_quadratic_head_is_flat_where_two_alpha_is_below_the_bound(sharpness):
    assert degenerate_heads(Quadratic(1, 2, sharpness=sharpness)).item() is (
        2 * sharpness < 1 / 256
    )


def test_fresh_heads_are_not_degenerate():
    torch.manual_seed(0)
    for kind in (Quadratic, GeneralizedQuadratic):
        assert not degenerate_heads(kind(1000, 2)).any()


@pytest.mark.parametrize(
    ("centre", "least"), [((0.0, 0.0), 251), ((4.0, 4.0), 245), ((-4.0, 4.0), 245)]
)
def test_head_at_the_bound_covers_as_much_of_the_papers_grid_as_is_said(centre, least):
    layer = RelativeAttention2d(
        1, 1, num_heads=1, encoding=Quadratic(1, 2, centres=[centre], sharpness=1 / 512)
    ).double()
    weights = layer.attention((16, 16)).detach()[0].flatten(2)
    covered = (-(weights * weights.log()).sum(-1)).exp()
    assert least < covered.min() < least + 1
    if centre == (0.0, 0.0):
        middle = weights[8, 8]
        assert (
            abs(middle.max() / middle.min() - torch.e**0.25) < 256 * torch.finfo(torch.float64).eps
        )


def silenced(network):
    """Takes from the degenerate heads what they contribute, by setting their matrices to zero."""
    silent = copy.deepcopy(network)
    with torch.no_grad():
        for block, heads in zip(silent.blocks, DEGENERATE, strict=True):
            block.mixer.values.weight[heads] = 0
    return silent


@pytest.mark.parametrize("encoding", ["quadratic", "generalized_quadratic"])
def test_pruning_removes_exactly_what_the_heads_contribute(encoding):
    network, images = damaged(encoding), small_images()
    before = copy.deepcopy(network.state_dict())
    pruned, silent = prune_heads(network), silenced(network)
    assert pruned.heads == (3, 5, 2)
    hi, lows = references(run, silent, images)
    assert_within_budget(pruned(images), hi, lows)
    with pytest.raises(
        AssertionError, match="result: error"
    ):  # negative control: the heads did contribute
        assert_within_budget(network(images), hi, lows)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert not {t.data_ptr() for t in network.parameters()} & {
        t.data_ptr() for t in pruned.parameters()
    }


def test_pruned_network_keeps_mode_dtype_and_frozen_parameters():
    network = damaged().double().train()
    network.blocks[0].mixer.encoding.centres.requires_grad_(False)
    pruned = prune_heads(network)
    assert pruned.training
    assert not pruned.blocks[0].mixer.encoding.centres.requires_grad
    assert pruned.blocks[0].mixer.values.weight.requires_grad
    assert {parameter.dtype for parameter in pruned.parameters()} == {torch.float64}
    pruned(small_images().double()).square().sum().backward()
    assert all(p.grad is not None for p in pruned.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"centres": "grid", "heads": 9},
        {"encoding_options": {"centres": [[0.0, 0.0], [0, 1], [1, 0], [1, 1], [0, 2]]}},
    ],
    ids=["drawn", "grid", "given"],
)
def test_pruned_network_is_saved_loaded_and_pruned_again(tmp_path, options):
    pruned = prune_heads(damaged(**options))
    save_network(pruned, tmp_path)
    loaded = load_network(tmp_path)
    assert torch.equal(loaded(small_images()), pruned(small_images()))
    assert (
        loaded.heads
        == pruned.heads
        == tuple(options.get("heads", 5) - len(heads) for heads in DEGENERATE)
    )
    assert prune_heads(loaded).heads == loaded.heads
    assert loaded.flops(10) == pruned.flops(10)
    assert pruned.flops(10).mixing < AttentionNet(**{**SMALL, **options}).flops(10).mixing


def test_block_of_degenerate_heads_keeps_the_sharpest():
    network = damaged()
    shapes = torch.stack([scale * torch.eye(2) for scale in (0.01, 0.02, 0.05, 0.0, 0.03)])
    with torch.no_grad():
        network.blocks[1].mixer.encoding.shape.copy_(shapes)
    pruned = prune_heads(network)
    assert pruned.heads == (3, 1, 2)
    for name in ("values.weight", "encoding.centres", "encoding.shape"):
        kept, all_heads = (net.blocks[1].mixer.get_parameter(name) for net in (pruned, network))
        assert torch.equal(kept, all_heads[2:3])


def test_sound_network_is_copied_whole():
    torch.manual_seed(0)
    network = AttentionNet(**SMALL).eval()
    pruned = prune_heads(network)
    assert torch.equal(pruned(small_images()), network(small_images()))


def test_other_encodings_are_refused(without_type_checks):
    with pytest.raises(
        ArgumentError,
        match=r"encoding must be one whose heads have centres and widths, .* but is .Distance.",
    ):
        degenerate_heads(Distance(3, 2))


def test_networks_whose_heads_cannot_be_judged_are_refused(without_type_checks):
    with pytest.raises(
        ArgumentError, match=r"encoding must be one whose heads have .* but is 'Distance'"
    ):
        prune_heads(AttentionNet("distance", **SMALL))
    for gated in (False, True):
        with pytest.raises(ArgumentError, match="network must be without content"):
            prune_heads(AttentionNet(content=True, gated=gated, **SMALL))
    with pytest.raises(ArgumentError, match="network must be an AttentionNet, but is 'ConvNet'"):
        prune_heads(ConvNet(width=4, depth=1))
    network = AttentionNet(**SMALL)
    network.blocks[1].mixer = nn.Conv2d(14, 14, 1)
    with pytest.raises(
        UnsupportedModelError,
        match="cannot prune block 1: its mixer is Conv2d, not RelativeAttention2d",
    ):
        prune_heads(network)


@pytest.mark.parametrize("name", ["centres", "shape"])
def test_diverged_networks_are_refused_and_left_alone(name):
    network = damaged()
    with torch.no_grad():
        network.blocks[2].mixer.encoding.get_parameter(name)[1] = torch.nan
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(
        ArgumentError, match=r"encoding must be of finite numbers, but is GeneralizedQuadratic\("
    ):
        prune_heads(network)
    assert all(
        torch.equal(before[key].nan_to_num(), t.nan_to_num())
        for key, t in network.state_dict().items()
    )
