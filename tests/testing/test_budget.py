import pytest
import torch

from convattn.testing.budget import assert_within_budget, budget


def test_budget_is_twice_the_spread_and_the_rounding():
    hi = torch.tensor([1.0, -4.0], dtype=torch.float64)
    lo = torch.tensor([1.0, -4.5], dtype=torch.float32)
    assert budget(hi, lo) == 2 * (0.5 + torch.finfo(torch.float32).eps * 4)
    assert_within_budget(torch.tensor([2.0, -4.0]), hi, lo)
    with pytest.raises(AssertionError, match=r"result: error 1.01 is above the budget 1 \(max\|hi\| 4\)"):
        assert_within_budget(torch.tensor([2.01, -4.0]), hi, lo)


def test_no_numbers_have_no_budget():
    assert_within_budget(torch.zeros(0), torch.zeros(0, dtype=torch.float64), torch.zeros(0))


@pytest.mark.parametrize(
    ("actual", "hi", "lo", "message"),
    [
        (torch.zeros(2), torch.zeros(2), torch.zeros(2), "hi must be float64, but is torch.float32"),
        (torch.zeros(2, 1), torch.zeros(2).double(), torch.zeros(2), "shapes differ"),
        (torch.zeros(2), torch.zeros(2).double(), torch.zeros(2).double(), "dtypes differ: torch.float32 against"),
        (torch.zeros(2), torch.full((2,), torch.inf).double(), torch.zeros(2), "the references must be finite"),
        (torch.zeros(2), torch.zeros(2).double(), torch.full((2,), torch.nan), "the references must be finite"),
        (torch.full((2,), torch.nan), torch.zeros(2).double(), torch.zeros(2), "error nan is above the budget 0"),
        (torch.full((2,), torch.inf), torch.zeros(2).double(), torch.zeros(2), "error inf is above the budget 0"),
    ],
)
def test_what_cannot_be_judged_or_is_not_a_number_is_refused(actual, hi, lo, message, without_type_checks):
    with pytest.raises(AssertionError, match=message):
        assert_within_budget(actual, hi, lo)


def test_half_precision_is_judged_by_its_own_rounding():
    x = torch.randn(101, dtype=torch.float64)
    assert_within_budget(x.bfloat16(), x, x.bfloat16())
    with pytest.raises(AssertionError):
        assert_within_budget(x.bfloat16().float(), x, x.float())
