"""Every convolution that torch has is attention: outputs and gradients, on every path, within the error budget.

The full count: `pytest -m slow tests/convert/layer/test_every_convolution.py`.
"""

import copy

import pytest
import torch
from hypothesis import given, settings

from convattn.convert import conv_to_attention
from convattn.encodings import Shift
from convattn.testing.budget import assert_within_budget
from convattn.testing.convolutions import convolve, rounded_differently, tap_maps
from convattn.testing.strategies import convolutions_with_images

PATHS = ("reference", "separable", "dense", "shift")
COUNTS = [
    pytest.param(40, id="40"),
    pytest.param(2000, id="2000", marks=pytest.mark.slow),
]


def convolution_results(compute, conv, x, upstream):
    """Output, and gradients with respect to the input, the taps' matrices and the bias."""
    x = x.detach().requires_grad_()
    y = compute(conv, x)
    parameters = [conv.weight] if conv.bias is None else [conv.weight, conv.bias]
    by_input, by_weight, *by_bias = torch.autograd.grad(y, [x, *parameters], upstream(y))
    return [y.detach(), by_input, tap_maps(conv, by_weight), *by_bias]


def attention_results(layer, x, upstream):
    """The same of the layer made from it."""
    x = x.detach().requires_grad_()
    y = layer(x)
    parameters = [layer.values.weight] if layer.bias is None else [layer.values.weight, layer.bias]
    by_input, by_kernel, *by_bias = torch.autograd.grad(y, [x, *parameters], upstream(y))
    return [y.detach(), by_input, by_kernel.flatten(2).movedim(-1, 0), *by_bias]


def random_like(y):
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(y.dtype)


def check(case, convert=conv_to_attention):
    conv, x = case
    layer, certificate = convert(conv)
    assert certificate.exact
    assert certificate.passed
    exact = copy.deepcopy(conv).double()
    hi = convolution_results(
        lambda conv, x: conv(x), exact, x.double(), lambda y: random_like(y.to(x.dtype)).to(y.dtype)
    )
    low = [
        convolution_results(lambda conv, x, b=backwards: convolve(conv, x, backwards=b), conv, x, random_like)
        for backwards in (False, True)
    ] + [
        convolution_results(
            convolve, conv, rounded_differently(x, seed), lambda y, s=seed: rounded_differently(random_like(y), s + 2)
        )
        for seed in (0, 1)
    ]
    for path in PATHS:
        layer.impl = path
        results = attention_results(layer, x, random_like)
        names = ("output", "gradient of x", "gradient of the values", "gradient of the bias")
        for name, actual, expected, *los in zip(names, results, hi, *low, strict=False):
            assert_within_budget(actual, expected, los, f"{path}: {name}")


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")  # the type check does
@pytest.mark.parametrize("count", COUNTS)
def test_every_convolution_is_attention(count):
    examples = 0

    @settings(max_examples=count)
    @given(convolutions_with_images())
    def run(case):
        nonlocal examples
        examples += 1
        check(case)

    run()
    assert examples >= count


def faulty(fault):
    """Converts, and then plants a fault in the layer."""

    def convert(conv):
        layer, certificate = conv_to_attention(conv)
        with torch.no_grad():
            fault(layer)
        return layer, certificate

    return convert


def misplace(layer):
    """Moves the first head by a pixel."""
    (row, col), *others = layer.encoding.displacements
    layer.encoding = Shift(layer.num_heads, layer.dims, displacements=[(row, col + 1), *others])


FAULTS = {
    "taps in reverse order": lambda layer: layer.values.weight.copy_(layer.values.weight.flip(2, 3)),
    "one head a pixel off": misplace,
    "heads too soft": lambda layer: setattr(layer, "encoding", layer.encoding.soften(12.0)),
    "values in half precision": lambda layer: layer.values.weight.copy_(layer.values.weight.half()),
    "bias left out": lambda layer: layer.bias.zero_(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_faulty_conversion_is_rejected(fault):
    torch.manual_seed(0)
    case = torch.nn.Conv2d(3, 5, 3, padding=1), torch.randn(2, 3, 5, 7)
    check(case)
    with pytest.raises(AssertionError, match=r"reference: .*: error"):
        check(case, faulty(fault))
