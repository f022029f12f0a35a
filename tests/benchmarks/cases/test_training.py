"""Training steps: who goes another way than the reference gets no time."""

from dataclasses import replace

import pytest

from benchmarks.cases import training
from benchmarks.cases.training import TrainingCase
from benchmarks.runner import run_case
from benchmarks.setting import Setting

SMALL = {"width": 12, "depth": 1, "heads": 3, "ffn": 7, "image_size": 8}
CASE = TrainingCase(name="training", network=SMALL, batch=3, dropout=0.1, small=SMALL, steps=3)


def by_name(result):
    return {item.contender: item for item in result.measurements}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_steps_agree_and_are_timed(dropout):
    result = run_case(replace(CASE, dropout=dropout), Setting(), rounds=2)
    found = by_name(result)
    names = ["convattn", "reference", "published", "convattn-bf16", "published-bf16"]
    assert {name: len(item.seconds) for name, item in found.items()} == dict.fromkeys(names, 2)
    assert found["convattn"].path == ("dense" if dropout else "separable")
    assert found.pop("published-bf16").check is None
    assert all(item.check.passed and item.check.worst == "losses" for item in found.values())
    assert result.images == 3


def test_training_that_goes_another_way_gets_no_time(monkeypatch):
    honest = training.compute_as

    def take(name, network):
        if name == "convattn":
            network.head.register_forward_hook(lambda *args: args[2] * 1.0001)
        return honest(name, network)

    monkeypatch.setattr(training, "compute_as", take)
    found = by_name(run_case(CASE, Setting(), rounds=1))
    assert not found["convattn"].check.passed
    assert found["convattn"].seconds == ()
    assert len(found["reference"].seconds) == 1
