"""What readers of layouts make of a call and the modules around it, and what they refuse, with the reason."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from convattn.errors import UnsupportedModelError
from convattn.heads.families.attention_class import AttentionClass, CallContext
from convattn.heads.families.reduced_keys import cell_centres, read_pooled, read_reduced
from convattn.heads.families.timm_vits import read_class_token, read_patches, read_tokens
from convattn.heads.families.transformers_encoders import read_sequence, read_tower
from convattn.heads.families.window_attention import read_sam
from convattn.heads.layout import Layout, global_layout, on_grid


def module(**attributes):
    """A module of a class of its own that has attributes, some of which are modules."""
    made = nn.Module()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def seen(queries, keys, *arguments, inside=None, around=(), given=(), features=None, **named):
    """A call with arguments, in a module, with modules around it, of which the first was given something."""
    parents = tuple(CallContext("around", part, given, {}) for part in around)
    layer = module() if inside is None else inside
    return CallContext(
        "layer", layer, arguments, named, parents, (2, 3, queries, keys), features or {}
    )


def pooling(**options):
    return nn.Conv2d(4, 4, **{"kernel_size": 3, "stride": 2, "padding": 1, **options})


def pooled(query, key, sizes=None, prefix=False):
    """A call of pooled attention on 5 × 7 tokens; `sizes` are those of the grids that its convolutions gave out."""
    inside = module(pool_q=query, pool_k=key, has_cls_token=prefix)
    shapes = [(2, 4, *grid) for grid in sizes or ()]
    counts = [prefix + torch.Size(grid).numel() for grid in sizes or ()] or [35 + prefix] * 2
    convolutions = [part for part in (query, key) if isinstance(part, nn.Conv2d)]
    return seen(
        *counts,
        None,
        (5, 7),
        inside=inside,
        features=dict(zip(convolutions, shapes[-2:], strict=False)),
    )


def test_pooled_queries_and_keys_lie_where_their_kernels_do():
    layout = read_pooled(pooled(pooling(), pooling(stride=(2, 3)), [(3, 4), (3, 3)], prefix=True))
    assert (layout.pattern, layout.grid, layout.prefix) == ("reduced keys", (3, 4), 1)
    assert layout.keys[0, 1:].tolist() == [[row, 1.5 * col] for row in range(3) for col in range(3)]
    assert layout.key_prefix.tolist() == [True] + [False] * 9


def reduced(queries, keys, reduction=None, counts=None, **named):
    features = {} if counts is None else {next(reduction.modules()): (2, 4, *counts)}
    inside = module() if reduction is None else module(sr=reduction)
    return seen(queries, keys, None, inside=inside, features=features, **named)


def test_keys_of_a_reducing_convolution_are_cells_of_the_grid():
    step = nn.Conv2d(4, 4, kernel_size=(2, 3), stride=(2, 3))
    layout = read_reduced(reduced(24, 6, step, (2, 3), height=4, width=9 - 3))
    assert layout.grid == (4, 6)
    assert layout.keys[0].tolist() == [[row, col] for row in (0.5, 2.5) for col in (1.0, 4.0, 7.0)]


def test_cells_lie_where_adaptive_pooling_and_kernels_average_positions():
    """Off the border, a kernel that averages what it sees gives the middle of the places that it sees."""
    positions = torch.arange(11.0, dtype=torch.float64)
    means = {nn.Conv2d(1, 1, 1): nn.functional.adaptive_avg_pool1d(positions[None], 4)[0]}
    for options in ((3, 3), (3, 2, 1), (2, 3, 1), (3, 2, 2, 2)):
        convolution = nn.Conv2d(1, 1, *options, bias=False).double()
        nn.init.constant_(convolution.weight, 1 / convolution.weight.numel())
        means[convolution] = convolution(positions.expand(1, 11, 11))[0, 1]
    for convolution, line in means.items():
        call = seen(9, 9, features={convolution: (2, 4, len(line), len(line))})
        rows, cols = cell_centres(call, convolution, (11, 11))
        assert torch.equal(rows, cols)
        assert (cols - line)[1:-1].abs().max() < 1e-12, convolution


def test_blocks_without_windows_attend_to_all_patches():
    block = module(norm1=nn.Identity(), attn=nn.Identity(), window_size=0)
    layout = read_sam(seen(35, 35, around=[block], given=(torch.zeros(2, 5, 7, 4),)))
    assert (layout.pattern, layout.grid) == ("global", (5, 7))


PATCHES = module(patch_embed=nn.Conv2d(3, 4, 2), num_prefix_tokens=1)
GRID = {PATCHES.patch_embed: (2, 4, 5, 7)}
REFUSED = {
    "pooled by no convolution": (
        read_pooled,
        pooled(nn.MaxPool2d(3), None),
        "its tokens are pooled by no convolution with padding in numbers",
    ),
    "pooled with padding in words": (
        read_pooled,
        pooled(pooling(stride=1, padding="same"), None),
        "its tokens are pooled by no convolution with padding in numbers",
    ),
    "pooled to another number": (
        read_pooled,
        pooled(None, None, [(3, 4), (3, 3)]),
        "12 queries and 9 keys are not the 35 and 35 of 5 × 7 positions and 0 prefix tokens",
    ),
    "other queries than the grid": (
        read_reduced,
        reduced(37, 6, feat_size=(5, 7)),
        "37 queries are not 5 × 7 positions, with a class token or not",
    ),
    "nothing reduces": (
        read_reduced,
        reduced(35, 6, feat_size=(5, 7)),
        "6 keys for 35 queries, and nothing that reduces them is known",
    ),
    "no grid": (
        read_reduced,
        reduced(35, 6, nn.Conv2d(4, 4, 2, 2), feat_size=(5, 7), counts=None),
        "no convolution ran in Conv2d, so its grid is not known",
    ),
    "two class tokens": (
        read_class_token,
        seen(2, 36, around=[PATCHES], features=GRID),
        "2 queries and 36 keys are not the 1 and 36 of 5 × 7 positions and 1 prefix tokens",
    ),
    "no prefix": (
        read_patches,
        seen(36, 36, around=[PATCHES], features=GRID),
        "36 queries and 36 keys are not the 35 and 35 of 5 × 7 positions and 0 prefix tokens",
    ),
    "no patch embedding": (
        read_tokens,
        seen(36, 36, around=[module(patch_embed=None)]),
        "no module that was called around it has patch_embed",
    ),
    "other tokens before the patches": (
        read_tokens,
        seen(37, 37, around=[PATCHES], features=GRID),
        "37 tokens are 2 more than 5 × 7 patches, but num_prefix_tokens of Module is 1; set it to 2 if they come first",
    ),
    "fewer tokens than patches, and no count of those before them": (
        read_tokens,
        seen(9, 9, around=[module(patch_embed=PATCHES.patch_embed)], features=GRID),
        "Module has no num_prefix_tokens; set it to the number of tokens before the patches",
    ),
    "no embeddings": (
        read_tower,
        seen(36, 36),
        "no module that was called around it has embeddings",
    ),
    "keys of another length": (
        read_sequence,
        seen(7, 11),
        "its 11 keys are other tokens than its 7 queries",
    ),
    "keys of another sequence": (
        read_sequence,
        seen(7, 7, encoder_hidden_states=torch.zeros(2, 7, 4)),
        "its keys are those of another sequence",
    ),
}


@pytest.mark.parametrize(("read", "call", "message"), REFUSED.values(), ids=REFUSED)
def test_calls_that_do_not_fit_are_refused(read, call, message):
    with pytest.raises(UnsupportedModelError) as caught:
        AttentionClass(layout=read).read(call)
    assert str(caught.value) == message


def test_a_class_token_looks_at_itself_and_all_patches():
    layout = read_class_token(seen(1, 36, around=[PATCHES], features=GRID))
    assert (layout.pattern, layout.grid, layout.queries.tolist()) == ("class token", (5, 7), [[-1]])
    assert layout.key_prefix.tolist() == [True] + [False] * 35


X = torch.randn(2, 35, 4, generator=torch.Generator().manual_seed(0))
GIVEN = {
    "tokens": (X, True),
    "tokens after a prefix": (torch.cat([X[:, :1], X], 1), True),
    "channels last": (X.unflatten(1, (5, 7)), True),
    "channels first": (X.mT.unflatten(2, (5, 7)), True),
    "the grid in place of channels": (torch.zeros(2, 5, 7, 5, 7), False),
    "no tensor": (SimpleNamespace(shape=X.shape), False),
    "no numbers": (X > 0, False),
    "no channels": (X[..., 0], False),
    "other tokens": (X[:, :33], False),
}


@pytest.mark.parametrize(("given", "known"), GIVEN.values(), ids=GIVEN)
def test_inputs_are_put_in_the_order_of_the_grid_or_left_out(given, known):
    found = on_grid(given, global_layout((5, 7), 1), 2)
    assert (found is not None) is known
    if found is not None:
        assert torch.equal(found, X)


def test_as_many_channels_as_rows_and_columns_have_no_order():
    assert on_grid(torch.zeros(2, 5, 5, 5), global_layout((5, 5)), 2) is None


def test_a_position_with_two_queries_has_no_order():
    queries = torch.arange(35)[None].clone()
    queries[0, 3] = 2
    whole = global_layout((5, 7))
    twice = Layout(
        "global",
        (5, 7),
        torch.cat([queries, queries[:, :1]], 1),
        whole.keys,
        whole.key_prefix,
        None,
    )
    assert on_grid(torch.cat([X, X[:, :1]], 1), twice, 2) is None
