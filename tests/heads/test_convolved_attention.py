"""Means under kernels against plain sums over pairs, at borders, behind masks, and on both ways of computing."""

from functools import partial
from itertools import product
from math import prod

import pytest
import torch

from convattn.budget import assert_within_budget, roundings
from convattn.heads import convolved_attention as file
from convattn.heads.convolved_attention import KernelMeans

CASES = {
    "one tap": ((5, 7), (1, 1), (0, 0)),
    "a shift": ((5, 7), (2, 3), (-1, 0)),
    "3 x 3": ((5, 7), (3, 3), (-1, -1)),
    "all displacements": ((5, 7), (9, 13), (-4, -6)),
    "wider than the grid": ((2, 3), (7, 9), (-3, -4)),
    "a sequence": ((11,), (4,), (-2,)),
    "a volume": ((2, 3, 5), (3, 2, 3), (-1, 0, -2)),
}


def by_pairs(kernel, values, first, sizes):
    """The definition in the dtype of the values: a loop over pairs of positions."""
    dtype = values.dtype
    cells = list(product(*map(range, sizes)))
    y = torch.zeros(values.shape, dtype=dtype)
    for row, query in enumerate(cells):
        total = torch.zeros(len(values), kernel.shape[0], dtype=dtype)
        for col, key in enumerate(cells):
            tap = tuple(k - q - f for q, k, f in zip(query, key, first, strict=True))
            if all(0 <= place < taps for place, taps in zip(tap, kernel.shape[1:], strict=True)):
                weight = kernel[(slice(None), *tap)].to(dtype)[None]
                total += weight
                y[:, :, row] += weight[:, :, None] * values[:, :, col]
        y[:, :, row] /= torch.where(total == 0, 1.0, total)[:, :, None]
    return y


def references(kernel, values, *where):
    """The definition in float64, and in the dtype of the values with several roundings."""
    hi = by_pairs(kernel, values.double(), *where)
    return hi, roundings(partial(by_pairs_at, where), kernel.to(values.dtype), values)


def by_pairs_at(where, kernel, values):
    return by_pairs(kernel, values, *where)


@pytest.fixture(params=["convolution", "matrix"])
def road(request, monkeypatch):
    monkeypatch.setattr(file, "_PER_TAP", 0 if request.param == "convolution" else 10**9)
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_means_are_sums_over_pairs(name, road):
    sizes, box, first = CASES[name]
    torch.manual_seed(0)
    kernel, values = torch.rand(3, *box), torch.randn(2, 3, prod(sizes), 2)
    means = KernelMeans(kernel, first)
    assert means.convolves(sizes) == (road == "convolution")
    y = means(values, sizes)
    assert_within_budget(y, *references(kernel, values, first, sizes), name)


def test_the_check_rejects_zeros_around_the_border(road):
    """A planted fault: without renormalisation the border is too dark."""
    sizes, box, first = CASES["3 x 3"]
    kernel, values = torch.rand(3, *box), torch.rand(1, 3, prod(sizes), 2)
    kernel = kernel / kernel.sum((1, 2), keepdim=True)
    image = values.mT.reshape(1, -1, *sizes)
    dark = torch.conv2d(image, kernel.repeat_interleave(2, 0)[:, None], padding=1, groups=6)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(dark.view(1, 3, 2, -1).mT, *references(kernel, values, first, sizes))


def test_no_weight_left_gives_zero(road):
    means = KernelMeans(torch.tensor([[1.0, 0.0]]), (-1,))
    assert means(torch.ones(1, 1, 3, 1), (3,)).flatten().tolist() == [0.0, 1.0, 1.0]


def test_both_ways_have_the_same_gradients(monkeypatch):
    sizes, box, first = CASES["3 x 3"]
    torch.manual_seed(0)
    means, values = (
        KernelMeans(torch.rand(3, *box).double(), first),
        torch.randn(2, 3, prod(sizes), 2).double(),
    )

    def gradients(means, values):
        x = values.detach().requires_grad_()
        return torch.autograd.grad(means(x, sizes).square().sum(), [means.kernel, x])

    monkeypatch.setattr(file, "_PER_TAP", 0)
    convolved = gradients(means, values)
    monkeypatch.setattr(file, "_PER_TAP", 10**9)
    for one, other, *several in zip(
        convolved, gradients(means, values), *roundings(gradients, means, values), strict=True
    ):
        assert_within_budget(one, other, several)


def looking_past_the_border(heads=3, reach=7, ahead=6):
    """Heads that look ahead along both axes; at the far corner, only weights of 1e-31 are left."""
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = torch.exp(-((steps[:, None] - ahead) ** 2) - (steps - ahead) ** 2)
    return (kernel / kernel.sum()).float().expand(heads, -1, -1), (-reach, -reach)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_reaches_borders_that_a_head_looks_past(road, autocast):
    means = KernelMeans(*looking_past_the_border())
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        y = means(torch.ones(1, 3, 9 * 9, 2, dtype=torch.float16), (9, 9))
    assert y.dtype == torch.float16
    assert (y - 1).abs().max() <= 81 * torch.finfo(torch.float16).eps
