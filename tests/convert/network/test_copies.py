"""Copies of converted networks compute what they copy, whatever Python asks of the modules in them."""

import copy
import pickle

import pytest
import torch
from tests.convert.network.network_cases import Called, images
from torch import nn
from torch.nn import functional as F

from convattn import certify, network_to_attention, network_to_conv
from convattn.convert import freeze
from convattn.convert.calls import AttendedCalls
from convattn.convert.network_runs import copy_network
from convattn.errors import UnsupportedModelError

X = images(2, 3, 7, 9)


class Calling(nn.Module):
    """Calls a convolution as a function."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x):
        return F.conv2d(x, self.weight)


class Copying(Calling):
    """Makes copies of itself by a method of its own."""

    def __deepcopy__(self, memo):
        copied = type(self)()
        copied.load_state_dict(self.state_dict())
        return copied


def sequence():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1))


NETWORKS = {
    "plain": sequence,
    "a call": Calling,
    "a graph of modules": lambda: torch.fx.symbolic_trace(sequence()),
    "a graph of calls": lambda: torch.fx.symbolic_trace(Calling()),
    "a graph of calls of modules": lambda: torch.fx.symbolic_trace(nn.Sequential(Calling())),
    "a copier": Copying,
    "a copier inside": lambda: nn.Sequential(
        nn.Sequential(Copying(), nn.ReLU()), nn.Conv2d(4, 5, 1)
    ),
    "one layer": lambda: nn.Conv2d(3, 4, 3),
}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda network: pickle.loads(pickle.dumps(network)),
    "library": copy_network,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_computes_what_it_copies(name):
    torch.manual_seed(0)
    network = NETWORKS[name]().eval()
    soft, certificate = network_to_attention(network, images=X, sharpness=0.3)
    hard, exact = network_to_attention(network, images=X)
    assert exact.verdict == "exact"
    assert certificate.verdict == "different"
    assert certify(network, soft, X).verdict == "different"
    for made in (soft, hard, freeze(soft, X), freeze(hard, X)):
        for how, copied in COPIES.items():
            assert torch.equal(copied(made)(X), made(X)), how
    back, certificate = network_to_conv(hard, images=X)
    assert certificate.verdict == "exact"
    assert torch.equal(copy.deepcopy(back)(X), back(X))


def test_what_python_asks_of_an_object_is_not_asked_of_the_module_inside():
    class Answering(Calling):
        """Answers whatever it is asked."""

        def __getattr__(self, name):
            return "answer" if name.startswith("__") else super().__getattr__(name)

    torch.manual_seed(0)
    made, _ = network_to_attention(nn.Sequential(Copying()), images=X)
    wrapper = AttendedCalls(Answering(), [], [])
    for name in (
        "__deepcopy__",
        "__copy__",
        "__getinitargs__",
        "__array__",
        "__len__",
        "__wrapped__",
    ):
        with pytest.raises(AttributeError, match=name):
            getattr(made[0], name)
        with pytest.raises(AttributeError, match=name):
            getattr(wrapper, name)
    assert made[0].__reduce_ex__(4)[1] == (AttendedCalls,)
    assert repr(made[0]).startswith("AttendedCalls(")
    assert {"module", "layers", "calls"} <= {*dir(made[0]), *vars(made[0])}
    assert made[0].weight is made[0].module.weight


class Rebuilding(Called):
    """Copies itself with a new convolution."""

    def __deepcopy__(self, memo):
        copied = type(self)(nn.Conv2d(3, 4, 3), self.call)
        copied.load_state_dict(self.state_dict(), strict=False)
        return copied


def test_a_class_that_copies_itself_without_its_attention_is_refused():
    network = Rebuilding(nn.Conv2d(3, 4, 3), lambda conv, x: conv(x))
    message = "cannot copy Rebuilding: its copies lose the attention at layer"
    with pytest.raises(UnsupportedModelError, match=message):
        network_to_attention(network, images=X)
