import pytest
import torch
from torch import nn

from convattn.budget import Sums, assert_within_budget, budget, rounded_differently, roundings

EPS = torch.finfo(torch.float32).eps


def test_budget_is_twice_the_largest_spread_and_the_rounding():
    hi = torch.tensor([1.0, -4.0], dtype=torch.float64)
    lows = [torch.tensor([1.0, low]) for low in (-4.0, -4.25, -4.5, -3.75)]
    assert budget(hi, lows) == 2 * (0.5 + EPS * 4)
    assert_within_budget(torch.tensor([2.0, -4.0]), hi, lows)
    with pytest.raises(
        AssertionError, match=r"result: error 1.01 is above the budget 1 \(max\|hi\| 4\)"
    ):
        assert_within_budget(torch.tensor([2.01, -4.0]), hi, lows)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_fewer_than_four_computations_are_refused(number):
    with pytest.raises(
        AssertionError, match=f"a budget needs 4 roundings or more, but has {number}"
    ):
        assert_within_budget(torch.ones(2), torch.ones(2).double(), [torch.ones(2)] * number)


def test_every_element_may_lose_what_a_sum_of_its_terms_loses():
    hi, lows = torch.tensor([0.0, 1.0]).double(), [torch.tensor([0.0, 1.0])] * 4
    sums = Sums(100, torch.tensor([5.0, 0.0]))
    assert_within_budget(torch.tensor([49 * EPS, 1 + 2 * EPS]), hi, lows, sums=sums)
    for wrong in ([51 * EPS, 1.0], [0.0, 1 + 3 * EPS]):
        with pytest.raises(AssertionError, match="is above the budget"):
            assert_within_budget(torch.tensor(wrong), hi, lows, sums=sums)


def test_roundings_move_the_last_digits_of_all_that_is_computed_from():
    layer, x, index = (
        nn.Linear(31, 61),
        torch.randn(3, 31, requires_grad=True),
        torch.tensor([2, 0]),
    )
    given = []
    plain, *others = roundings(
        lambda *inputs: given.append(inputs) or inputs[0](inputs[1]), layer, x, index
    )
    assert torch.equal(plain, layer(x))
    assert len(others) == 4
    assert all(
        not torch.equal(one, other)
        for place, one in enumerate(others)
        for other in [plain, *others[:place]]
    )
    for moved, images, same in given[1:]:
        assert images.requires_grad
        assert torch.equal(same, index)
        for one, other in ((moved.weight, layer.weight), (moved.bias, layer.bias), (images, x)):
            assert 0 < (one - other).abs().max() <= 2 * EPS * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_numbers_that_are_rounded_otherwise_differ_in_the_last_place_and_repeat_themselves(dtype):
    x = torch.randn(101, dtype=torch.float64).to(dtype)
    y = rounded_differently(x, 3)
    assert 20 < (y != x).sum() < 81
    assert ((y.double() - x.double()).abs() <= 2 * torch.finfo(dtype).eps * x.double().abs()).all()
    assert torch.equal(y, rounded_differently(x, 3))
    assert not torch.equal(y, rounded_differently(x, 4))


def test_no_numbers_have_no_budget():
    assert_within_budget(torch.zeros(0), torch.zeros(0, dtype=torch.float64), [torch.zeros(0)] * 4)


@pytest.mark.parametrize(
    ("actual", "hi", "lo", "message"),
    [
        (
            torch.zeros(2),
            torch.zeros(2),
            torch.zeros(2),
            "hi must be float64, but is torch.float32",
        ),
        (torch.zeros(2, 1), torch.zeros(2).double(), torch.zeros(2), "shapes differ"),
        (
            torch.zeros(2),
            torch.zeros(2).double(),
            torch.zeros(2).double(),
            "dtypes differ: torch.float32 against",
        ),
        (
            torch.zeros(2),
            torch.full((2,), torch.inf).double(),
            torch.zeros(2),
            "the references must be finite",
        ),
        (
            torch.zeros(2),
            torch.zeros(2).double(),
            torch.full((2,), torch.nan),
            "the references must be finite",
        ),
        (
            torch.full((2,), torch.nan),
            torch.zeros(2).double(),
            torch.zeros(2),
            "error nan is above the budget 0",
        ),
        (
            torch.full((2,), torch.inf),
            torch.zeros(2).double(),
            torch.zeros(2),
            "error inf is above the budget 0",
        ),
    ],
)
def test_what_cannot_be_judged_or_is_not_a_number_is_refused(
    actual, hi, lo, message, without_type_checks
):
    with pytest.raises(AssertionError, match=message):
        assert_within_budget(actual, hi, [torch.zeros_like(lo)] * 3 + [lo])


def test_half_precision_is_judged_by_its_own_rounding():
    x = torch.randn(101, dtype=torch.float64)
    assert_within_budget(x.bfloat16(), x, [x.bfloat16()] * 4)
    with pytest.raises(AssertionError):
        assert_within_budget(x.bfloat16().float(), x, [x.float()] * 4)
