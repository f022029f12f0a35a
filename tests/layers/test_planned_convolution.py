"""The convolutions for large kernels in the place of torch's: arguments, state, results, derivatives, modes."""

import copy
import pickle

import pytest
import torch
from torch import nn

from convattn.errors import ArgumentError
from convattn.layers import LargeKernelConv1d, LargeKernelConv2d, LargeKernelConv3d
from convattn.testing.budget import Sums, assert_within_budget, references

KINDS = {
    1: (LargeKernelConv1d, nn.Conv1d),
    2: (LargeKernelConv2d, nn.Conv2d),
    3: (LargeKernelConv3d, nn.Conv3d),
}
IMAGES = {1: (2, 6, 211), 2: (2, 6, 23, 29), 3: (2, 6, 7, 11, 13)}

CASES = [
    (1, {"kernel_size": 65, "padding": "same", "groups": 6}),
    (1, {"kernel_size": 64, "padding": "same"}),
    (2, {"kernel_size": 15, "padding": 7, "groups": 6, "bias": False}),
    (2, {"kernel_size": (15, 4), "padding": "same", "groups": 2}),
    (2, {"kernel_size": 9, "padding": 8, "dilation": 2, "stride": (1, 2), "groups": 6}),
    *(
        (2, {"kernel_size": 13, "padding": 6, "padding_mode": mode, "groups": 3})
        for mode in ("circular", "reflect")
    ),
    (2, {"kernel_size": 17, "padding": "valid", "groups": 6}),
    (3, {"kernel_size": (3, 5, 9), "padding": (1, 2, 4), "groups": 6}),
    (3, {"kernel_size": 5, "padding": 2, "padding_mode": "replicate"}),
]
every_case = pytest.mark.parametrize(("dims", "options"), CASES, ids=str)


def pair(dims, options, **more):
    """Makes the layer and torch's convolution with the same parameters, and images."""
    own, torchs = KINDS[dims]
    torch.manual_seed(0)
    plain = torchs(6, 6, **options, **more)
    layer = own(6, 6, **options, **more)
    layer.load_state_dict(plain.state_dict())
    return layer, plain, torch.randn(IMAGES[dims], dtype=plain.weight.dtype)


