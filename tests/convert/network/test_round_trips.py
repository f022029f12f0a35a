"""Networks to attention and back: certified on any processor, with every bit as it was, and faults found.

The large ones: `pytest -m slow tests/convert/network/test_round_trips.py`.
"""

import copy

import pytest
import torch
from tests.convert.network.network_cases import Called
from torch import nn

from convattn import certify, network_to_attention, network_to_conv
from convattn.convert.convolutions import NetworkConvolution
from convattn.convert.network_check import compare_networks
from convattn.convert.network_runs import Arguments
from convattn.networks import create_network

SMALL = [
    ("timm:test_resnet", torch.float32),
    ("timm:test_resnet", torch.float64),
    ("torchvision:resnet18", torch.float32),
]
LARGE = [
    *(
        f"torchvision:{name}"
        for name in ("resnet50", "resnet18", "convnext_tiny", "vgg11", "densenet121")
    ),
    "timm:regnety_016",
]
FORMATS = [torch.contiguous_format, torch.channels_last]


def built(name, dtype=torch.float32, memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    return create_network(name).eval().to(dtype=dtype, memory_format=memory_format)


def images(size, dtype=torch.float32, memory_format=torch.contiguous_format):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 3, size, size, generator=generator).to(
        dtype=dtype, memory_format=memory_format
    )


def require_round_trip(network, x):
    made, there = network_to_attention(network, images=x)
    again, back = network_to_conv(made, images=x)
    for certificate in (there, back):
        failed = [layer.summary() for layer in certificate.layers if not layer.passed]
        assert certificate.exact
        assert not failed, failed
        assert certificate.passed, certificate.summary()
    before, after = network.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize(("name", "dtype"), SMALL)
def test_small_networks_come_back_certified(name, dtype):
    require_round_trip(built(name, dtype), images(64, dtype))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_come_back_certified(name, memory_format):
    x = images(224, memory_format=memory_format)
    require_round_trip(built(name, memory_format=memory_format), x)


def leaking(conv):
    conv.weight.copy_(conv.weight * (1 - 1e-5) + 1e-5 * conv.weight.roll(1, -1))


def halved(conv):
    conv.weight.copy_(conv.weight.half())


def swapped(conv):
    conv.weight.copy_(conv.weight.flip(-1))


def other_border(conv):
    conv.padding_mode = "replicate"
    conv._reversed_padding_repeated_twice = [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["layer1.0.conv1", "layer3.1.conv2"])
def test_a_fault_in_one_convolution_is_found(name):
    network = built("torchvision:resnet18")
    given = Arguments((images(64),), {}, "the images given")

    def share(made):
        found = compare_networks(
            network,
            made,
            given,
            [NetworkConvolution((name,), made.get_submodule(name))],
            to_conv=True,
        )
        return found.nearest_to_rounding.share

    assert share(copy.deepcopy(network)) <= 1
    for fault in (leaking, halved, swapped, other_border):
        wrong = copy.deepcopy(network)
        with torch.no_grad():
            fault(wrong.get_submodule(name))
        assert not share(wrong) <= 1, fault.__name__


def test_ties_come_back():
    network = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1))
    network[2].weight = network[0].weight
    network[2].bias = network[0].bias
    x = torch.randn(2, 2, 7, 9)
    attention, _ = network_to_attention(network, images=x)
    back, certificate = network_to_conv(attention, images=x)
    assert certificate.verdict == "exact"
    counts = [sum(p.numel() for p in one.parameters()) for one in (network, attention, back)]
    assert counts == [38, 38, 38]
    assert back[0].weight is back[2].weight


def detect(conv, x):
    """Returns the places where a map is high, as many as there are, and one less in float64."""
    y = conv(x).sum(1)
    most = y.max()
    found = [{"boxes": image[image > most / 3], "count": len(image)} for image in y]
    if x.dtype == torch.float64:
        found[0]["boxes"] = found[0]["boxes"][1:]
    return found


def test_outputs_whose_shapes_rounding_changes_are_compared_by_layers():
    torch.manual_seed(0)
    network, x = Called(nn.Conv2d(3, 4, 3), detect).eval(), torch.randn(3, 3, 9, 11)
    _, there = network_to_attention(network, images=x)
    assert there.verdict == "exact", there.summary()
    assert there.reference == "float32"
    assert any("so its layers were compared, in float32" in item for item in there.not_covered)
    wrong = copy.deepcopy(network)
    wrong.layer.weight.data[0] *= 1.05
    assert certify(network, copy.deepcopy(network), x).verdict == "exact"
    assert certify(network, wrong, x, tolerance=None).verdict == "different"
