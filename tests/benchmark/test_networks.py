"""The suite "networks": the forms of a network are equal before they are timed, and what they take is told."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from convattn.benchmark import NETWORK_COLUMNS, NetworksRecord, network_case, network_rows
from convattn.benchmark.build import Setting
from convattn.benchmark.cases import NetworkCase, find_suite
from convattn.benchmark.network_case import run_network_case
from convattn.benchmark.network_page import networks_page
from convattn.benchmark.network_suite import run_networks, write_networks
from convattn.errors import ArgumentError, MissingDependencyError
from convattn.layers import RelativeAttention2d

CASE = NetworkCase("tiny", "test_resnet", size=64, batches=(1, 2), memory=False)


@pytest.fixture(scope="module")
def record():
    return run_networks([CASE], Setting(), rounds=1, quick=True, command="convattn bench")


def test_each_form_is_timed_in_every_round(record):
    assert record.passed
    single, several = record.results
    assert (single.name, several.name) == ("tiny-1", "tiny-2")
    for result, rounds in ((single, 20), (several, 1)):
        assert [item.contender for item in result.measurements] == ["original", "planned", "separable", "frozen"]
        assert all(len(item.seconds) == rounds for item in result.measurements)
        assert result.paths == {
            "planned": {"shift": result.layers},
            "separable": {"separable": result.layers},
            "frozen": {"separable": result.layers},
        }


def test_form_that_is_wrong_gets_no_time(monkeypatch):
    right = network_case._build

    def wrong(name, case, setting):
        network = right(name, case, setting)
        if name == "separable":
            with torch.no_grad():
                next(m for m in network.modules() if isinstance(m, RelativeAttention2d)).values.weight.mul_(1.0001)
        return network

    monkeypatch.setattr(network_case, "_build", wrong)
    result = run_network_case(replace(CASE, batches=(1,)), Setting(), 1)[0]
    assert not result.passed
    assert [len(item.seconds) for item in result.measurements] == [20, 20, 0, 20]
    rows = network_rows([result])
    assert rows[2][4].startswith("FAILED: output is off by")
    assert rows[2][5] == "–"


def test_memory_of_all_pairs_is_that_of_their_weights():
    layer = RelativeAttention2d(3, 5, 9, "quadratic", kernel_size=3, stride=2, padding=1)
    weights = layer.attention((7, 5))
    assert network_case._pairs(layer, (4, 3, 7, 5)) == weights.nbytes


@pytest.mark.slow
def test_memory_is_that_of_weights_and_the_largest_call():
    result = run_network_case(replace(CASE, size=224, memory=True, batches=(1, 8)), Setting(), 1)[1]
    images = 8 * 3 * 224**2 * 4
    for item in result.measurements:
        assert item.weights > 0
        assert images < item.extra_memory < 100 * images


def test_why_there_is_no_memory_is_said(monkeypatch):
    case = replace(CASE, memory=True, batches=(2,))
    monkeypatch.setattr(network_case, "in_a_process_of_its_own", lambda *_: (None,))
    result = run_network_case(case, Setting(), 1)[0]
    assert {item.memory_note for item in result.measurements} == {"measured on CUDA and Linux only"}
    assert [row[8] for row in network_rows([result])] == ["measured on CUDA and Linux only"] * 4

    def fail(*_):
        raise MemoryError("the process was killed\nand more")

    monkeypatch.setattr(network_case, "in_a_process_of_its_own", fail)
    result = run_network_case(case, Setting(), 1)[0]
    assert {item.memory_note for item in result.measurements} == {"not measured: the process was killed"}


def test_page_and_record(record, tmp_path):
    write_networks(record, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["networks-speed.json", "networks-speed.md"]
    assert NetworksRecord.load(tmp_path / "networks-speed.json") == record
    page = networks_page(record)
    assert "Every check passed." in page
    assert "rounds: 1, of single images 20" in page
    assert all(len(row) == len(NETWORK_COLUMNS) for row in network_rows(record.results))
    failed = replace(record, passed=False)
    assert "A check FAILED" in networks_page(failed)


def test_suites_have_what_was_promised():
    names = [case.name for case in find_suite("networks")]
    assert names == ["resnet18", "resnet50", "convnext_tiny", "efficientnet_b0"]
    assert all(case.batches == (1, 16) and case.size == 224 for case in find_suite("networks"))


def test_no_rounds_and_no_timm(monkeypatch):
    with pytest.raises(ArgumentError, match="rounds must be an integer of at least 1, but is 0"):
        run_networks([CASE], Setting(), rounds=0)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match="timm"):
        run_networks([CASE], Setting(), rounds=1)


def test_original_is_as_it_was():
    with torch.no_grad():
        made = network_case._build("original", CASE, Setting())
    assert not made.training
    assert any(isinstance(module, nn.Conv2d) for module in made.modules())
