"""What layers cost: operations by the closed formula, and nothing left behind."""

import pytest
import torch
from torch import nn

from convattn import network_to_attention
from convattn.lab.layer_costs import layer_costs

NETWORK = nn.Sequential(
    nn.Conv2d(6, 4, 3, groups=2, padding=1),
    nn.ReLU(),
    nn.ConvTranspose2d(4, 8, (2, 3), stride=2, groups=2),
    nn.ReLU(),
).eval()
X = torch.ones(2, 6, 5, 7)
FLOPS = {
    "0": 2 * (2 * 4 * 5 * 7) * 3 * 9,  # outputs × channels of a group × taps
    "1": 0,
    "2": 2 * (2 * 4 * 5 * 7) * 4 * 6,  # inputs × outputs of a group × taps
}


def test_operations_are_those_of_the_formula_and_times_are_of_parts_of_the_whole():
    costs = layer_costs(NETWORK, X, ["0", "1", "2"])
    assert {name: cost.flops for name, cost in costs.items() if name} == FLOPS
    assert costs[""].flops == 0
    assert all(cost.seconds > 0 for cost in costs.values())
    assert costs["0"].seconds < costs[""].seconds


def test_attention_that_computes_a_convolution_needs_as_many():
    network = NETWORK[:2]
    attention, _ = network_to_attention(network, images=X)
    assert layer_costs(attention, X, ["0"])["0"].flops == FLOPS["0"]


def test_a_layer_that_runs_twice_counts_twice():
    conv = nn.Conv2d(6, 6, 1)
    costs = layer_costs(nn.Sequential(conv, conv), X, ["0"])
    assert costs["0"].flops == 2 * 2 * (2 * 6 * 5 * 7) * 6


def test_no_hook_stays_when_a_network_fails():
    with pytest.raises(RuntimeError, match="channels"):
        layer_costs(NETWORK, torch.ones(2, 5, 5, 7), ["0"])
    for part in NETWORK.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
