"""The definition itself, against loops over single numbers."""

import itertools
import math

import pytest
import torch

from convattn.budget import assert_within_budget, roundings
from convattn.errors import UnknownNameError
from convattn.functional import (
    attend,
    attention_weights,
    displacement_scores,
)
from convattn.functional.reference import (
    content_scores,
    normal_weights,
    position_share,
    position_weights,
)
from convattn.grid import Axis

AXES = (Axis(range(1, 5, 2), 5), Axis(range(3), 3))


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def points(ranges):
    return list(itertools.product(*ranges))


def test_scores_are_looked_up_by_displacement():
    table = numbers(2, *(len(axis.displacements()) for axis in AXES))
    scores = displacement_scores(table, AXES)
    queries, keys = points(axis.queries for axis in AXES), points(range(axis.keys) for axis in AXES)
    assert scores.shape == (2, len(queries), len(keys))
    for (i, query), (j, key) in itertools.product(enumerate(queries), enumerate(keys)):
        place = [k - q - axis.lowest for k, q, axis in zip(key, query, AXES, strict=True)]
        assert torch.equal(scores[:, i, j], table[(slice(None), *place)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_are_exponentials_over_their_sum(dtype):
    scores = 3 * numbers(2, 5, 7, dtype=dtype)
    exact = [[math.exp(value) for value in row] for row in scores.flatten(0, 1).tolist()]
    hi = torch.tensor(
        [[value / math.fsum(row) for value in row] for row in exact], dtype=torch.float64
    )
    lows = roundings(
        lambda scores: torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True), scores
    )
    assert_within_budget(attention_weights(scores), hi.view(2, 5, 7), lows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scores_of_few_bits_are_normalised_in_float32(dtype):
    scores = numbers(5, 7, dtype=dtype)
    assert torch.equal(attention_weights(scores), attention_weights(scores.float()))


def test_huge_scores_neither_overflow_nor_lose_the_largest():
    scores = torch.tensor([[-4e7, -4e7 + 64, -3e38], [4e7, 4e7, 0.0]])
    hi = torch.tensor([[math.exp(-64), 1, 0], [0.5, 0.5, 0]], dtype=torch.float64)
    weights = attention_weights(scores)
    assert weights[0, 1:].tolist() == [1, 0]
    assert weights[1].tolist() == [0.5, 0.5, 0]
    fall = scores[0, 0] - scores[0, 1]
    lows = [fall.exp(), 1 / (-fall).exp(), (fall / 2).exp() ** 2, (fall / 4).exp() ** 4]
    assert_within_budget(weights[0, 0], hi[0, 0], lows)


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_attention_is_a_sum_over_heads_keys_and_channels(groups, per_image):
    shape = (2, 3, 5, 8) if per_image else (3, 5, 8)
    weights, keys, maps = (
        numbers(*shape).softmax(-1),
        numbers(2, 6, 4, 2, seed=1),
        numbers(3, 12, 6 // groups, seed=2),
    )

    def by_loops(weights, keys, maps):
        a, x = weights.expand(2, 3, 5, 8), keys.flatten(2)
        y = torch.zeros(2, 12, 5, dtype=a.dtype)
        for o, h, i in itertools.product(range(12), range(3), range(6 // groups)):
            channel = o // (12 // groups) * (6 // groups) + i
            for b, q, k in itertools.product(range(2), range(5), range(8)):
                y[b, o, q] += maps[h, o, i] * a[b, h, q, k] * x[b, channel, k]
        return y

    def matrices_first(weights, keys, maps):
        whole = torch.stack([torch.block_diag(*matrix.chunk(groups)) for matrix in maps])
        return ((whole @ keys.flatten(2)[:, None]) @ weights.mT).sum(1)

    given = weights, keys, maps
    hi = by_loops(*(tensor.double() for tensor in given))
    assert_within_budget(attend(*given, groups), hi, roundings(matrices_first, *given))


@pytest.mark.parametrize("shared", [False, True])
def test_content_score_has_its_terms(shared):
    """((q + u)·k + q·r) / √width, number by number."""
    query, key, bias = numbers(2, 3, 4, 5), numbers(2, 3, 7, 5, seed=1), numbers(3, 5, seed=2)
    position = numbers(1 if shared else 3, 4, 7, 5, seed=3)

    def by_loops(query, key, position, bias):
        scores = torch.zeros(2, 3, 4, 7, dtype=query.dtype)
        for b, h, i, j in itertools.product(range(2), range(3), range(4), range(7)):
            q, k, u, r = query[b, h, i], key[b, h, j], bias[h], position[0 if shared else h, i, j]
            scores[b, h, i, j] = (
                sum(q[w] * k[w] + u[w] * k[w] + q[w] * r[w] for w in range(5)) / 5**0.5
            )
        return scores

    given = query, key, position, bias
    hi = by_loops(*(tensor.double() for tensor in given))
    assert_within_budget(content_scores(*given), hi, roundings(by_loops, *given))


def test_content_scores_of_few_bits_are_computed_in_float32():
    query, key = (
        numbers(1, 2, 3, 5, dtype=torch.bfloat16),
        numbers(1, 2, 7, 5, dtype=torch.bfloat16),
    )
    assert torch.equal(content_scores(query, key), content_scores(query.float(), key.float()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_product_of_position_weights_is_subnormal(dtype):
    axes = (Axis(range(50), 50),)
    distances = torch.arange(-49, 50, dtype=dtype)
    table = torch.stack([-0.5 * distances**2, -2 * (distances - 0.3) ** 2]).requires_grad_()
    exact, weights = (
        attention_weights(displacement_scores(table, axes)),
        position_weights(table, axes),
    )
    least, smallest = torch.finfo(dtype).tiny, weights[weights > 0].min()
    logs = displacement_scores(table.double(), axes).log_softmax(-1)
    beyond = math.log(least) - logs
    subnormal = (beyond > 0) & (beyond < -math.log(torch.finfo(dtype).eps))
    assert subnormal.any()  # or the rest shows nothing; some processors make such numbers zero
    assert smallest**2 >= least
    assert torch.equal(weights[weights > 0], exact[weights > 0])
    assert (exact - weights).sum(-1).max() <= 50**2 * least**0.5

    def gradient(table, weigh=lambda table: attention_weights(displacement_scores(table, axes))):
        return torch.autograd.grad(weigh(table).square().sum(), table)[0]

    hi = gradient(table.detach().double().requires_grad_())
    made = gradient(table, lambda table: position_weights(table, axes))
    assert_within_budget(made, hi, roundings(gradient, table))


@pytest.mark.parametrize("beyond", [False, True])
def test_scores_of_all_axes_are_cut_where_the_table_goes_that_low(beyond):
    axes = (Axis(range(3), 3), Axis(range(3), 3))
    least = math.log(torch.finfo(torch.float32).tiny) / 2 + math.log(9)
    table = least / 2 * torch.rand(2, 5, 5)
    table[:, 2, 2] = 0  # which every query sees
    table[:, 4, 4] = least * (1.01 if beyond else 0.99)  # from the first pixel to the last
    plain = attention_weights(displacement_scores(table, axes))
    weights = position_weights(table, axes)
    assert (weights[:, 0, 8] == 0).all() == beyond
    weights[:, 0, 8] = plain[:, 0, 8]
    assert torch.equal(weights, plain)


def test_position_weights_keep_what_is_not_finite():
    table = torch.tensor([[0.0, math.nan, 0.0]])
    assert position_weights(table, (Axis(range(2), 2),)).isnan().all()


def test_scores_are_overwritten_only_if_they_belong_to_the_call():
    scores = torch.tensor([[1.0, -49.0, -89.0]])
    given = scores.clone()
    weights = normal_weights(scores)
    assert torch.equal(scores, given)
    assert torch.equal(normal_weights(scores, owned=True), weights)
    assert not torch.equal(scores, given)


def test_an_unknown_gate_is_refused(without_type_checks):
    with pytest.raises(UnknownNameError, match="unknown kind 'sigmod': did you mean 'sigmoid'"):
        position_share(torch.zeros(1), "sigmod")
