"""Networks whose large kernels follow a plan: what is replaced, what stays, and the certificate."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from convattn.convert import accelerate_large_kernels, certify
from convattn.errors import ArgumentError, ConversionError
from convattn.layers import LargeKernelConv1d, LargeKernelConv2d


def network():
    torch.manual_seed(0)
    large = nn.Conv2d(8, 8, 31, padding=15, groups=8)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        large,
        nn.ReLU(),
        large,
        nn.Conv2d(8, 5, 1),
        nn.Flatten(),
        nn.LazyLinear(7),
    )


def test_slow_convolutions_are_replaced_on_a_copy():
    net, images = network(), torch.randn(2, 3, 40, 40)
    net(images)
    calls = []
    net[1].register_forward_hook(lambda *_: calls.append(1))
    before = copy.deepcopy(net.state_dict())
    made, certificate = accelerate_large_kernels(net, images)
    assert certificate.verdict == "exact"
    assert certificate.decisions == 2
    assert [type(part) for part in made[:5]] == [
        nn.Conv2d,
        LargeKernelConv2d,
        nn.ReLU,
        LargeKernelConv2d,
        nn.Conv2d,
    ]
    assert made[1] is made[3]
    assert type(net[1]) is nn.Conv2d
    assert list(made.state_dict()) == list(before)
    assert all(
        torch.equal(one, other)
        for one, other in zip(made.state_dict().values(), before.values(), strict=True)
    )
    calls.clear()
    made(images)
    assert len(calls) == 2
    assert made.training


COMPUTED = {
    "pruned": lambda conv: prune.random_unstructured(conv, "weight", 0.5),
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("wrap", COMPUTED.values(), ids=COMPUTED)
def test_a_weight_that_a_hook_computes_goes_on_learning(wrap):
    torch.manual_seed(0)
    net, images = (
        nn.Sequential(wrap(nn.Conv2d(8, 8, 31, padding=15, groups=8))).eval(),
        torch.randn(2, 8, 40, 40),
    )
    made, certificate = accelerate_large_kernels(net, images)
    assert certificate.verdict == "exact"
    assert type(made[0]) is LargeKernelConv2d
    made(images).sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in made.parameters()
    )
    with torch.no_grad():
        for parameter in (*net.parameters(), *made.parameters()):
            parameter.mul_(1.5)
    assert certify(net, made, images).verdict == "exact"


def test_one_sequence_without_a_batch():
    net = nn.Sequential(nn.Conv1d(2, 2, 2001, padding=1000, groups=2))
    made, certificate = accelerate_large_kernels(net, torch.randn(2, 8000))
    assert certificate.verdict == "exact"
    assert type(made[0]) is LargeKernelConv1d


def test_what_is_no_network_is_refused(without_type_checks):
    with pytest.raises(ArgumentError, match=r"network must be an nn\.Module, but is "):
        accelerate_large_kernels(None)


def test_nothing_to_gain():
    net = nn.Sequential(nn.Conv2d(3, 8, 3))
    with pytest.raises(ConversionError, match="nothing to replace"):
        accelerate_large_kernels(net, torch.randn(1, 3, 9, 9))
    with pytest.raises(ConversionError, match="nothing to replace"):
        accelerate_large_kernels(
            nn.Conv2d(8, 8, 31, padding=15, groups=8).bfloat16(),
            torch.randn(1, 8, 40, 40).bfloat16(),
        )
    with pytest.raises(ArgumentError, match="images must fit the network"):
        accelerate_large_kernels(net, torch.randn(1, 4, 9, 9))
