"""Attention in all the ways in which people write it: read to rounding if its class is registered, and named if not."""

import math
import re

import pytest
import torch
from tests.heads.watch_cases import drawn, seen_by
from torch import einsum, nn
from torch.nn import functional

from convattn.budget import assert_within_budget, roundings
from convattn.errors import UnsupportedModelError
from convattn.heads.catalogue import register_attention
from convattn.heads.layout import global_layout

IMAGES, HEADS, QUERIES, KEYS, WIDTH = 2, 6, 13, 11, 5
SCALE = WIDTH**-0.5


def plain(q, k, bias=None, subscripts="bqhd,bkhd->bhqk"):
    scores = SCALE * einsum(subscripts, q, k)
    return (scores if bias is None else scores + bias).softmax(-1)


def by_head(*parts):
    return [part.transpose(1, 2) for part in parts]


def of_heads(q, k, v):
    return [part.transpose(1, 2).flatten(0, 1) for part in (q, k, v)]


def joined(y):
    return y.unflatten(0, (IMAGES, HEADS)).transpose(1, 2)


def matmul(q, k, v):
    q, k, v = by_head(q, k, v)
    return torch.matmul(nn.Softmax(-1)(torch.matmul(q, k.mT) * SCALE), v).transpose(1, 2)


def operator(q, k, v):
    q, k, v = by_head(q, k, v)
    return (functional.softmax(q * SCALE @ k.mT, dim=3) @ v).transpose(1, 2)


def values_left(q, k, v):
    q, k, v = by_head(q, k, v)
    return (v.mT @ (SCALE * k @ q.mT).softmax(2)).permute(0, 3, 1, 2)


def bmm(q, k, v):
    q, k, v = of_heads(q, k, v)
    return joined(torch.bmm(torch.bmm(q * SCALE, k.mT).softmax(-1), v))


def baddbmm(q, k, v, bias=None):
    q, k, v = of_heads(q, k, v)
    added = q.new_zeros(()) if bias is None else bias.repeat(IMAGES, 1, 1)
    weights = torch.baddbmm(added, q, k.mT, alpha=SCALE).softmax(-1)
    return joined(torch.baddbmm(v.mean(1, keepdim=True), weights, v, beta=0.5)) - (
        0.5 * joined(v.mean(1, keepdim=True))
    )


def baddbmm_out(q, k, v):
    """Into memory that holds no numbers, with what is added left out."""
    q, k, v = of_heads(q, k, v)
    weights = torch.baddbmm(q.new_zeros(()), q, k.mT, alpha=SCALE).softmax(-1)
    out = torch.full((*weights.shape[:2], v.shape[2]), torch.nan, dtype=v.dtype)
    return joined(torch.baddbmm(out, weights, v, beta=0, out=out))


def as_einsum(subscripts, scores="bqhd,bkhd->bhqk", dim=-1):
    def attend(q, k, v):
        weights = torch.softmax(einsum(scores, q, k) * SCALE, dim)
        names, out = subscripts.split("->")
        of_values = dict(zip("bkhd", v.shape, strict=True))
        _, order = names.split(",")
        assert set(order) == set(of_values)
        y = einsum(subscripts, weights, v.permute(["bkhd".index(name) for name in order]))
        return y.permute([out.index(name) for name in "bqhd"])

    return attend


def multi_query(q, k, v):
    return einsum("bhij,bjd->bihd", plain(q, k[:, :, 0], subscripts="bqhd,bkd->bhqk"), v[:, :, 0])


def by_group(q, k, v):
    q = q.unflatten(2, (k.shape[2], -1))
    weights = (SCALE * einsum("bqgrd,bkgd->bgrqk", q, k)).softmax(-1)
    return (weights @ v.transpose(1, 2)[:, :, None]).flatten(1, 2).transpose(1, 2)


def repeated(q, k, v):
    share = q.shape[2] // k.shape[2]
    return operator(q, k.repeat_interleave(share, 2), v.repeat_interleave(share, 2))


