"""Small networks, one for each thing that a conversion of networks must keep, and networks that it must refuse."""

import copy
from contextlib import contextmanager
from operator import call

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from convattn import network_to_attention
from convattn.budget import assert_within_budget, roundings
from convattn.convert import conv_to_attention
from convattn.convert.calls import AttendedCalls


def filled(network):
    """Gives a network normal weights and batch-norm statistics that are not those of a new one, the same each time."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(
                    torch.randn(module.running_mean.shape, generator=generator) / 4
                )
                module.running_var.copy_(
                    torch.rand(module.running_var.shape, generator=generator) + 0.5
                )
                if module.weight is not None:
                    module.weight.copy_(torch.rand(module.weight.shape, generator=generator) + 0.5)
                    module.bias.copy_(torch.randn(module.bias.shape, generator=generator) / 4)
    return network


def images(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def hard(conv):
    return conv_to_attention(conv)[0]


def with_statistics(norm):
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


def numbers(tensor):
    """What can be compared of a tensor of any kind."""
    if is_lazy(tensor):
        return "not initialised"
    if tensor.is_meta:
        return tuple(tensor.shape)
    return tensor.int_repr() if tensor.is_quantized else tensor.detach().clone()


def fingerprint(network):
    """All that a conversion might change of the network it is given."""
    tensors = {
        name: (tensor._version, tensor.requires_grad, tensor.grad is None, numbers(tensor))
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]
    }
    modules = {name: (id(m), type(m).__name__, m.training) for name, m in network.named_modules()}
    hooks = {
        name: [
            list(getattr(m, h)) for h in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        ]
        for name, m in network.named_modules()
    }
    attributes = {name: sorted(vars(m)) for name, m in network.named_modules()}
    return {"modules": modules, "hooks": hooks, "attributes": attributes, "tensors": tensors}


def assert_equal(now, before):
    """Two tensors, or what stands for them, are the same, also where they are no numbers."""
    assert type(now) is type(before)
    if not isinstance(now, torch.Tensor):
        assert now == before
        return
    assert now.shape == before.shape
    assert now.dtype == before.dtype
    assert torch.equal(now.isnan(), before.isnan())
    assert torch.equal(now[~now.isnan()], before[~before.isnan()])


def assert_unchanged(network, before):
    after = fingerprint(network)
    for part in ("modules", "hooks", "attributes"):
        assert after[part] == before[part]
    assert after["tensors"].keys() == before["tensors"].keys()
    for name, (*state, values) in before["tensors"].items():
        assert list(after["tensors"][name][:3]) == state
        assert_equal(after["tensors"][name][3], values)


@contextmanager
def unchanged(*given):
    """Asserts that networks, tensors, the random state and whether gradients are taken are afterwards as before."""
    networks = [(item, fingerprint(item)) for item in given if isinstance(item, nn.Module)]
    tensors = [
        (item, item._version, numbers(item)) for item in given if isinstance(item, torch.Tensor)
    ]
    state, gradients = torch.get_rng_state(), torch.is_grad_enabled()
    yield
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == gradients
    for network, before in networks:
        assert_unchanged(network, before)
    for tensor, version, values in tensors:
        assert tensor._version == version
        assert_equal(numbers(tensor), values)


def converted(network, x, **options):
    """Converts a network; asserts that it was left as it was, that the certificate passed, and that results agree."""
    before = fingerprint(network)
    made, certificate = network_to_attention(network, images=x, **options)
    assert_unchanged(network, before)
    assert certificate.passed
    source = copy.deepcopy(network).eval()
    lows, high = roundings(call, source, x), source.double()(x.double())
    assert certificate.measured_error <= certificate.rounding
    result = copy.deepcopy(made).eval()(x)
    assert_within_budget(result, high, lows, "converted")
    return made, certificate


def convolutions(network):
    """The convolutions that a network computes, without those whose calls go to attention."""
    calling = [one.module for one in network.modules() if isinstance(one, AttendedCalls)]
    every = [one for one in network.modules() if isinstance(one, nn.modules.conv._ConvNd)]
    return [one for one in every if all(one is not other for other in calling)]


class Called(nn.Module):
    """A network around one layer, which `call` calls on the image."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


class Renamed(nn.Conv2d):
    """Overrides nothing; what it adds does not take part in the computation."""

    def describe(self):
        return f"{self.in_channels} to {self.out_channels}"


class Functional(nn.Module):
    """Calls a convolution with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.ones(2, 3, 3, 3))
        self.after = nn.Conv2d(2, 5, 1)

    def forward(self, x):
        return self.after(F.conv2d(x, self.kernel))


class Branches(nn.Module):
    """One convolution used twice, under two names, and two that share a weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.again = self.first
        self.left, self.right = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.right.weight = self.left.weight

    def forward(self, x):
        return self.left(self.again(self.first(x))) + self.right(x)


class Results(nn.Module):
    """Returns nested results."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x, *, scale):
        y = self.conv(x) * scale
        return {"out": y, "more": [(y.mean((2, 3)), "words"), y.argmax(1)]}
