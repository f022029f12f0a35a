"""Whole networks: their forms are equal before they are timed, and what they take is told."""

import copy
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch

from benchmarks.cases.network import FORMS, NetworkCase, all_pairs
from benchmarks.page import suite_page
from benchmarks.record import BenchmarkRecord
from benchmarks.report import table
from benchmarks.runner import run_case, run_suite, write_files
from benchmarks.setting import Setting
from benchmarks.suites import SUITES
from convattn.errors import MissingDependencyError
from convattn.layers import RelativeAttention2d

NETWORKS = SUITES["networks"]
ONE = NetworkCase(
    name="tiny-1", group="tiny", network="test_resnet", images=1, size=32, memory=False
)
TWO = replace(ONE, name="tiny-2", images=2)


BUILD = NetworkCase.build


@cache
def built(name):
    return BUILD(ONE, name, Setting())


def copied(_, name, setting):
    """In place of `build`, which makes the same network for both cases: a copy of the one made before."""
    assert setting == Setting()
    return copy.deepcopy(built(name))


@pytest.fixture(scope="module")
def record():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NetworkCase, "build", copied)
        return run_suite(
            NETWORKS, [ONE, TWO], Setting(), rounds=1, quick=True, command="python -m benchmarks"
        )


def test_each_form_is_timed_in_every_round(record):
    assert record.passed
    assert [case.name for case in record.cases] == ["tiny-1", "tiny-2"]
    for result, rounds in zip(record.cases, (20, 1), strict=True):
        assert [item.contender for item in result.measurements] == list(FORMS)
        assert all(len(item.seconds) == rounds for item in result.measurements)
        original, planned, again, separable, frozen = result.measurements
        assert (original.path, again.path, frozen.path) == (None, None, None)
        assert planned.path.startswith("shift × ")
        assert separable.path == planned.path.replace("shift", "separable")
        assert "all pairs of pixels would take" in planned.note


def test_form_that_is_wrong_gets_no_time(monkeypatch):
    def wrong(*given):
        network, name = copied(*given), given[1]
        if name == "separable":
            with torch.no_grad():
                next(
                    m for m in network.modules() if isinstance(m, RelativeAttention2d)
                ).values.weight.mul_(1.0001)
        return network

    monkeypatch.setattr(NetworkCase, "build", wrong)
    result = run_case(TWO, Setting(), 1)
    assert not result.passed
    assert [len(item.seconds) for item in result.measurements] == [1, 1, 1, 0, 1]
    heads, rows = table([result], NETWORKS.baselines)
    row = dict(zip(heads, rows[3], strict=True))
    assert row["check"].startswith("FAILED: output is off by")
    assert row["ms"] == "–"


def test_memory_of_all_pairs_is_that_of_their_weights():
    layer = RelativeAttention2d(
        3, 5, num_heads=9, encoding="quadratic", kernel_size=3, stride=2, padding=1
    )
    weights = layer.attention((7, 5))
    assert all_pairs(layer, (4, 3, 7, 5)) == weights.nbytes


@pytest.mark.slow
def test_memory_is_that_of_weights_and_a_call():
    result = run_case(replace(TWO, size=224, memory=True, images=8), Setting(), 1)
    images = 8 * 3 * 224**2 * 4
    for item in result.measurements:
        assert item.weights > 0
        assert images < item.extra_memory < 100 * images


def test_page_and_record(record, tmp_path):
    write_files(record, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "networks-speed-tables.md",
        "networks-speed.json",
    ]
    assert BenchmarkRecord.load(tmp_path / "networks-speed.json") == record
    page = suite_page(record)
    assert "Every check passed." in page
    assert "rounds: 1, of some cases 20" in page
    assert "÷ original" in page
    assert "A check FAILED" in suite_page(replace(record, passed=False))


def test_without_timm_nothing_is_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match="timm"):
        run_case(ONE, Setting(), rounds=1)
