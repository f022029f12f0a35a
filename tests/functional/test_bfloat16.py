"""Attention in bfloat16 on a CPU: what mixed precision keeps, parts of a batch, frozen inputs, further derivatives."""

from functools import partial
from itertools import permutations

import pytest
import torch

from convattn.budget import assert_within_budget
from convattn.functional import large_products, separable_attention, torch_modes

HEADS = 3


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(queries, keys, batch=7, channels=4, outputs=5):
    weights = [numbers(HEADS, q, k, seed=q).softmax(-1) for q, k in zip(queries, keys, strict=True)]
    return [
        numbers(batch, channels, *keys, seed=1),
        numbers(HEADS, outputs, channels, seed=2),
        *weights,
    ]


SIZES = [((11,), (13,)), ((11, 7), (9, 8))]
every_size = pytest.mark.parametrize(("queries", "keys"), SIZES, ids=["sequence", "image"])


def attended(keys, maps, *weights):
    return separable_attention(weights, keys, maps)


def products(*factors, order=(0, 1, 2, 3), over=""):
    """Multiplies keys, W_h and the weights of each axis in an order; the indices `over` are summed in the end."""
    indices = ["bcxy"[: len(factors)], "hoc", "hqx", "hpy"]
    made, held, *rest = factors[order[0]], indices[order[0]], *order[1 : len(factors)]
    wanted = "boqp"[: len(factors)]
    for place, number in enumerate(rest, start=1):
        later = wanted + over + "".join(indices[other] for other in rest[place:])
        kept = "".join(
            index for index in "bhocqpxy" if index in held + indices[number] and index in later
        )
        made, held = torch.einsum(f"{held},{indices[number]}->{kept}", made, factors[number]), kept
    return torch.einsum(f"{held}->{wanted}", made)


def roads(axes):
    """The same in other orders of summation, with all heads in one sum or one after another."""
    orders = list(permutations(range(2 + axes)))[:6]
    return [partial(products, order=order, over=over) for order in orders for over in ("", "h")]


def gradients(compute, values, *, autocast=True):
    leaves = [value.clone().requires_grad_() for value in values]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = compute(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, numbers(*y.shape, seed=3).to(y.dtype))]


@pytest.mark.parametrize("images", [1, 2, 7, 100])
@every_size
def test_mixed_precision_gives_what_plain_products_give(queries, keys, images, monkeypatch):
    values = inputs(queries, keys)
    monkeypatch.setattr(large_products, "_ALIGNED", 1)
    monkeypatch.setattr(
        torch_modes, "PIECE_BYTES", images * 88 * HEADS * 4 * 2
    )  # images of at most 88 pixels in bfloat16
    actual = gradients(attended, values)
    exact = gradients(products, [value.double() for value in values], autocast=False)
    lows = [gradients(road, values) for road in roads(len(keys))]
    assert [result.dtype for result in actual] == [torch.bfloat16, *[torch.float32] * len(values)]
    for name, result, hi, *several in zip(
        ["y", "keys", "maps", "rows", "cols"], actual, exact, *lows, strict=False
    ):
        assert_within_budget(result.bfloat16(), hi, [low.bfloat16() for low in several], name)


@every_size
def test_gradients_are_summed_in_float32_whatever_the_default_dtype_is(queries, keys, monkeypatch):
    monkeypatch.setattr(torch_modes, "PIECE_BYTES", 1)
    leaves = [value.requires_grad_() for value in inputs(queries, keys, batch=300)]
    with torch.autocast("cpu", torch.bfloat16):
        y = attended(*leaves)
    upstream = numbers(*y.shape, seed=3).to(y.dtype)
    found = torch.autograd.grad(y, leaves, upstream, retain_graph=True)
    torch.set_default_dtype(torch.bfloat16)
    try:
        again = torch.autograd.grad(y, leaves, upstream)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@every_size
def test_each_input_may_be_the_only_one_that_learns(queries, keys):
    values = inputs(queries, keys)
    everything = gradients(attended, values)[1:]
    for number, whole in enumerate(everything):
        leaves = [value.clone().requires_grad_(n == number) for n, value in enumerate(values)]
        with torch.autocast("cpu", torch.bfloat16):
            y = attended(*leaves)
        (alone,) = torch.autograd.grad(y, leaves[number], numbers(*y.shape, seed=3).to(y.dtype))
        assert torch.equal(alone, whole)


@every_size
def test_gradients_can_be_differentiated_again(queries, keys):
    def second(compute, values, *, autocast=True):
        leaves = [value.clone().requires_grad_() for value in values]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = compute(*leaves)
        upstream = numbers(*y.shape, seed=3).to(y.dtype)
        first = torch.autograd.grad(y, leaves[0], upstream, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), leaves[1])[0]

    values = inputs(queries, keys)
    hi = second(products, [value.double() for value in values], autocast=False)
    lows = [second(road, values).bfloat16() for road in roads(len(keys))]
    assert_within_budget(second(attended, values).bfloat16(), hi, lows)


@pytest.mark.parametrize(
    ("groups", "axes", "dtype"),
    [(2, 2, torch.bfloat16), (1, 3, torch.bfloat16), (1, 2, torch.float16)],
    ids=str,
)
def test_groups_volumes_and_float16_are_computed_in_their_dtype(groups, axes, dtype):
    keys = numbers(2, 4, *(9,) * axes)
    maps, weights = numbers(HEADS, 6, 4 // groups), [numbers(HEADS, 9, 9).softmax(-1)] * axes
    with torch.autocast("cpu", dtype):
        assert separable_attention(weights, keys, maps, groups).dtype == dtype
