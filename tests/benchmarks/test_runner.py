"""Running cases: who is missing is said, who is wrong gets no time."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks import runner
from benchmarks.cases import layer
from benchmarks.cases.layer import FORMS, LayerCase
from benchmarks.report import table
from benchmarks.runner import measure_memory, run_case, run_suite
from benchmarks.setting import Setting
from benchmarks.suites import SUITES
from convattn.errors import ArgumentError

LAYERS = SUITES["layers"]
SETTING = Setting()
CASE = LayerCase(name="tiny", kind="quadratic", channels=10, heads=3, size=7, batch=2, memory=False)


class Perturbed(nn.Module):
    def __init__(self, honest):
        super().__init__()
        self.honest = honest

    def forward(self, x):
        return self.honest(x) * 1.0001


class Failing(nn.Module):
    def forward(self, *_):
        raise RuntimeError("no kernel for this\nand a long trace")


def with_form(monkeypatch, name, change):
    """Puts another module in the place of an honest form's."""

    def build(case, setting):
        honest = FORMS[name](case, setting)
        return replace(honest, module=change(honest.module))

    monkeypatch.setattr(layer, "FORMS", {**FORMS, name: build})


def by_name(result):
    return {item.contender: item for item in result.measurements}


def test_each_contender_is_timed_in_every_round():
    result = run_case(CASE, SETTING, rounds=3)
    assert result.passed
    assert (result.group, result.images, result.pixels) == ("tiny", 2, 49)
    for name, item in by_name(result).items():
        assert len(item.seconds) == 3, name
        assert min(item.seconds) > 0
        assert (item.check is None) == (name == "conv")
        assert (item.path is None) == (name not in {"convattn", "reference"})
    assert by_name(result)["reference"].path == "reference"
    assert by_name(result)["conv"].weights == 4 * (9 * 10 * 10 + 10)


@pytest.mark.parametrize("name", ["convattn", "sdpa"])
def test_wrong_contender_gets_no_time(monkeypatch, name):
    with_form(monkeypatch, name, Perturbed)
    result = run_case(CASE, SETTING, rounds=2)
    found = by_name(result)
    assert not result.passed
    assert not found[name].check.passed
    assert found[name].seconds == ()
    assert len(found["reference"].seconds) == 2


def test_peer_that_cannot_run_is_said_to_and_ours_raises(monkeypatch):
    with_form(monkeypatch, "sdpa", lambda _: Failing())
    item = by_name(run_case(CASE, SETTING, rounds=1))["sdpa"]
    assert (item.skipped, item.seconds) == ("did not run: no kernel for this", ())
    with_form(monkeypatch, "convattn", lambda _: Failing())
    with pytest.raises(RuntimeError, match="no kernel"):
        run_case(CASE, SETTING, rounds=1)


def test_why_there_is_no_memory_is_said(monkeypatch):
    case = replace(CASE, forms=("convattn", "reference"), memory=True)
    monkeypatch.setattr(runner, "in_a_process_of_its_own", lambda *_: None)
    assert {item.memory_note for item in run_case(case, SETTING, rounds=1).measurements} == {
        "measured on CUDA and Linux only"
    }

    def fail(*_):
        raise MemoryError("the process was killed\nand more")

    monkeypatch.setattr(runner, "in_a_process_of_its_own", fail)
    heads, rows = table([run_case(case, SETTING, rounds=1)], ())
    assert [row[heads.index("call, MiB")] for row in rows] == [
        "not measured: the process was killed"
    ] * 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_memory_of_the_reference_grows_with_all_pairs():
    case = replace(CASE, size=40, batch=1)
    threads = torch.get_num_threads()
    held = case.heads * case.size**4 * 4
    assert measure_memory("reference", case, SETTING, threads) > held
    assert torch.get_num_threads() == threads


def test_there_must_be_a_round():
    with pytest.raises(ArgumentError, match="rounds must be an integer of at least 1, but is 0"):
        run_suite(LAYERS, [CASE], SETTING, rounds=0)
