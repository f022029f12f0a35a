import numpy as np
import pytest

from convattn.benchmark.record import CaseResult, Check, Measurement, fit_exponent
from convattn.benchmark.report import COLUMNS, case_rows, describe_check

RIGHT = Check(passed=True, worst="output", error=1e-7, allowed=2e-7)
WRONG = Check(passed=False, worst="output", error=3e-5, allowed=2e-7)


def measurement(contender, seconds=(), check=RIGHT, skipped=None, memory=None):
    return Measurement(contender, "note", None, check, seconds, memory, "", skipped)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5, 2.0])
def test_exponent_of_a_power_is_found(exponent):
    points = [(n, 3e-6 * n**exponent) for n in (256, 1024, 4096, 50176)]
    assert fit_exponent(points) == pytest.approx(exponent, abs=1e-12)


def test_exponent_of_noisy_times_is_that_of_least_squares():
    noise = np.random.default_rng(0).normal(scale=0.1, size=7)
    numbers = np.array([16, 64, 128, 256, 1024, 4096, 16384])
    times = 1e-5 * numbers**1.25 * np.exp(noise)
    slope = np.polynomial.polynomial.polyfit(np.log(numbers), np.log(times), 1)[1]
    assert fit_exponent(list(zip(numbers.tolist(), times.tolist(), strict=True))) == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize("points", [[], [(16, 1.0)], [(16, 1.0), (16, 2.0)]])
def test_no_line_goes_through_one_size(points):
    assert fit_exponent(points) is None


def test_ratios_are_of_the_same_round():
    result = CaseResult(
        "case", "title", 2, (measurement("convattn", (1.0, 2.0, 30.0)), measurement("conv", (2.0, 4.0, 10.0)))
    )
    ratio = result.ratio("convattn", "conv")
    assert (ratio.median, ratio.low, ratio.high) == (0.5, 0.5, 3.0)
    assert result.ratio("convattn", "gpsa") is None


def test_wrong_and_absent_contenders_have_no_numbers():
    result = CaseResult(
        "case",
        "title",
        2,
        (
            measurement("convattn", (0.004, 0.006, 0.010), memory=3 * 2**20),
            measurement("sdpa", check=WRONG),
            measurement(
                "gpsa", check=None, skipped='not installed: pip install timm (or the extra "bench" of convattn)'
            ),
        ),
    )
    ours, wrong, absent = (dict(zip(COLUMNS, row, strict=True)) for row in case_rows(result))
    assert (ours["check"], ours["ms"], ours["min – max"], ours["ms/image"]) == ("passed", "6", "4 – 10", "3")
    assert ours["MiB"] == "3"
    assert wrong["check"] == "FAILED: output is off by 3e-05, allowed 2e-07"
    assert absent["check"] == 'not installed: pip install timm (or the extra "bench" of convattn)'
    for row in (wrong, absent):
        assert {row[name] for name in COLUMNS[3:]} == {"–"}
    assert not result.passed


def test_peer_of_another_function_is_said_to_be_timed_only():
    assert describe_check(None) == "time only"
