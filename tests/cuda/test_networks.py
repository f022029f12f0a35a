"""Networks on a CUDA device: computed, certified, converted there and back, analysed, frozen and saved."""

import copy
from functools import partial
from operator import call

import pytest
import torch
from hypothesis import given, settings
from tests.convert.certify.certify_cases import FAULTS, classifier, damaged
from tests.convert.layer.test_every_convolution import ATTRIBUTES
from tests.convert.test_freezing import LAYERS, gradient
from tests.convert.test_freezing import images as images_of_freezing
from tests.cuda.test_layers import hold
from tests.devices.cases import cases as cases_of_devices
from tests.models.network_cases import SAVED, small_images
from tests.testing.convolutions import assert_convolves
from tests.testing.strategies import convolutions_with_images

from convattn import certify, load_network, network_to_attention, network_to_conv, save_network
from convattn.budget import assert_within_budget, references, roundings
from convattn.convert import attention_to_conv, conv_to_attention, freeze
from convattn.layers import FrozenAttention, RelativeAttention2d

PIXELS_AND_TABLES = {"page"}
"""Cases of another device whose results are sizes, which have no rounding."""


def device_case(case, device):
    """Compares what a case computes on the device with float64 on the CPU."""
    name, make, compute, x = case
    torch.manual_seed(0)
    module = make()
    actual = compute(copy.deepcopy(module).to(device), x.to(device))
    if name in PIXELS_AND_TABLES:
        assert torch.equal(actual.cpu(), compute(module, x))
        return
    hi, lows = references(compute, module, x)
    assert_within_budget(actual.detach(), hi.detach(), [low.detach() for low in lows])


class Named(tuple):
    """A case that is told by its name."""

    __slots__ = ()

    def __str__(self):
        return str(self[0])


def some_of(device, cases):
    """Chooses all cases, or on the CPU, where all have tests of their own, the first two."""
    return list(cases)[:2] if device.type == "cpu" else list(cases)


def test_layers_conversions_certificates_heads_and_pages_are_those_of_the_cpu(device):
    cases = [Named(case) for case in cases_of_devices()]
    hold(partial(device_case, device=device), some_of(device, cases))


def test_networks_are_computed_saved_and_loaded(device, tmp_path):
    def check(name):
        torch.manual_seed(0)
        network, x = SAVED[name]().eval(), small_images()
        with torch.no_grad():
            hi, lows = references(call, network, x)
            network.to(device)
            y = network(x.to(device))
            assert_within_budget(y, hi, lows)
            loaded = load_network(save_network(network, tmp_path / name.replace(" ", "-")))
            assert torch.equal(loaded.to(device)(x.to(device)), y), "loaded"

    hold(check, some_of(device, SAVED))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
def test_every_convolution_comes_back(device):
    @settings(max_examples=2 if device.type == "cpu" else 20)
    @given(convolutions_with_images())
    def run(case):
        conv, x = case
        layer, forwards = conv_to_attention(copy.deepcopy(conv).to(device))
        again, backwards = attention_to_conv(layer)
        assert (forwards.exact, backwards.exact) == (True, True)
        if type(again) is type(conv):
            assert torch.equal(again.weight.cpu(), conv.weight)
            for name in ATTRIBUTES:
                assert getattr(again, name) == getattr(conv, name), name
        for module in (layer, again):
            assert next(module.parameters()).device.type == device.type
            assert_convolves(module(x.to(device)), conv, x)

    run()


def test_soft_heads_become_convolutions_with_their_borders(device):
    torch.manual_seed(0)
    layer = RelativeAttention2d(4, 6, num_heads=4, encoding="quadratic").to(device)
    x = images_of_freezing(2, 4, 11, 13)
    with torch.no_grad():
        conv, certificate = attention_to_conv(layer, borders="exact", spatial=(11, 13))
        hi, lows = references(call, copy.deepcopy(layer).cpu(), x)
        assert certificate.passed
        assert_within_budget(conv(x.to(device)), hi, lows)


def test_networks_are_converted_there_and_back(device):
    network, x = classifier()
    with torch.no_grad():
        hi, lows = references(call, network, x)
        there, y = network.to(device), x.to(device)
        attention, first = network_to_attention(there, images=y)
        again, second = network_to_conv(attention, images=y)
        for name, certificate in (("to attention", first), ("back", second)):
            assert certificate.verdict == "exact", f"{name}: {certificate.summary()}"
        for name, one in (("attention", attention), ("convolutions", again)):
            assert_within_budget(one(y), hi, lows, name)


def test_a_certificate_finds_every_fault_and_no_other(device):
    network, x = (part.to(device) for part in classifier())
    assert certify(network, copy.deepcopy(network), x).verdict == "exact"

    def check(name):
        fault, layer = FAULTS[name]
        wrong = damaged(copy.deepcopy(network).cpu(), fault).to(device)
        certificate = certify(network, wrong, x)
        assert certificate.verdict in ("close", "different")
        assert certificate.first == layer

    hold(check, some_of(device, FAULTS))


def test_frozen_layers_compute_the_same_and_their_gradients(device):
    def check(name):
        torch.manual_seed(0)
        layer, x = LAYERS[name]().eval(), images_of_freezing(3, 4, 11, 13)
        there = copy.deepcopy(layer).to(device)
        frozen = freeze(there, x[:1].to(device))
        assert isinstance(frozen, FrozenAttention)
        for compute in (call, gradient):
            high = compute(copy.deepcopy(layer).double(), x.double())
            lows = roundings(compute, layer, x)
            assert_within_budget(compute(frozen, x.to(device)), high, lows)

    hold(check, list(LAYERS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_networks_under_autocast_lose_no_more_than_narrow_ones(device, dtype):
    def check(name):
        torch.manual_seed(0)
        network, x = SAVED[name]().eval(), small_images()
        with torch.no_grad():
            hi, _ = references(call, network, x)
            lows = [
                low.to(dtype)
                for low in roundings(call, copy.deepcopy(network).to(dtype), x.to(dtype))
            ]
            with torch.autocast(device.type, dtype=dtype):
                y = copy.deepcopy(network).to(device)(x.to(device))
            assert_within_budget(y.to(dtype), hi, lows)

    hold(check, some_of(device, SAVED))
