"""The benchmark of exact borders, on a network that has not learned."""

import pytest
import torch

from convattn.lab.speed_net import SpeedNet
from evidence.borders.__main__ import PADDINGS, borders, compared


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    network, images = SpeedNet(widths=(3, 5), sharpness=1.0).eval(), torch.randn(20, 3, 16, 16)
    return borders(network, images, torch.arange(20) % 10)


def test_exact_borders_change_no_decision_and_paddings_are_beside_them(rows):
    assert [*rows] == ["exact", *PADDINGS]
    assert rows["exact"]["tests"] == 20
    assert rows["exact"]["changed"] == 0
    assert rows["exact"]["certificate"]["verdict"] == "exact"
    assert rows["exact"]["largest_difference"] < 1e-4 * rows["zeros"]["largest_difference"]
    assert rows["zeros"]["tests"] == 20
    assert rows["zeros"]["largest_difference"] != rows["replicate"]["largest_difference"]


def test_a_changed_decision_is_counted_with_its_gap():
    attention = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 1.0]])
    found = compared(
        attention, torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 2.0]]), torch.tensor([0, 1])
    )
    assert found["changed"] == 1
    assert found["largest_gap_of_changed"] == 1.0
    assert (found["accuracy_of_attention"], found["accuracy"]) == (1.0, 0.5)
