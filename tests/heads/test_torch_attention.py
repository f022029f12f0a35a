"""torch's own attention module, whatever masks and projections it has, against the weights that it gives out itself."""

import pytest
import torch
from tests.heads.watch_cases import drawn, seen_by
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.errors import UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.catalogue import register_attention
from convattn.heads.layout import global_layout

IMAGES, HEADS, QUERIES, KEYS = 2, 3, 7, 11


class Across(nn.MultiheadAttention):
    """Attention of some tokens to others, with masks that belong to the module."""

    def __init__(self, key_width=6, value_width=6, masks=None, **options):
        super().__init__(6, HEADS, kdim=key_width, vdim=value_width, batch_first=True, **options)
        self.masks = masks or {}

    def forward(self, tokens, **options):
        """Takes queries from the first entries of each token, keys and values from others."""
        q, k, v = (
            tokens[:, :QUERIES, :6],
            tokens[:, QUERIES:, : self.kdim],
            tokens[:, QUERIES:, : self.vdim],
        )
        return super().forward(q, k, v, **self.masks, **options)


class Whole(nn.MultiheadAttention):
    """Attention of all tokens to all tokens, which returns tokens only."""

    def __init__(self, **options):
        super().__init__(6, HEADS, batch_first=True, **options)

    def forward(self, tokens):
        """Attends."""
        return super().forward(tokens, tokens, tokens)[0]


@pytest.fixture(autouse=True)
def readable(forgotten):
    """Lets both be read."""
    keys = torch.arange(KEYS, dtype=torch.float64)[:, None]
    register_attention(Across, lambda _: global_layout((QUERIES,), keys=keys))
    register_attention(Whole, lambda _: global_layout((QUERIES + KEYS,)))


def hidden(*sizes):
    """A mask that hides a third of all keys, but never all of a query's."""
    mask = torch.rand(*sizes, generator=torch.Generator().manual_seed(2)) < 1 / 3
    mask[..., 4] = False
    return mask


def added(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3)).to(dtype)


CASES = {
    "no mask": {},
    "no biases": {"bias": False},
    "projections of their own": {"key_width": 5, "value_width": 4},
    "truth values": {"masks": {"attn_mask": hidden(QUERIES, KEYS)}},
    "truth values of every head": {"masks": {"attn_mask": hidden(IMAGES * HEADS, QUERIES, KEYS)}},
    "added": {"masks": {"attn_mask": added(QUERIES, KEYS)}},
    "added, of every head": {"masks": {"attn_mask": added(IMAGES * HEADS, QUERIES, KEYS)}},
    "padding": {"masks": {"key_padding_mask": hidden(IMAGES, KEYS)}},
    "padding, added": {"masks": {"key_padding_mask": added(IMAGES, KEYS)}},
    "both": {
        "masks": {"attn_mask": hidden(QUERIES, KEYS), "key_padding_mask": hidden(IMAGES, KEYS)}
    },
    "both, added": {
        "masks": {
            "attn_mask": added(IMAGES * HEADS, QUERIES, KEYS),
            "key_padding_mask": added(IMAGES, KEYS),
        }
    },
}


def made(options):
    torch.manual_seed(0)
    network = Across(**options)
    if network.in_proj_bias is not None:
        nn.init.normal_(network.in_proj_bias)
    return network.eval()


def in_dtype(masks, dtype):
    return {
        name: mask.to(dtype) if mask.is_floating_point() else mask for name, mask in masks.items()
    }


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_weights_are_those_that_the_module_gives_out(options):
    tokens = drawn(QUERIES + KEYS, 6)
    (call,) = seen_by(made(options), tokens)

    def given_out(network, tokens):
        return network(tokens, need_weights=True, average_attn_weights=False)[1]

    wide = made({**options, "masks": in_dtype(options.get("masks", {}), torch.float64)}).double()
    assert call.weights.shape == (IMAGES, 1, HEADS, QUERIES, KEYS)
    assert_within_budget(
        call.weights[:, 0],
        given_out(wide, tokens.double()),
        roundings(given_out, made(options), tokens),
    )
    assert call.error <= call.budget
    assert call.normalised


def test_keys_that_a_mask_hides_have_no_weight():
    mask = hidden(IMAGES * HEADS, QUERIES, KEYS)
    (call,) = seen_by(made({"masks": {"attn_mask": mask}}), drawn(QUERIES + KEYS, 6))
    weights = call.weights[:, 0]
    assert torch.equal(weights == 0, mask.view(IMAGES, HEADS, QUERIES, KEYS))


class Direct(nn.MultiheadAttention):
    """Calls torch's function itself, which is then given masks of truth values as they are."""

    def __init__(self, **masks):
        super().__init__(6, HEADS, batch_first=True)
        self.masks = masks

    def forward(self, tokens):
        x = tokens.transpose(0, 1)
        projected = (self.in_proj_weight, self.in_proj_bias, None, None, False, 0.0)
        out = (self.out_proj.weight, self.out_proj.bias)
        return nn.functional.multi_head_attention_forward(
            x, x, x, 6, HEADS, *projected, *out, **self.masks
        )[0]


DIRECT = {
    "of every query": ("attn_mask", (KEYS, KEYS), (1, 1, KEYS, KEYS)),
    "of every head": ("attn_mask", (IMAGES * HEADS, KEYS, KEYS), (IMAGES, HEADS, KEYS, KEYS)),
    "padding": ("key_padding_mask", (IMAGES, KEYS), (IMAGES, 1, 1, KEYS)),
}


@pytest.mark.parametrize(("name", "sizes", "whole"), DIRECT.values(), ids=DIRECT)
def test_masks_of_truth_values_are_those_of_added_infinity(name, sizes, whole):
    register_attention(Direct, lambda seen: seen.global_layout((KEYS,)))
    found = []
    mask = hidden(*sizes)
    for given in (mask, torch.zeros(sizes).masked_fill(mask, -torch.inf)):
        torch.manual_seed(0)
        found += seen_by(Direct(**{name: given}), drawn(KEYS, 6))
    assert torch.equal(found[0].weights, found[1].weights)
    assert torch.equal(
        found[0].weights[:, 0] == 0, mask.view(whole).expand(IMAGES, HEADS, KEYS, KEYS)
    )


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_keys_that_are_no_tokens_are_refused_by_name_where_they_are_read(options):
    tokens = drawn(QUERIES + KEYS, 6)
    network = nn.Sequential(Whole(**options), Whole())
    with pytest.raises(
        UnsupportedModelError,
        match=r"^0 \(Whole\): 18 queries and 19 keys are not the 18 and 18 of 18 positions and 0 prefix",
    ):
        seen_by(network, tokens)
    assert [call.name for call in seen_by(network, tokens, layers="1")] == ["1"]


class Tokens(nn.Module):
    """Patches of 8 x 8, and torch's own encoder."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x):
        return self.encoder(self.patches(x).flatten(2).mT).mean(1)


def test_torchs_encoder_is_refused_with_the_line_that_reads_it(monkeypatch):
    network, images = Tokens().eval(), torch.rand(2, 3, 32, 32)
    with pytest.raises(UnsupportedModelError, match=r"register_attention\(MultiheadAttention, l"):
        analyze(network, images)
    monkeypatch.setattr("convattn.heads.catalogue._registered", [])
    register_attention(nn.MultiheadAttention, lambda call: call.global_layout((8, 8), prefix=0))
    assert [layer.name for layer in analyze(network, images).layers] == [
        "encoder.layers.0.self_attn"
    ]