def fused(q, k, v, **options):
    attend = functional.scaled_dot_product_attention
    return attend(*by_head(q, k, v), **options).transpose(1, 2)


def grouped(q, k, v):
    return fused(q, k, v, enable_gqa=True)


def with_bias(q, k, v, bias):
    return einsum("bhqk,bkhd->bqhd", plain(q, k, bias), v)


def by_hand(q, k, v):
    scores = SCALE * einsum("bqhd,bkhd->bhqk", q, k)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return einsum("bhqk,bkhd->bqhd", powers / powers.sum(dim=-1, keepdim=True), v)


def in_place(q, k, v):
    powers = (SCALE * einsum("bqhd,bkhd->bhqk", q, k)).exp_()
    powers *= 1 / powers.sum(-1)[..., None]
    return einsum("bhqk,bkhd->bqhd", powers, v)


def by_logarithm(q, k, v):
    scores = SCALE * einsum("bqhd,bkhd->bhqk", q, k)
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return (weights @ v.transpose(1, 2)).transpose(1, 2)


def divided_afterwards(q, k, v):
    powers = (SCALE * einsum("bqhd,bkhd->bhqk", q, k)).exp()
    return (powers @ v.transpose(1, 2) / powers.sum(-1, keepdim=True)).transpose(1, 2)


def summed(q, k, v):
    weights = plain(q, k).transpose(1, 2)
    return (weights[..., None] * v.transpose(1, 2)[:, None]).sum(3)


def cast_back(q, k, v):
    scores = SCALE * einsum("bqhd,bkhd->bhqk", q, k)
    return einsum("bhqk,bkhd->bqhd", scores.softmax(-1, dtype=torch.float64).to(v.dtype), v)


def dropped(q, k, v):
    weights = functional.dropout(plain(q, k), 0.3, training=False)
    return einsum("bhqk,bkhd->bqhd", weights, v)


def ellipsis(q, k, v):
    q, k, v = by_head(q, k, v)
    weights = (SCALE * einsum("...id,...jd->...ij", q, k)).softmax(-1)
    return einsum("... i j, ... j d -> ... i d", weights, v).transpose(1, 2)


def turned(q, k):
    """Rotates pairs of the first four channels by the token's number."""
    rotated = []
    for part in (q, k):
        angles = torch.arange(part.shape[1]).to(part)[:, None, None] / 3
        first, second, rest = part[..., :2], part[..., 2:4], part[..., 4:]
        cos, sin = angles.cos(), angles.sin()
        turned = (first * cos - second * sin, first * sin + second * cos, rest)
        rotated.append(torch.cat(turned, -1))
    return rotated


BIAS = torch.randn(HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(2))
FAR = (torch.arange(QUERIES)[:, None] - torch.arange(KEYS)).abs()
ALIBI = -(2.0 ** -torch.arange(1, HEADS + 1))[:, None, None] * FAR

SPELLINGS = {
    "matmul": (matmul, {}),
    "@": (operator, {}),
    "values to the left": (values_left, {}),
    "bmm": (bmm, {}),
    "baddbmm": (baddbmm, {}),
    "baddbmm with a bias": (baddbmm, {"bias": BIAS}),
    "baddbmm into memory": (baddbmm_out, {}),
    "einsum bhqk,bhkd->bhqd": (as_einsum("bhqk,bhkd->bhqd"), {}),
    "einsum bhqk,bkhd->bqhd": (as_einsum("bhqk,bkhd->bqhd"), {}),
    "einsum bqhk,bkhd->bqhd": (as_einsum("bqhk,bkhd->bqhd", "bqhd,bkhd->bqhk"), {}),
    "einsum bqkh,bkhd->bqhd": (as_einsum("bqkh,bkhd->bqhd", "bqhd,bkhd->bqkh", 2), {}),
    "einsum hbqk,hbkd->bqhd": (as_einsum("hbqk,hbkd->bqhd", "bqhd,bkhd->hbqk"), {}),
    "einsum bkhq,bhdk->bhdq": (as_einsum("bkhq,bhdk->bhdq", "bqhd,bkhd->bkhq", 1), {}),
    "einsum with an ellipsis": (ellipsis, {}),
    "fused": (fused, {}),
    "fused, causal": (lambda *parts: fused(*parts, is_causal=True), {"causal": True}),
    "multi-query": (multi_query, {"groups": 1}),
    "grouped, fused": (grouped, {"groups": 3}),
    "grouped, repeated": (repeated, {"groups": 3}),
    "grouped, by group": (by_group, {"groups": 3}),
    "additive bias": (with_bias, {"bias": BIAS}),
    "rotary": (lambda q, k, v: matmul(*turned(q, k), v), {"turn": turned}),
    "ALiBi": (with_bias, {"bias": ALIBI}),
    "softmax by hand": (by_hand, {}),
    "softmax by hand, in place": (in_place, {}),
    "softmax by logarithm": (by_logarithm, {}),
    "divided after the product": (divided_afterwards, {"refused": True}),
    "product by a sum": (summed, {}),
    "softmax in another dtype": (cast_back, {}),
    "dropout": (dropped, {}),
}


