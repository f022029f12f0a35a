"""A saved folder that was changed is refused, or gives the same result bit for bit."""

import pytest
from tests.networks.tampering import CHANGES, tamper


def totals(counts):
    return {
        outcome: sum(n for (_, o), n in counts.items() if o == outcome) for _, outcome in counts
    }


@pytest.mark.parametrize("trials", [90, pytest.param(1000, marks=pytest.mark.slow)])
def test_changes_are_refused_or_without_effect(trials, tmp_path, without_type_checks):
    counts = tamper(trials, 0, tmp_path)
    assert totals(counts).keys() == {"refused", "no effect"}
    assert {kind for kind, outcome in counts if outcome == "refused"} == {*CHANGES}


def test_without_digests_changes_would_be_taken(tmp_path, without_type_checks):
    """The control: what is edited on purpose loads, with another result, or is refused by an error of ours."""
    found = totals(tamper(45, 1, tmp_path, verify=False))
    assert found.keys() == {"refused", "no effect", "another result"}
    assert found["another result"] > 5