def derivatives(layer, x):
    """Returns the result and the gradients of images and parameters."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return [
        y.detach(),
        *torch.autograd.grad(
            (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(), [x, *layer.parameters()]
        ),
    ]


def sums(plain, x):
    """Returns what the numbers of `derivatives` are sums of, in any order."""
    positive = copy.deepcopy(plain)
    for parameter in positive.parameters():
        parameter.data.abs_()
    every, taps = derivatives(positive, x.abs()), plain.weight[0, 0].numel()
    queries = every[0].numel() // 6
    terms = [6 // plain.groups * taps, 6 // plain.groups * taps, queries, queries]
    return [Sums(count, absolute) for count, absolute in zip(terms, every, strict=False)]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_and_gradients_are_those_of_torch(dims, options, dtype):
    layer, plain, x = pair(dims, options, dtype=dtype)
    every, lows = references(derivatives, plain, x)
    for place, (found, hi) in enumerate(zip(derivatives(layer, x), every, strict=True)):
        several, limit = [low[place] for low in lows], sums(plain, x)[place]
        assert_within_budget(found, hi, several, f"number {place}", sums=limit)
    with torch.no_grad():
        assert_within_budget(layer(x[0]), every[0][0], [low[0][0] for low in lows], "one image")


@every_case
def test_state_copies_and_pickles(dims, options):
    layer, plain, x = pair(dims, options)
    assert list(layer.state_dict()) == list(plain.state_dict())
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), type(layer).of(plain)):
        assert torch.equal(made(x), layer(x))
    assert type(layer).of(plain).weight is plain.weight
    assert isinstance(layer, type(plain))


@pytest.mark.parametrize(("dims", "options"), [CASES[0], CASES[2], CASES[4]], ids=str)
def test_double_backward(dims, options):
    layer, _, x = pair(dims, {**options, "kernel_size": 5}, dtype=torch.float64)
    x = x[:1, :, :9] if dims == 1 else x[:1, :, :9, :9]
    torch.autograd.gradgradcheck(
        lambda x, weight: layer._conv_forward(x, weight, None),
        (x.requires_grad_(), layer.weight),
        fast_mode=True,
    )


def test_the_default_device_changes_nothing():
    torch.manual_seed(0)
    layer, x = LargeKernelConv2d(16, 16, 31, padding=15, groups=16), torch.randn(1, 16, 56, 56)
    plan = layer.plan(x.shape)
    assert "default" not in (plan.forward.path, plan.weight_gradient.path)

    def found():
        y = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]

    expected = found()
    with torch.device("meta"):
        again = found()
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))


def test_hooks_that_are_put_on_the_layer_do_not_run_in_the_convolution():
    convolution, seen = nn.Conv2d(2, 3, 3), []
    convolution.register_forward_hook(lambda *_: seen.append("both"))
    layer = LargeKernelConv2d.of(convolution)
    layer.register_forward_hook(lambda *_: seen.append("layer"))
    layer(torch.zeros(1, 2, 5, 5))
    assert seen == ["both", "layer"]
    convolution(torch.zeros(1, 2, 5, 5))
    assert seen == ["both", "layer", "both"]
    assert layer.weight is convolution.weight


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:FutureWarning"
)  # torch's own forward mode
def test_other_modes_are_left_to_torch():
    layer, plain, x = pair(2, CASES[2][1])
    with torch.autocast("cpu"):
        assert torch.equal(layer(x), plain(x))
    for kind in (torch.bfloat16, torch.float16):
        assert torch.equal(layer.to(kind)(x.to(kind)), plain.to(kind)(x.to(kind)))
    layer, plain, x = pair(2, CASES[2][1])
    over_images = torch.vmap(lambda one: layer(one[None])[0])(x)
    assert_within_budget(over_images, *references(lambda conv, x: conv(x).detach(), plain, x))
    _, tangent = torch.func.jvp(layer, (x,), (x,))
    assert_within_budget(tangent, *references(lambda conv, x: conv(x).detach(), plain, x))
    assert layer.to("meta")(x.to("meta")).shape == plain(x).shape


def test_a_compiled_graph_holds_torchs_convolution():
    layer, _, x = pair(2, CASES[2][1])
    graph = torch.export.export(layer, (x,)).graph
    assert any("conv2d" in str(node.target) for node in graph.nodes)
    assert not any("fft" in str(node.target) for node in graph.nodes)


def test_errors_are_those_of_torch():
    layer, plain, x = pair(2, CASES[2][1])
    for wrong in (x[:, :5], x[0, 0], x.double(), x[..., :1, :0]):
        messages = []
        for one in (plain, layer):
            with pytest.raises(RuntimeError) as raised:
                one(wrong)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        LargeKernelConv2d(6, 6, 31)(x)


def test_plans():
    layer = LargeKernelConv2d(64, 64, 51, padding="same", groups=64)
    assert layer.plan((1, 64, 56, 56)).weight_gradient.path == "fft"
    assert layer.plan((1, 64, 56, 56), torch.float64).forward.path == "fft"
    small = LargeKernelConv2d(64, 64, 3, padding=1, groups=64)
    assert small.plan((1, 64, 56, 56)).forward.path == "default"
    assert small.plan((1, 64, 56, 56), channels_last=True).forward.path == "channels-last"
    with pytest.raises(ArgumentError, match="dtype must be"):
        layer.plan((1, 64, 56, 56), torch.bfloat16)
    for shape in ((64, 56, 56), (1, 63, 56, 56), (0, 64, 56, 56)):
        with pytest.raises(ArgumentError, match="shape must be 4 positive numbers"):
            layer.plan(shape)
    with pytest.raises(ArgumentError, match="shape must be large enough for the kernel"):
        LargeKernelConv2d(3, 3, 9).plan((1, 3, 8, 9))