class Spelled(nn.Module):
    """Attention of the first tokens to the others, written in one of these ways."""

    def __init__(self, attend, groups=HEADS, bias=None):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.groups, self.bias = attend, groups, bias
        self.query = nn.Linear(7, HEADS * WIDTH)
        self.key = nn.Linear(7, groups * WIDTH)
        self.value = nn.Linear(7, groups * WIDTH)

    def parts(self, x):
        q = self.query(x[:, :QUERIES]).unflatten(-1, (HEADS, WIDTH))
        keys = x[:, QUERIES:]
        shape = (self.groups, WIDTH)
        return q, self.key(keys).unflatten(-1, shape), self.value(keys).unflatten(-1, shape)

    def forward(self, x):
        options = {} if self.bias is None else {"bias": self.bias.to(x.dtype)}
        return self.attend(*self.parts(x), **options).flatten(2)


def expected(network, x, causal=False, turn=None):
    """The weights by the definition."""
    q, k, _ = network.parts(x)
    if turn is not None:
        q, k = turn(q, k)
    bias = None if network.bias is None else network.bias.to(x.dtype)
    if causal:
        bias = torch.full((QUERIES, KEYS), -math.inf).triu(1)
    return plain(q, k.repeat_interleave(HEADS // k.shape[2], 2), bias)


def across(_):
    return global_layout((QUERIES,), keys=torch.arange(KEYS, dtype=torch.float64)[:, None])


@torch.no_grad()
def test_every_spelling_is_read_to_rounding():
    x = drawn(QUERIES + KEYS, 7)
    register_attention(Spelled, across)
    for name, (attend, options) in SPELLINGS.items():
        known = {key: options[key] for key in ("causal", "turn") if key in options}
        built = {key: options[key] for key in ("groups", "bias") if key in options}
        network = Spelled(attend, **built)
        if "refused" in options:
            with pytest.raises(UnsupportedModelError, match="are not divided by their sum before"):
                seen_by(network, x)
            continue
        (call,) = seen_by(network, x)

        def weights(network, x, known=known):
            return expected(network, x, **known)

        hi = weights(Spelled(attend, **built).double(), x.double())
        assert call.normalised, name
        assert_within_budget(call.weights[:, 0], hi, roundings(weights, network, x))
        assert (call.layout.allowed is not None) == known.get("causal", False), name


def test_no_spelling_is_silent_where_the_class_is_not_registered():
    x = drawn(QUERIES + KEYS, 7)
    for name, (attend, options) in SPELLINGS.items():
        built = {key: options[key] for key in ("groups", "bias") if key in options}
        message = ""
        try:
            seen_by(nn.Sequential(Spelled(attend, **built)), x)
        except UnsupportedModelError as error:
            message = str(error)
        assert re.search(r"^0 .*Spelled.* × 13 × 11, .*register_attention\(Spelled, ", message), (
            name
        )
