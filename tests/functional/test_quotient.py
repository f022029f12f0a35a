"""Means under kernels against the definition of attention, behind masks and with scores of any size."""

import pytest
import torch

from convattn.budget import assert_within_budget, roundings
from convattn.functional import attend, attention_weights, displacement_scores
from convattn.functional.quotient import kernel_means, kernels_of_scores
from convattn.grid import Geometry

CASES = {
    "a line": ((11,), {}),
    "a plane": ((5, 7), {}),
    "a large plane": ((19, 23), {}),
    "strides": ((5, 8), {"kernel_size": 3, "stride": 2}),
    "a volume": ((2, 3, 5), {}),
}
BOX = {1: [(-3, 2)], 2: [(-2, 1), (0, 3)], 3: [(-1, 0), (-1, 1), (0, 2)]}


def scores(sizes, *, separable):
    """Scores within a box for three heads: a table per axis, or one of all."""
    taps = [high - low + 1 for low, high in BOX[len(sizes)]]
    generator = torch.Generator().manual_seed(0)
    shapes = [(n,) for n in taps] if separable else [tuple(taps)]
    return [torch.randn(3, *shape, generator=generator) for shape in shapes]


def by_definition(x, tables, axes):
    """Softmax over all keys, where scores outside the box are −∞."""
    dims = len(axes)
    whole = tables[0]
    if len(tables) > 1:
        whole = sum(
            table.view(3, *(1,) * number, -1, *(1,) * (dims - number - 1))
            for number, table in enumerate(tables)
        )
    sizes = [axis.highest - axis.lowest + 1 for axis in axes]
    table = torch.full((3, *sizes), -torch.inf, dtype=whole.dtype)
    inside, seen = [], []
    for (low, high), axis in zip(BOX[dims], axes, strict=True):
        first, last = max(low, axis.lowest), min(high, axis.highest)
        inside.append(slice(first - axis.lowest, last - axis.lowest + 1))
        seen.append(slice(first - low, last - low + 1))
    table[(slice(None), *inside)] = whole[(slice(None), *seen)]
    weights = attention_weights(displacement_scores(table, axes))
    heads, channels = torch.eye(3)[:, :, None], x.shape[1]
    maps = (heads[..., None] * torch.eye(channels)).flatten(1, 2).to(x.dtype)
    y = attend(weights, x, maps)
    return y.view(len(x), 3, channels, *(len(axis.queries) for axis in axes))


def means_of(x, tables, axes):
    lows = [low for low, _ in BOX[len(axes)]]
    return kernel_means(x[:, None], kernels_of_scores(tables), lows, axes)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_means_are_attention_within_the_box(case, separable, gradients):
    sizes, window = CASES[case]
    axes = Geometry.parse(len(sizes), **window).axes(sizes)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, *sizes, generator=generator, requires_grad=gradients)
    tables = scores(sizes, separable=separable)

    def compute(x, *tables):
        return by_definition(x, tables, axes)

    hi = compute(x.detach().double(), *(table.double() for table in tables))
    with torch.set_grad_enabled(gradients):
        y = means_of(x, tables, axes).detach()
    assert_within_budget(y, hi, roundings(compute, x.detach(), *tables))


def test_a_constant_added_to_all_scores_changes_nothing():
    axes = Geometry.parse(2).axes((5, 7))
    x = torch.randn(1, 2, 5, 7)
    for separable in (False, True):
        tables = scores((5, 7), separable=separable)
        higher = [(table + 100).round(decimals=4) for table in tables]
        lower = [table - 100 for table in higher]
        y = means_of(x, higher, axes)
        assert y.isfinite().all()
        assert torch.equal(y, means_of(x, lower, axes))


def test_no_weight_left_gives_zero():
    axes = Geometry.parse(1).axes((3,))
    kernel = torch.tensor([[1.0, 0.0]])
    y = kernel_means(torch.ones(1, 1, 1, 3), [kernel], [-1], axes)
    assert y.flatten().tolist() == [0.0, 1.0, 1.0]


def test_the_check_rejects_another_layout_of_the_axes():
    """Negative control: two axes exchanged."""
    axes = Geometry.parse(2).axes((5, 7))
    x, tables = torch.randn(1, 2, 5, 7), scores((5, 7), separable=True)
    hi = by_definition(x.double(), [table.double() for table in tables], axes)
    wrong = [tables[0].flip(1), tables[1]]

    def compute(x, *tables):
        return by_definition(x, tables, axes)

    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(means_of(x, wrong, axes), hi, roundings(compute, x, *tables))
