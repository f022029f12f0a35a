import pytest

from benchmarks import suites
from benchmarks.cases.layer import FORMS, LayerCase
from benchmarks.cases.scaling import MODULES, ScalingCase
from benchmarks.suites import SUITES, choose, find_suite
from convattn.encodings import ENCODINGS
from convattn.errors import UnknownNameError


def kinds(cases):
    return {
        (type(case), getattr(case, "kind", None), getattr(case, "training", None)) for case in cases
    }


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_cases_have_names_of_their_own_and_are_of_what_there_is(suite):
    quick, full = suite.cases(True), suite.cases(False)
    assert kinds(quick) == kinds(full)
    for cases in (quick, full):
        names = {case.name for case in cases}
        assert len(names) == len(cases)
        assert not names & {case.group for case in cases}
    for case in (*quick, *full):
        assert case.title
        if isinstance(case, LayerCase):
            assert case.kind in {*ENCODINGS, "hard", "content"}
            assert set(case.forms) <= set(FORMS)
        if isinstance(case, ScalingCase):
            assert set(case.modules) <= set(MODULES)


def test_cases_are_chosen_in_their_own_order_and_by_group():
    cases = find_suite("layers").cases(False)
    assert [case.name for case in choose(cases, ["scaling-16", "hard-32"])] == [
        "hard-32",
        "scaling-16",
    ]
    assert len(choose(cases, ["scaling"])) == 5
    assert choose(cases, []) == cases


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="unknown case 'hard-33': did you mean 'hard-32'"):
        choose(find_suite("layers").cases(False), ["hard-33"])
    with pytest.raises(UnknownNameError, match="unknown suite 'layer': did you mean 'layers'"):
        find_suite("layer")


@pytest.mark.parametrize(("free", "channels"), [(2**40, 400), (2**30, 64)])
def test_scaling_has_fewer_channels_where_memory_is_short(monkeypatch, free, channels):
    monkeypatch.setattr(suites, "free_memory", lambda: free)
    scaling = choose(find_suite("layers").cases(False), ["scaling"])
    assert {case.channels for case in scaling} == {channels}
    assert all(f"{channels} channels" in case.title for case in scaling)
