import pytest

from benchmarks import suites
from benchmarks.cases.layer import FORMS, LayerCase
from benchmarks.cases.scaling import MODULES, ScalingCase
from benchmarks.suites import SUITES, choose, find_suite
from convattn.encodings import ENCODINGS
from convattn.errors import UnknownNameError

CASES = {
    f"{name}, {'quick' if quick else 'full'}": suite.cases(quick)
    for name, suite in SUITES.items()
    for quick in (False, True)
}


@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_every_case_has_a_name_of_its_own_and_a_title(cases):
    names = {case.name for case in cases}
    assert len(names) == len(cases)
    assert not names & {case.group for case in cases}
    assert all(case.title for case in cases)


@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_cases_are_of_what_there_is(cases):
    for case in cases:
        if isinstance(case, LayerCase):
            assert case.kind in {*ENCODINGS, "hard", "content"}
            assert set(case.forms) <= set(FORMS)
            assert case.forms[:2] == ("convattn", "reference")
        if isinstance(case, ScalingCase):
            assert set(case.modules) <= set(MODULES)


@pytest.mark.parametrize("suite", SUITES)
def test_quick_suite_has_every_kind_of_the_full_one(suite):
    def kinds(cases):
        return {
            (type(case), getattr(case, "kind", None), getattr(case, "training", None))
            for case in cases
        }

    assert kinds(CASES[f"{suite}, quick"]) == kinds(CASES[f"{suite}, full"])


def test_networks_and_lengths_are_those_promised():
    networks = find_suite("networks").cases(False)
    assert {case.network for case in networks} == {
        "resnet18",
        "resnet50",
        "convnext_tiny",
        "efficientnet_b0",
    }
    assert {case.shape for case in networks} == {(1, 3, 224, 224), (16, 3, 224, 224)}
    assert {case.shape for case in find_suite("sequences").cases(False)} == {
        (1, 16, length) for length in (1024, 4096, 16384, 65536)
    }


def test_cases_are_chosen_in_their_own_order_and_by_group():
    cases = CASES["layers, full"]
    assert [case.name for case in choose(cases, ["scaling-16", "hard-32"])] == [
        "hard-32",
        "scaling-16",
    ]
    assert len(choose(cases, ["scaling"])) == 5
    assert choose(cases, []) == cases


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="unknown case 'hard-33': did you mean 'hard-32'"):
        choose(CASES["layers, full"], ["hard-33"])
    with pytest.raises(UnknownNameError, match="unknown suite 'layer': did you mean 'layers'"):
        find_suite("layer")


@pytest.mark.parametrize(("free", "channels"), [(2**40, 400), (2**30, 64)])
def test_scaling_has_fewer_channels_where_memory_is_short(monkeypatch, free, channels):
    monkeypatch.setattr(suites, "free_memory", lambda: free)
    scaling = choose(find_suite("layers").cases(False), ["scaling"])
    assert {case.channels for case in scaling} == {channels}
    assert all(f"{channels} channels" in case.title for case in scaling)
