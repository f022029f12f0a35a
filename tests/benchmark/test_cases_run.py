"""Running cases: who is missing is said, who is wrong gets no time."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from convattn.benchmark import layer_case, scaling, training_case
from convattn.benchmark.build import Setting
from convattn.benchmark.cases import LayerCase, NetworkSize, ScalingCase, TrainingCase
from convattn.benchmark.contenders import CONTENDERS
from convattn.benchmark.layer_case import measure_contender, run_layer_case
from convattn.benchmark.report import COLUMNS, case_rows, scaling_columns, scaling_rows
from convattn.benchmark.scaling import run_scaling
from convattn.benchmark.suite import run_layers
from convattn.benchmark.training_case import run_training_case
from convattn.errors import ArgumentError

SETTING = Setting()
CASE = LayerCase("tiny", "quadratic", channels=10, heads=3, size=7, batch=2, memory=False)
SMALL = NetworkSize(width=12, depth=1, heads=3, ffn=7, image=8, batch=3)
TRAINING = TrainingCase("training", SMALL, 0.1, SMALL, steps=3)


class Perturbed(nn.Module):
    def __init__(self, honest):
        super().__init__()
        self.honest = honest

    def forward(self, x):
        return self.honest(x) * 1.0001


class Failing(nn.Module):
    def forward(self, *_):
        raise RuntimeError("no kernel for this\nand a long trace")


def with_contender(monkeypatch, name, change):
    """Puts another module in the place of an honest contender's."""

    def build(case, setting):
        honest = CONTENDERS[name](case, setting)
        return replace(honest, module=change(honest.module))

    monkeypatch.setattr(layer_case, "CONTENDERS", {**CONTENDERS, name: build})


def by_name(result):
    return {item.contender: item for item in result.measurements}


def test_each_contender_is_timed_in_every_round():
    result = run_layer_case(CASE, SETTING, rounds=3)
    assert result.passed
    for name, item in by_name(result).items():
        assert len(item.seconds) == 3, name
        assert min(item.seconds) > 0
        assert (item.check is None) == (name == "conv")
        assert (item.path is None) == (name not in {"convattn", "reference"})
    assert by_name(result)["reference"].path == "reference"


@pytest.mark.parametrize("name", ["convattn", "sdpa"])
def test_wrong_contender_gets_no_time(monkeypatch, name):
    with_contender(monkeypatch, name, Perturbed)
    result = run_layer_case(CASE, SETTING, rounds=2)
    found = by_name(result)
    assert not result.passed
    assert not found[name].check.passed
    assert found[name].seconds == ()
    assert len(found["reference"].seconds) == 2
    row = dict(zip(COLUMNS, next(row for row in case_rows(result) if row[0] == name), strict=True))
    assert row["check"].startswith("FAILED: output is off by ")
    assert row["ms"] == "–"


def test_peer_that_cannot_run_is_said_to_and_ours_raises(monkeypatch):
    with_contender(monkeypatch, "sdpa", lambda _: Failing())
    item = by_name(run_layer_case(CASE, SETTING, rounds=1))["sdpa"]
    assert (item.skipped, item.seconds) == ("did not run: no kernel for this", ())
    with_contender(monkeypatch, "convattn", lambda _: Failing())
    with pytest.raises(RuntimeError, match="no kernel"):
        run_layer_case(CASE, SETTING, rounds=1)


def test_peer_that_is_not_installed_is_listed(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.models.convit", None)
    record = run_layers([replace(CASE, contenders=("convattn", "gpsa", "flex"))], SETTING, rounds=1)
    line = 'not installed: pip install timm (or the extra "bench" of convattn)'
    found = by_name(record.cases[0])
    assert found["gpsa"].skipped == line
    assert record.missing == {"gpsa": line}
    assert found["flex"].skipped == "FlexAttention is measured on CUDA only"
    assert record.passed


@pytest.mark.parametrize("training", [False, True])
def test_gated_attention_of_timm_is_timed(training):
    result = run_layer_case(replace(CASE, contenders=("convattn", "gpsa"), training=training), SETTING, rounds=1)
    item = by_name(result)["gpsa"]
    assert item.check is None
    assert len(item.seconds) == 1
    assert "9 channels" in item.note


def test_memory_that_cannot_be_measured_is_said(monkeypatch):
    def killed(*_):
        raise MemoryError("the process was killed")

    monkeypatch.setattr(layer_case, "in_a_process_of_its_own", killed)
    result = run_layer_case(replace(CASE, contenders=("convattn", "reference"), memory=True), SETTING, rounds=1)
    assert [row[-1] for row in case_rows(result)] == ["not measured: the process was killed"] * 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from Linux")
def test_memory_of_the_reference_grows_with_all_pairs():
    case = replace(CASE, size=40, batch=1)
    threads = torch.get_num_threads()
    held = case.heads * case.size**4 * 4
    assert measure_contender("reference", case, SETTING, threads) > held
    assert torch.get_num_threads() == threads


def test_scaling_fits_what_runs_and_notes_what_layers_do_not_know(monkeypatch):
    monkeypatch.setitem(scaling._ENCODINGS, "telepathic", "quadratic")
    case = ScalingCase("scaling", ("separable", "telepathic"), channels=6, heads=3, sizes=(5, 7, 11))
    curve, unknown = run_scaling(case, SETTING, rounds=2)
    assert curve.positions == (25, 49, 121)
    assert [len(times) for times in curve.seconds] == [2, 2, 2]
    assert curve.passed
    assert curve.exponent is not None
    assert unknown.skipped.startswith("skipped: unknown impl 'telepathic'")
    assert (unknown.seconds, unknown.exponent) == ((), None)
    for row in scaling_rows((curve, unknown)):
        assert len(row) == len(scaling_columns((curve, unknown))) == 6


def test_wrong_path_has_no_times_and_no_exponent(monkeypatch):
    honest = scaling._build
    monkeypatch.setattr(scaling, "_build", lambda case, path: hook(honest(case, path)))

    def hook(layer):
        layer.register_forward_hook(lambda *args: args[2] * 1.0001)
        return layer

    case = ScalingCase("scaling", ("separable",), channels=6, heads=3, sizes=(5, 7))
    (curve,) = run_scaling(case, SETTING, rounds=1)
    assert not curve.passed
    assert curve.seconds == ((), ())
    assert curve.exponent is None
    assert scaling_rows((curve,))[0][1].startswith("FAILED: output")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_steps_agree_and_are_timed(dropout):
    result = run_training_case(replace(TRAINING, dropout=dropout), SETTING, rounds=2)
    found = by_name(result)
    assert {name: len(item.seconds) for name, item in found.items()} == {"convattn": 2, "reference": 2, "published": 2}
    assert found["convattn"].path == ("dense" if dropout else "separable")
    assert all(item.check.passed and item.check.worst == "losses" for item in found.values())
    assert result.images == 3


def test_training_that_goes_another_way_gets_no_time(monkeypatch):
    honest = training_case._as

    def take(name, network):
        if name == "convattn":
            network.head.register_forward_hook(lambda *args: args[2] * 1.0001)
        return honest(name, network)

    monkeypatch.setattr(training_case, "_as", take)
    found = by_name(run_training_case(TRAINING, SETTING, rounds=1))
    assert not found["convattn"].check.passed
    assert found["convattn"].seconds == ()
    assert len(found["reference"].seconds) == 1


def test_there_must_be_a_round():
    with pytest.raises(ArgumentError, match="rounds must be an integer of at least 1, but is 0"):
        run_layers([CASE], SETTING, rounds=0)
