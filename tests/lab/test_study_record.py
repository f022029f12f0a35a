from functools import partial

import pytest

from convattn.errors import ArgumentError
from convattn.lab.study_record import (
    StudyRun,
    _differences,
    difference_in_words,
    summarise,
    t_interval,
)


def test_summary_has_the_sample_deviation():
    found = summarise([3.0, 5.0, 13.0])
    assert (found.n, found.mean, found.minimum, found.maximum) == (3, 7.0, 3.0, 13.0)
    assert found.deviation**2 == pytest.approx((16 + 4 + 36) / 2)
    assert summarise([2.0]).deviation is None


def test_differences_are_paired_by_seed():
    run = partial(
        StudyRun,
        folder="",
        record_sha256="",
        seconds=1.0,
        parameters=1,
        hardware={},
        revision=None,
    )
    accuracies = {"old": {2: 3.0, 0: 4.0, 9: 8.0}, "new": {4: 1.0, 2: 7.0, 0: 5.0}}
    accuracies |= {"one": {0: 5.0}, "none": {1: 5.0}}
    groups = {}
    for label, by_seed in accuracies.items():
        groups[label] = [run(label=label, seed=seed, accuracy=by_seed[seed]) for seed in by_seed]
    new, one = _differences(groups, "old")
    assert (new.label, new.baseline) == ("new", "old")
    assert (new.seeds, new.values, new.mean) == ((0, 2), (1.0, 4.0), 2.5)
    assert (one.mean, one.deviation, one.low, one.high) == (1.0, None, None, None)


def test_the_interval_is_that_of_a_table_of_t():
    """Mean 2, deviation 1, n = 3: half the width is t(0.975; 2) / √3, and 4.303 is in every table."""
    low, high = t_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    assert t_interval([2.0] * 4) == (2.0, 2.0)


def test_intervals_grow_with_the_spread_and_shrink_with_the_number():
    """The 97.5 % quantiles of t, from every table: the interval of ±1 and zeros holds its mean by t · s / √n."""
    quantiles = {3: 4.3027, 4: 3.1824, 5: 2.7764, 6: 2.5706, 7: 2.4469, 8: 2.3646}
    for n, quantile in quantiles.items():
        values = [1.0, -1.0, *[0.0] * (n - 2)]
        reach = quantile * (2 / (n - 1) / n) ** 0.5
        for centre, scale in ((0.0, 1.0), (1.0, 3.0)):
            low, high = t_interval([centre + scale * value for value in values])
            expected = (centre - scale * reach, centre + scale * reach)
            assert (low, high) == pytest.approx(expected, abs=1e-4 * scale), f"n = {n}"


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_values_have_no_interval(n):
    with pytest.raises(ArgumentError, match=f"^number of values must be at least 3, but is {n}$"):
        t_interval([1.0] * n)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_not_finite_have_no_interval(wrong):
    with pytest.raises(ArgumentError, match="values must be finite"):
        t_interval([1.0, wrong, 2.0, 3.0])


def test_a_difference_says_whether_its_interval_contains_0():
    assert difference_in_words([0.01, 0.02, 0.03]).endswith(
        "95 % t interval -0.48 to +4.48 contains 0, n = 3"
    )
    assert difference_in_words([0.02, 0.02, 0.03]).endswith("leaves out 0, n = 3")
    assert difference_in_words([0.02, 0.04]) == "+3.00 points, n = 2: too few for an interval"
