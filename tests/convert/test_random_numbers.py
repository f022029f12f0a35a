"""Networks that draw random numbers: all runs draw the same ones, in each dtype and layout, from whatever source."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from convattn import certify
from convattn.convert import network_to_attention, network_to_conv
from convattn.heads.untrained import untrained

IMAGES = torch.randn(4, 3, 9, 11, generator=torch.Generator().manual_seed(5))


class Drawing(nn.Module):
    """Draws before and between two convolutions, in evaluation too."""

    def __init__(self, draw):
        super().__init__()
        self.first, self.second, self.draw = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3), draw

    def forward(self, x):
        share = random.random()  # at once: checks of types draw some, too
        return share * self.second(self.draw(self.first(x))).mean((2, 3))


def path(y):
    kept = torch.rand(len(y), 1, 1, 1, dtype=y.dtype, device=y.device) + 0.7
    return y * kept.floor() / 0.7


DRAWS = {
    "dropout": lambda y: F.dropout(y, 0.3, True),
    "dropout of channels": lambda y: F.dropout2d(y, 0.3, True),
    "dropout of a GPU": lambda y: torch.native_dropout(y, 0.3, True)[0],
    "dropout that keeps the mean": lambda y: F.alpha_dropout(y, 0.3, True),
    "dropped paths": path,
    "normal noise": lambda y: y + torch.randn_like(y),
    "noise in float64": lambda y: y + torch.rand(y.shape, dtype=torch.float64).to(y),
    "noise filled in": lambda y: y + torch.empty_like(y).exponential_(),
    "a mask": lambda y: y * torch.bernoulli(torch.full_like(y, 0.7)),
    "choices": lambda y: F.gumbel_softmax(y, dim=1),
    "another order": lambda y: y[:, torch.randperm(8)],
    "numpy": lambda y: y + torch.from_numpy(np.random.rand(*y.shape)).to(y),  # noqa: NPY002
}


ON_BOTH_PATHS = ("dropout", "numpy")
"""What torch's generator draws, and another: which path runs is nothing to either."""


@pytest.mark.parametrize("name", DRAWS)
def test_a_network_that_draws_is_exact_and_a_fault_in_it_is_found(name):
    torch.manual_seed(0)
    network = Drawing(DRAWS[name]).eval()
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    for impl in ("auto", "separable") if name in ON_BOTH_PATHS else ("auto",):
        made, certificate = network_to_attention(network, images=IMAGES, impl=impl)
        assert certificate.verdict == "exact", certificate.summary()
        assert not [item for item in certificate.not_covered if "as a whole" in item]
    assert network_to_conv(made, images=IMAGES)[1].verdict == "exact"
    other = copy.deepcopy(network).to(memory_format=torch.channels_last)
    assert certify(network, other, IMAGES).verdict == "exact"
    after = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    other.second.weight.data[2, :, 1, 1] += 1e-3
    assert certify(network, other, IMAGES).verdict != "exact"


def test_devices_without_the_network_are_not_seeded(monkeypatch):
    seeds = []
    monkeypatch.setattr("torch.cuda.manual_seed_all", seeds.append)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()).eval()
    network_to_attention(network, images=torch.zeros(1, 3, 5, 5))
    untrained(network, 0)
    assert seeds == []


def test_that_one_seed_was_drawn_is_said():
    torch.manual_seed(0)
    told = "other random numbers than the ones that all runs drew"
    for draw, draws in ((DRAWS["dropout"], True), (F.relu, False)):
        _, certificate = network_to_attention(Drawing(draw), images=IMAGES)
        assert (told in certificate.not_covered) == draws
