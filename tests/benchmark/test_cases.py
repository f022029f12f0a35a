import pytest

from convattn.benchmark.cases import LayerCase, ScalingCase, TrainingCase, choose, find_suite
from convattn.benchmark.contenders import CONTENDERS
from convattn.encodings import ENCODINGS
from convattn.errors import UnknownNameError

SUITES = {"full": find_suite("layers"), "quick": find_suite("layers", quick=True)}


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_has_a_name_of_its_own_and_a_title(suite):
    names = [case.name for case in SUITES[suite]]
    assert len(set(names)) == len(names)
    assert all(case.title for case in SUITES[suite])


@pytest.mark.parametrize("suite", SUITES)
def test_cases_are_of_what_there_is(suite):
    for case in SUITES[suite]:
        if isinstance(case, LayerCase):
            assert case.kind in {*ENCODINGS, "hard", "content"}
            assert set(case.contenders) <= set(CONTENDERS)
            assert case.contenders[:2] == ("convattn", "reference")


def test_quick_suite_has_every_kind_of_the_full_one():
    kinds = {
        suite: {(case.kind, case.training) if isinstance(case, LayerCase) else type(case) for case in cases}
        for suite, cases in SUITES.items()
    }
    assert kinds["quick"] == kinds["full"]
    assert {ScalingCase, TrainingCase} <= kinds["full"]


def test_cases_are_chosen_in_their_own_order():
    chosen = choose(SUITES["full"], ["scaling", "hard-32"])
    assert [case.name for case in chosen] == ["hard-32", "scaling"]
    assert choose(SUITES["full"], []) == SUITES["full"]


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="unknown case 'hard-33': did you mean 'hard-32'"):
        choose(SUITES["full"], ["hard-33"])
    with pytest.raises(UnknownNameError, match="unknown suite 'layer': did you mean 'layers'"):
        find_suite("layer")


def test_scaling_has_fewer_channels_where_memory_is_short():
    case = ScalingCase("scaling", ("separable",), channels=400, heads=9, sizes=(16, 224))
    assert case.fitting(available=2**40) == case
    narrow = case.fitting(available=2**30)
    assert (narrow.channels, narrow.sizes) == (64, case.sizes)
    assert "64 channels" in narrow.title
