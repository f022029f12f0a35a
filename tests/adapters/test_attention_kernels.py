"""The weights of a kernel, computed a few entries at a time, and whether their rows sum to one."""

from functools import partial

import pytest
import torch

from convattn.heads import kernels
from convattn.heads.kernels import weights_of
from convattn.heads.reading import rows_sum_to_one
from convattn.testing.budget import assert_within_budget, roundings

QUERIES, KEYS = 7, 11


def masks():
    draw = torch.Generator().manual_seed(0)
    left = torch.rand(5, 1, QUERIES, KEYS, generator=draw) < 0.6
    left[2, :, 3] = False  # a query that may see nothing
    return {
        "none": (None, False),
        "truth values": (left, False),
        "of every image": (left[0, 0], False),
        "added": (torch.randn(5, 3, QUERIES, KEYS, generator=draw), False),
        "added, of every image": (torch.randn(1, 1, 1, KEYS, generator=draw), False),
        "causal": (None, True),
    }


def plain(q, k, mask=None, causal=False):
    scores = q @ k.expand(len(q), -1, -1, -1).mT
    if causal:
        mask = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.to(q.dtype)
    return scores.softmax(-1).nan_to_num(0.0)


@pytest.mark.parametrize("at_once", [1, 500, 10**6])
@pytest.mark.parametrize("name", masks())
def test_weights_are_those_of_the_formula(name, at_once, monkeypatch):
    monkeypatch.setattr(kernels, "_SCORES_AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(1)
    q, k = torch.randn(5, 3, QUERIES, 4, generator=draw), torch.randn(5, 3, KEYS, 4, generator=draw)
    mask, causal = masks()[name]
    made = weights_of(q, k, mask, causal=causal)
    lows = roundings(partial(plain, mask=mask, causal=causal), q, k)
    assert_within_budget(made, plain(q.double(), k.double(), mask, causal), lows)


def test_heads_that_share_keys_and_tokens_without_a_batch():
    q, k = torch.randn(5, 3, QUERIES, 4), torch.randn(1, 3, KEYS, 4)
    made = weights_of(q, k, None, causal=False)
    assert_within_budget(made, plain(q.double(), k.double()), roundings(plain, q, k))
    assert torch.equal(
        weights_of(q[0, 0], k[0, 0], None, causal=False), weights_of(q[0, :1], k[0, :1], None, causal=False)[0]
    )


@pytest.mark.parametrize("keys", [7, 197, 20_011])
def test_rows_of_a_softmax_sum_to_one_and_a_leak_is_noticed(keys):
    weights = (3 * torch.randn(2, 1, 3, 5, keys, generator=torch.Generator().manual_seed(0))).softmax(-1)
    eps = torch.finfo(torch.float32).eps
    assert rows_sum_to_one(weights, eps)
    assert not rows_sum_to_one(weights * (1 + 3 * keys * eps), eps)
    weights[1, 0, 2, 4, 0] = torch.nan
    assert not rows_sum_to_one(weights, eps)
