"""Values within a number of bytes: which are made, which are held, and which go."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from convattn.viewer.live import Kept


class Maker:
    """Makes texts of as many letters as their key says, and counts what it has made."""

    def __init__(self):
        self.made = []

    def __call__(self, key):
        self.made.append(key)
        return "x" * key


@pytest.fixture
def maker():
    return Maker()


def test_a_value_is_made_once_and_counts(maker):
    kept = Kept(17, maker, len)
    assert kept.size == 0
    assert [kept.get(7), kept.get(5), kept.get(7)] == ["x" * 7, "x" * 5, "x" * 7]
    assert (maker.made, kept.size) == ([7, 5], 12)


@pytest.mark.parametrize(
    ("limit", "keys", "made", "size"),
    [
        (12, [7, 5, 7, 5], [7, 5], 12),  # the bound itself is not too much
        (11, [7, 5, 5, 7], [7, 5, 7], 7),  # the one before had to go
        (17, [7, 5, 7, 11, 7], [7, 5, 11, 7], 7),
        (18, [7, 5, 7, 11, 7], [7, 5, 11], 18),  # 5 was asked for longest ago, though made after 7
        (13, [2, 3, 5, 11, 5], [2, 3, 5, 11, 5], 5),  # one may take the place of several
    ],
)
def test_what_was_asked_for_longest_ago_goes_first(maker, limit, keys, made, size):
    kept = Kept(limit, maker, len)
    for key in keys:
        kept.get(key)
    assert (maker.made, kept.size) == (made, size)


def test_a_value_that_is_larger_than_the_bound_is_returned_and_not_held(maker):
    kept = Kept(10, maker, len)
    assert [kept.get(11), kept.size, kept.get(11)] == ["x" * 11, 0, "x" * 11]
    assert maker.made == [11, 11]


def test_whoever_comes_while_a_value_is_made_waits_for_it():
    begun, go, made = Event(), Event(), []

    def make(key):
        begun.set()
        assert go.wait(60)
        made.append(key)
        return "x" * key

    kept = Kept(100, make, len)
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(kept.get, 13)]
        assert begun.wait(60)
        asked += [pool.submit(kept.get, 13) for _ in range(4)]
        assert kept.size == 0  # nobody waits to be told what is held
        go.set()
        assert {one.result() for one in asked} == {"x" * 13}
    assert (made, kept.size) == ([13], 13)


def test_what_could_not_be_made_is_tried_again():
    works = []

    def make(key):
        if not works:
            raise ValueError("not now")
        return "x" * key

    kept = Kept(100, make, len)
    with pytest.raises(ValueError, match="not now"):
        kept.get(3)
    works.append(True)
    assert (kept.get(3), kept.size) == ("xxx", 3)
