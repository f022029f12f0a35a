import numpy as np
import pytest

from benchmarks.record import CaseResult, Check, Measurement, fit_exponent
from benchmarks.report import describe_check, exponents, table

RIGHT = Check(passed=True, worst="output", error=1e-7, allowed=2e-7)
WRONG = Check(passed=False, worst="output", error=3e-5, allowed=2e-7)
MISSING = 'timm is not installed: pip install "convattn[bench]"'


def measurement(contender, seconds=(), check=RIGHT, skipped=None, memory=None, weights=None):
    return Measurement(contender, "note", None, check, seconds, weights, memory, "", skipped)


def result(*measurements, images=2, pixels=64):
    return CaseResult(f"case-{images}-{pixels}", "case", "title", images, pixels, measurements)


def columns(results, baselines=()):
    heads, rows = table(results, baselines)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_exponent_of_noisy_times_is_that_of_least_squares():
    noise = np.random.default_rng(0).normal(scale=0.1, size=7)
    numbers = np.array([16, 64, 128, 256, 1024, 4096, 16384])
    times = 1e-5 * numbers**1.25 * np.exp(noise)
    slope = np.polynomial.polynomial.polyfit(np.log(numbers), np.log(times), 1)[1]
    assert fit_exponent(list(zip(numbers.tolist(), times.tolist(), strict=True))) == pytest.approx(
        slope, rel=1e-9
    )


@pytest.mark.parametrize("points", [[], [(16, 1.0)], [(16, 1.0), (16, 2.0)]])
def test_no_line_goes_through_one_size(points):
    assert fit_exponent(points) is None


def test_exponents_are_of_the_medians_and_of_the_memory():
    sizes = [
        result(
            measurement("a", (n / 8, n / 4, n), memory=n**2),
            measurement("b", check=WRONG),
            pixels=n,
        )
        for n in (64, 256)
    ]
    assert exponents(sizes) == ["a: time ∝ N^1.00, memory ∝ N^2.00"]


def test_ratios_are_of_the_same_round():
    found = result(measurement("convattn", (1.0, 2.0, 30.0)), measurement("conv", (2.0, 4.0, 10.0)))
    assert found.ratios("convattn", "conv") == [0.5, 0.5, 3.0]
    assert found.ratios("convattn", "gpsa") == []


def test_memory_is_compared_with_weights_and_only_where_both_are_known():
    found = result(
        measurement("planned", memory=30, weights=20),
        measurement("original", memory=15, weights=10),
        measurement("x"),
    )
    assert found.memory_ratio("planned", "original") == 2
    assert found.memory_ratio("planned", "x") is None


def test_wrong_and_absent_contenders_have_no_numbers():
    found = result(
        measurement("convattn", (0.004, 0.006, 0.010), memory=3 * 2**20),
        measurement("sdpa", check=WRONG),
        measurement("gpsa", check=None, skipped=MISSING),
    )
    ours, wrong, absent = columns([found], ("convattn",))
    assert (ours["check"], ours["ms"], ours["min – max"], ours["ms/image"]) == (
        "passed",
        "6",
        "4 – 10",
        "3",
    )
    assert (ours["call, MiB"], ours["÷ convattn"]) == ("3", "1")
    assert wrong["check"] == "FAILED: output is off by 3e-05, allowed 2e-07"
    assert absent["check"] == MISSING
    for row in (wrong, absent):
        assert {row[name] for name in row if name not in {"contender", "check"}} == {"–"}
    assert not found.passed


def test_columns_that_say_nothing_are_left_out():
    one, other = result(measurement("a", (1.0,))), result(measurement("a", (4.0,)), images=3)
    assert list(columns([one])[0]) == ["contender", "check", "ms", "min – max", "ms/image"]
    assert [row["images"] for row in columns([one, other])] == ["2", "3"]


def test_peer_of_another_function_is_said_to_be_timed_only():
    assert describe_check(None) == "time only"
