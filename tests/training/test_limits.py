from typing import Annotated, Literal

import pytest

from convattn.training.limits import Range, explain, fits

RANGES = {
    "of at least 0": (Range(0), [0, 1e9], [-1, float("inf"), float("nan")]),
    "above 0": (Range(0, without_low=True), [1e-9], [0, float("inf")]),
    "in [0, 1]": (Range(0, 1), [0, 1], [-0.1, 1.1]),
    "in (0, 1)": (Range(0, 1, without_low=True, without_high=True), [0.5], [0, 1]),
}


@pytest.mark.parametrize("words", RANGES)
def test_range_holds_what_its_words_say(words):
    limit, inside, outside = RANGES[words]
    assert str(limit) == words
    assert all(value in limit for value in inside)
    assert not any(value in limit for value in outside)


FITTING = {
    "an integer": (int, [3], [True, 3.0, "3", None]),
    "a number": (float, [3, 3.5], [True, "3", None]),
    "true or false": (bool, [True, False], [1, 0, "true"]),
    "text": (str | None, ["a", None], [3]),
    "'a' or 'b'": (Literal["a", "b"], ["a"], ["c", 1]),
    "a number of at least 1": (Annotated[float, Range(1)], [1, 2.5], [0.5, "x"]),
    "a list, each item an integer of at least 1": (tuple[Annotated[int, Range(1)], ...], [(), (1, 2)], [(0,), [1], 1]),
}


@pytest.mark.parametrize("words", FITTING)
def test_types_hold_what_their_words_say(words):
    hint, right, wrong = FITTING[words]
    assert explain(hint) == words
    assert all(fits(value, hint) for value in right)
    assert not any(fits(value, hint) for value in wrong)
