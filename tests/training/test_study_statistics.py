import itertools
import statistics

import pytest

from convattn.lab.study_record import bootstrap_interval, interval_worth, paired_difference, summarise


def test_summary_has_the_sample_deviation():
    found = summarise([3.0, 5.0, 13.0])
    assert (found.n, found.mean, found.minimum, found.maximum) == (3, 7.0, 3.0, 13.0)
    assert found.deviation**2 == pytest.approx((16 + 4 + 36) / 2)
    assert summarise([2.0]).deviation is None


def test_differences_are_paired_by_seed():
    found = paired_difference("new", "old", {0: 5.0, 2: 7.0, 4: 1.0}, {2: 3.0, 0: 4.0, 9: 8.0})
    assert (found.seeds, found.values, found.mean) == ((0, 2), (1.0, 4.0), 2.5)
    assert paired_difference("new", "old", {0: 5.0}, {1: 5.0}) is None
    one = paired_difference("new", "old", {0: 5.0}, {0: 4.0})
    assert (one.mean, one.deviation, one.low, one.high) == (1.0, None, None, None)


@pytest.mark.parametrize("n", [2, 3])
def test_interval_of_two_or_three_is_the_range(n):
    values = (0.02, -0.01, 0.07)[:n]
    assert bootstrap_interval(values) == (min(values), max(values))
    assert f"n = {n}: the interval is the range" in interval_worth(n)


def test_interval_of_five_lies_inside_the_range_at_the_exact_quantiles():
    """All 5⁵ resamples, counted: the drawn ones' quantiles lie between those of close levels."""
    values = (0.02, -0.01, 0.07, 0.11, 0.03)
    means = sorted(map(statistics.fmean, itertools.product(values, repeat=5)))
    low, high = bootstrap_interval(values)
    at = lambda share: means[round(share * (len(means) - 1))]  # noqa: E731
    assert at(0.015) <= low <= at(0.035)
    assert at(0.965) <= high <= at(0.985)
    assert min(values) < low < high < max(values)
    assert bootstrap_interval(values) == (low, high)


def test_worth_counts_how_often_a_range_holds_the_median():
    """Each of n draws lies below the median half of the time; the range misses it where all lie on one side."""
    for n in (2, 3):
        sides = list(itertools.product((0, 1), repeat=n))
        share = sum(0 < sum(side) < n for side in sides) / len(sides)
        assert f"in {100 * share:.0f} % of studies" in interval_worth(n)
    assert interval_worth(1) == "n = 1: one difference has no interval and shows no spread."
    assert "cannot be wider than the range" in interval_worth(5)
