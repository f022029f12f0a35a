import sys
from dataclasses import replace

import pytest
import torch
from tests.lab.tiny import tiny_data, tiny_recipe, tiny_speed_recipe

from convattn.errors import ArgumentError, DataError
from convattn.lab import run_cost
from convattn.lab.run_cost import RunCost, announce, measure_cost


@pytest.mark.parametrize("recipe", [tiny_recipe(), tiny_speed_recipe()], ids=["one", "speed"])
def test_a_step_is_measured_and_leaves_random_numbers_as_they_were(recipe):
    state = torch.random.get_rng_state()
    cost = measure_cost(recipe, tiny_data())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert cost.steps == recipe.training.epochs * (40 // recipe.training.batch_size)
    assert 0 < cost.step_seconds < 5
    halved = replace(recipe, training=replace(recipe.training, batch_size=2))
    assert measure_cost(halved, tiny_data()).memory < cost.memory


@pytest.mark.parametrize(("steps", "expected"), [((9, 3, 2), 2), ((9, 5, 2), 5)])
def test_the_first_step_which_is_slower_says_nothing(monkeypatch, steps, expected):
    times = []
    for step in steps:
        times += [0.0, float(step)]
    monkeypatch.setattr(run_cost.time, "perf_counter", iter(times).__next__)
    recipe = tiny_recipe()
    recipe = replace(recipe, training=replace(recipe.training, batch_size=2))
    assert measure_cost(recipe, tiny_data()).step_seconds == expected


@pytest.fixture
def slow(monkeypatch):
    """Steps of ten seconds, a terminal, and data that no recipe of seed 5 can load."""

    def load(recipe):
        if recipe.held_out == 5:
            raise DataError("damaged")

    monkeypatch.setattr(run_cost, "load_data", load)
    monkeypatch.setattr(run_cost, "measure_cost", lambda *_: RunCost(360, 10.0, 3 * 2**20))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


def test_what_runs_take_is_said_and_more_than_an_hour_is_confirmed(slow, monkeypatch):
    said, one = [], tiny_recipe()
    line = f"{one.name}: 360 steps of 10 s on this machine, 1.0 hours; 3 MiB"
    announce([one], said.append, yes=False)
    assert said == [line]  # an hour, not more
    damaged = replace(one, data=replace(one.data, held_out=5))
    runs = [one, replace(one, seed=1), replace(one, seed=2), damaged]
    announce(runs, said.append, yes=True, workers=2)
    assert said[1:] == [line, f"{one.name}: could not be measured", "all 4 runs: 1.5 hours"]
    announce([one], said.append, yes=True, workers=8)
    announce(runs[:2], said.append, yes=True, workers=8)
    assert said[-1] == "all 2 runs: 1.0 hours"
    with pytest.raises(ArgumentError, match=r"this takes about 1\.5 hours: --yes starts it"):
        announce(runs, said.append, yes=False, workers=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    announce(runs, said.append, yes=False)
    assert said[-1] == "all 4 runs: 3.0 hours"
    monkeypatch.setenv("RANK", "0")
    announce(runs, lambda _: pytest.fail("it is one of several processes"), yes=False)


def test_images_are_loaded_once_and_a_step_without_memory_stops_nothing(slow, monkeypatch):
    loaded, said, one = [], [], tiny_recipe()

    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(run_cost, "load_data", loaded.append)
    monkeypatch.setattr(run_cost, "measure_cost", fail)
    faster = replace(one, optim=replace(one.optim, learning_rate=1.0))
    announce([one, faster], said.append, yes=False)
    assert loaded == [one.data]
    assert said == [f"{one.name}: could not be measured"] * 2 + ["all 2 runs: 0 s"]


def test_what_several_tensors_share_is_counted_once(monkeypatch):
    class Halves(torch.nn.Module):
        """Keeps the images, and two slices of what it makes of them, for the gradient."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, images):
            values = images.flatten(1) * self.weight
            return values[:, :2] * self.weight + values[:, 2:4] * self.weight

    monkeypatch.setattr(run_cost, "build_network", lambda *_: Halves())
    monkeypatch.setattr(run_cost, "build_optimizer", lambda _, n: torch.optim.SGD(n.parameters()))
    data = tiny_data()
    held = measure_cost(tiny_recipe(), data).memory - data.train.images.nbytes
    images = 4 * 8 * 36  # a batch, in float32
    assert 2 * images < held < 2.5 * images
