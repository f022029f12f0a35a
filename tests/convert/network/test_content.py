"""Whole networks with content behind gates: closed the same function, open another, and back while closed."""

import copy
from operator import call

import pytest
import torch
from tests.convert.network.network_cases import assert_unchanged, filled, fingerprint, images
from torch import nn

from convattn import network_to_attention, network_to_conv
from convattn.budget import assert_within_budget, roundings
from convattn.errors import ConversionError
from convattn.layers import Content, RelativeAttention
from convattn.models import ResNet


def small_resnet():
    torch.manual_seed(0)
    return filled(ResNet(1, width=4)).eval()


def layers(network):
    return [module for module in network.modules() if isinstance(module, RelativeAttention)]


def test_closed_gates_leave_a_network_as_it_is():
    network, x = small_resnet(), images(2, 3, 16, 16)
    before = fingerprint(network)
    made, certificate = network_to_attention(network, content=True, images=x)
    assert_unchanged(network, before)
    assert certificate.passed
    assert certificate.exact
    assert {layer.path for layer in certificate.layers} == {"shift"}
    plain, _ = network_to_attention(network, images=x)
    with torch.no_grad():
        assert torch.equal(made(x), plain(x))
    high = copy.deepcopy(network).double()(x.double())
    assert_within_budget(made(x), high, roundings(call, network, x), "with gradients")


def test_closed_gates_become_the_same_convolutions_again_and_open_ones_are_left():
    network, x = small_resnet(), images(2, 3, 16, 16)
    made, _ = network_to_attention(network, content=Content(key_width=3, position=False), images=x)
    again, certificate = network_to_conv(made, images=x)
    assert certificate.exact
    assert not certificate.left_alone
    state = again.state_dict()
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())
    nn.init.constant_(made.stages[3].first.gate[1:2], -0.25)
    half, certificate = network_to_conv(made, images=x)
    assert [item.name for item in certificate.left_alone] == ["stages.3.first"]
    assert "its gate is open" in certificate.left_alone[0].reason
    assert len(layers(half)) == 1


@pytest.mark.parametrize("learns", [True, False])
def test_what_learns_beside_the_gate_is_as_in_the_convolution(learns):
    network = small_resnet().requires_grad_(learns)
    made, _ = network_to_attention(network, content=True, images=images(2, 3, 16, 16))
    assert {number.requires_grad for number in made.parameters()} == {learns}


def test_open_gates_are_told_once_with_what_closes_them():
    x = images(2, 3, 16, 16)
    made, _ = network_to_attention(
        small_resnet(), content=Content(key_width=3, position=False), images=x
    )
    for number, layer in enumerate(layers(made), 1):
        nn.init.constant_(layer.gate, number / 100)
    with pytest.raises(ConversionError) as caught:
        network_to_conv(made, images=x)
    assert str(caught.value).count("its gate is open") == 1
    *others, last = layers(made)
    for layer in [*others[2:], last]:
        layer.gate.data.fill_(0)  # as the message says
    _, certificate = network_to_conv(made, images=x)
    assert len(certificate.left_alone) == 2
    (line,) = [line for line in certificate.summary().splitlines() if "left alone" in line]
    assert "(RelativeAttention2d): " in line
    assert "layer.gate.data.fill_(0)" in line
