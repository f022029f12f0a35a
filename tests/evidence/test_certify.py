"""Faults that are planted do something, right conversions do nothing, and the page says what was counted."""

import copy
import random

import pytest
import torch
from torch import nn

from evidence.certify.__main__ import (
    CONVERSIONS,
    FAULTS,
    Case,
    agree,
    fault_table,
    filled,
    largest_missed,
    plant,
    planted,
    random_cnn,
    right_table,
)


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(3)
    return filled(random_cnn(random.Random(3))), torch.randn(2, 3, 24, 24)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_changes_the_layer_that_it_names_and_no_other(case, kind):
    damaged = copy.deepcopy(case[0])
    layer = plant(kind, damaged, random.Random(7))
    before, after = case[0].state_dict(), damaged.state_dict()
    changed = {
        name.rpartition(".")[0] for name in before if not torch.equal(before[name], after[name])
    }
    padded = {
        name
        for name, part in damaged.named_modules()
        if getattr(part, "padding_mode", "zeros") != "zeros"
    }
    assert changed | padded == {layer}


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_right_conversion_changes_little_in_float64(case, kind):
    network, images = case[0].double(), case[1].double()
    made = CONVERSIONS[kind](copy.deepcopy(network), images)
    with torch.no_grad():
        assert (made(images) - network(images)).abs().max() < 1e-13 * network(images).abs().max()
    network.float()


def test_folding_leaves_no_normalisation_behind_a_convolution():
    network = filled(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    )
    made = CONVERSIONS["folded"](copy.deepcopy(network), torch.randn(2, 3, 8, 8))
    assert [type(part) for part in made] == [nn.Conv2d, nn.Identity, nn.ReLU, nn.BatchNorm2d]


def test_tolerances_are_those_of_allclose():
    ones = torch.ones(3)
    assert agree(ones, ones * 1.0019) == (True, False)
    assert agree(ones, ones * 1.0021) == (False, False)
    assert agree(ones, ones * 1.000019) == (True, True)


def fault(verdict, effect, first="a"):
    return Case(
        "net", "folded", "dropped bias", "a", verdict, first, 1e-6, 1e-6, 2.0, effect, (True, False)
    )


def test_what_was_found_hidden_and_missed_is_counted():
    right = Case("net", "folded", None, None, "exact", None, 1e-7, 1e-6, 2.0, None, (True, True))
    cases = [
        right,
        fault("close", 1e-4),
        fault("close", 1e-4, "b"),
        fault("exact", 1e-8),
        fault("exact", 5e-7),
    ]
    assert "| dropped bias | 4 | 2 | 1 | 1 | 1 | 0 | 4 |" in fault_table(cases)
    assert "| folded | 1 | 0 | 0 | 0 |" in right_table(cases)
    counts = planted(cases)
    assert (counts["all"], counts["found"]) == (4, 2)
    assert counts["right"] == counts["conversions"] == 1
    assert largest_missed(cases) == 0.5
