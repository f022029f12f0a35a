"""Where tokens lie, seen from outside: one position is moved, and the queries and keys that change are those there."""

import math

import pytest
import timm
import torch
from tests.heads.attention_cases import STAGES, TIMM, Case, timm_model
from tests.heads.attention_other_cases import ALL, CASES, SLOW
from tests.heads.watch_cases import drawn, seen_by
from torch import nn

from convattn.convert import network_to_attention
from convattn.heads.layout import OUTSIDE

TOLERANCE = 1e-11  # of float64 scores, which move by far more where a token changes, and by rounding elsewhere


def moved_tokens(x, grid, prefix):
    """Moves position i of image i + 1, in a grid of tokens with channels first or last, or in tokens after a prefix."""
    noise = torch.randn(
        x.shape[-1] if x.ndim == 3 or x.shape[2:] != grid else x.shape[1], dtype=x.dtype
    )
    moved = x.clone()
    for place in range(math.prod(grid)):
        row, col = divmod(place, grid[1])
        if x.ndim == 3:
            moved[place + 1, prefix + place] += noise
        elif tuple(x.shape[1:3]) == grid:
            moved[place + 1, row, col] += noise
        else:
            moved[place + 1, :, row, col] += noise
    return moved


def weights_of(case, given):
    """Runs the network on one image many times, of which each but the first has one position moved."""
    network = case.build().double()
    torch.manual_seed(1)
    for name, module in network.named_modules():
        if (
            isinstance(module, nn.Linear)
            and module.bias is not None
            and not name.endswith("proj_w")
        ):
            nn.init.normal_(
                module.bias
            )  # so that queries of padding are not zero, and see keys change
    places = math.prod(given)
    images = torch.randn(1, *case.size, dtype=torch.float64).repeat(
        places + 1, *(1,) * len(case.size)
    )
    handles = []
    if case.moved is None:
        rows, cols = (size // side for size, side in zip(case.size[1:], given, strict=True))
        patch = torch.randn(case.size[0], rows, cols, dtype=torch.float64)
        for place in range(places):
            row, col = divmod(place, given[1])
            images[place + 1, :, row * rows : (row + 1) * rows, col * cols : (col + 1) * cols] += (
                patch
            )
    else:

        def move(module, args, kwargs):
            tokens = kwargs.get("hidden_states", args[0] if args else None)
            prefix = tokens.shape[1] - places if tokens.ndim == 3 else 0
            tokens = moved_tokens(tokens, given, prefix)
            return (tokens, *args[1:]) if args else args, kwargs if args else {
                **kwargs,
                "hidden_states": tokens,
            }

        handles.append(
            network.get_submodule(case.moved).register_forward_pre_hook(move, with_kwargs=True)
        )
    (call,) = seen_by(network, images, layers=case.layer)
    assert call.name == case.layer
    return call


def changed(call, *, exact=True):
    """Tells which queries (places, groups, queries) and keys (places, groups, keys) changed with each position.

    The log of a weight is a score less what the query's row has in common. A key that changes moves a column of
    differences, a query a whole row, each off the middle of its row. One of each can change, so two in a row or column
    are enough; keys and queries of padding do not differ among themselves, so that not all need move. If several can
    change, most of a row or column must.
    """
    seen = call.weights > 1e-30
    logs = torch.where(seen, call.weights, 1).log()
    moved = (logs[1:] - logs[:1]).sum(2)  # over heads, which move at random
    allowed = torch.ones_like(moved[:1], dtype=torch.bool)
    if call.layout.allowed is not None:
        allowed = call.layout.allowed[None]
    moved = torch.where(allowed, moved, torch.nan)
    off = ((moved - moved.nanmedian(-1, keepdim=True).values).abs() > TOLERANCE) & allowed
    if exact:
        return off.sum(-1) > 1, off.sum(-2) > 1
    return off.sum(-1) > 0.6 * allowed.sum(-1), off.sum(-2) > 0.6 * allowed.sum(-2)


@pytest.mark.parametrize("case", CASES)
def test_tokens_lie_where_the_layout_says(case):
    given = case.grid
    if case.layer == "stages.1.blocks.0.attn":  # its queries are pooled from a grid twice as large
        given = (16, 16)
    call = weights_of(case, given)
    layout = call.layout
    assert (layout.pattern, layout.grid) == (case.pattern, case.grid)
    queries, keys = changed(call, exact=case.exact and case.pattern != "class token")
    places = torch.cartesian_prod(*(torch.arange(size) for size in given)).double()
    ratio = torch.tensor([size / side for size, side in zip(given, layout.grid, strict=True)])
    if case.exact and case.pattern != "class token":
        found = torch.arange(len(places))[:, None, None] == layout.queries
        assert torch.equal(queries, found)
    elif case.pattern != "class token":
        assert_centred(
            queries[:, layout.queries >= 0],
            places,
            layout.query_positions()[layout.queries >= 0] * ratio,
        )
    with_place = ~layout.key_prefix.expand(layout.groups, -1)
    inside = with_place & (
        (layout.keys >= 0) & (layout.keys * ratio <= torch.tensor(given) - 1)
    ).all(-1)
    assert not keys[:, ~inside].any()
    assert_centred(keys[:, inside], places, layout.keys[inside] * ratio)


def assert_centred(moved, places, expected):
    """The positions that move a token lie around it; only at the border may some of them be missing."""
    count = moved.sum(0)
    assert (count > 0).all()
    whole = count == count.max()
    middle = (moved.double().T @ places)[whole] / count[whole, None]
    assert torch.equal(middle, expected[whole])


def test_padding_is_neither_a_position_nor_a_prefix():
    case = TIMM["shifted windows, padded"]
    layout = weights_of(case, case.grid).layout
    assert (layout.queries == OUTSIDE).sum() == 8 * 12 - 7 * 10
    assert layout.prefix == 0
    assert layout.queries[layout.queries >= 0].sort().values.tolist() == list(range(70))


def test_a_patch_embedding_that_was_converted_still_tells_the_grid():
    network = timm.create_model("vit_tiny_patch16_224", img_size=(48, 32), depth=1).eval()
    images = torch.randn(1, 3, 48, 32)
    layouts = []
    for one in (network, network_to_attention(network, images=images)[0]):
        (call,) = seen_by(one, images, layers="blocks.0.attn")
        layouts.append(call.layout)
    before, after = layouts
    assert (
        (after.grid, after.prefix, after.pattern)
        == (before.grid, before.prefix, before.pattern)
        == ((3, 2), 1, "global")
    )
    assert torch.equal(after.queries, before.queries)
    assert torch.equal(after.keys, before.keys)


def test_a_wrong_layout_is_noticed():
    """The negative control: windows read as if they were not shifted."""
    case = TIMM["shifted windows"]
    call = weights_of(case, case.grid)
    queries, _ = changed(call)
    wrong = weights_of(TIMM["windows"], case.grid).layout.queries
    assert not torch.equal(queries, torch.arange(math.prod(case.grid))[:, None, None] == wrong)


READ = {
    **{name: ALL[name] for name in SLOW},
    "heads before blocks, after a convolution": TIMM["heads before blocks"]._replace(
        layer="levels.1.transformer_encoder.0.attn", grid=(8, 8)
    ),
    "windows of an image with channels first": Case(
        timm_model("davit_tiny", **STAGES, window_size=4),
        (3, 44, 60),
        "stages.0.blocks.0.0.attn",
        "windows",
        (11, 15),
    ),
    "windows of an image with channels last": Case(
        timm_model("tiny_vit_5m_224", **STAGES, window_sizes=(2, 4, 4, 2)),
        (3, 40, 56),
        "stages.1.blocks.0.attn",
        "windows",
        (5, 7),
    ),
    "whole images between stages": Case(
        timm_model(
            "coatnet_pico_rw_224", img_size=(64, 96), depths=(1, 1, 1, 1), embed_dim=(32,) * 4
        ),
        (3, 64, 96),
        "stages.2.blocks.0.attn",
        "global",
        (4, 6),
    ),
}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_one_image_tells_the_layout(case):
    """The quick part of `test_tokens_lie_where_the_layout_says`, which moves the tokens one by one."""
    images = drawn(*case.size, images=1).double()
    (call,) = seen_by(case.build().double(), images, layers=case.layer)
    layout = call.layout
    assert (call.name, layout.pattern, layout.grid, layout.prefix) == (case.layer, *case[3:6])
    assert call.error <= call.budget
    assert call.normalised is case.normalised
    assert call.weights.shape[1::2] == (layout.groups, layout.queries.shape[1])
    assert sorted(layout.queries[layout.queries >= 0].tolist()) == list(range(layout.positions))


def test_a_network_around_changes_no_layout():
    case = READ["windows of an image with channels first"]
    around = nn.Sequential(case.build())
    (call,) = seen_by(around, drawn(*case.size), layers=f"0.{case.layer}")
    assert (call.layout.pattern, call.layout.grid) == (case.pattern, case.grid)
