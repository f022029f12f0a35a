"""Every convolution that torch has is attention, on every path within the error budget, and is itself when it is back.

The full count: `pytest -m slow tests/convert/layer/test_every_convolution.py`.
"""

import copy
from functools import partial
from operator import call

import pytest
import torch
from hypothesis import given, settings
from tests.testing.convolutions import FEW, assert_convolves, convolve, tap_maps
from tests.testing.strategies import convolutions_with_images
from torch import nn

from convattn.budget import Sums, assert_within_budget, roundings
from convattn.convert import attention_to_conv, conv_to_attention
from convattn.convert.taps import read_taps
from convattn.encodings import Shift

PATHS = ("reference", "separable", "dense", "shift")
NAMES = ("output", "gradient of x", "gradient of the values", "gradient of the bias")
ATTRIBUTES = ("kernel_size", "stride", "padding_mode", "dilation", "groups", "output_padding")
COUNTS = [
    pytest.param(40, id="40"),
    pytest.param(2000, id="2000", marks=pytest.mark.slow),
]


def convolution_results(compute, conv, x, upstream):
    """Output, and gradients with respect to the input, the taps' matrices and the bias."""
    x = x.detach().requires_grad_()
    y = compute(conv, x)
    parameters = [conv.weight] if conv.bias is None else [conv.weight, conv.bias]
    by_input, by_weight, *by_bias = torch.autograd.grad(y, [x, *parameters], upstream)
    return [y.detach(), by_input, tap_maps(conv, by_weight), *by_bias]


def attention_results(layer, x, upstream):
    """The same of the layer made from it."""
    x = x.detach().requires_grad_()
    y = layer(x)
    parameters = [layer.values.weight] if layer.bias is None else [layer.values.weight, layer.bias]
    by_input, by_values, *by_bias = torch.autograd.grad(y, [x, *parameters], upstream)
    if layer.values.kernel_size is None:
        by_values = by_values.flip(0)
    else:
        by_values = by_values.flatten(2).movedim(-1, 0)
    return [y.detach(), by_input, by_values, *by_bias]


def random_like(y):
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        y.dtype
    )


def check(case, convert=conv_to_attention):
    conv, x = case
    layer, certificate = convert(conv)
    assert certificate.exact
    assert certificate.passed
    upstream, exact = random_like(conv(x)), copy.deepcopy(conv).double()
    his = convolution_results(call, exact, x.double(), upstream.double())
    lows = roundings(partial(convolution_results, convolve), conv, x, upstream)
    lows.append(convolution_results(partial(convolve, backwards=True), conv, x, upstream))
    sums = sums_of_results(exact, x.double(), upstream.double())
    for path in PATHS:
        layer.impl = path
        results = attention_results(layer, x, upstream)
        for name, actual, hi, terms, *los in zip(NAMES, results, his, sums, *lows, strict=False):
            few = terms if hi.numel() < FEW else None
            assert_within_budget(actual, hi, los, f"{path}: {name}", sums=few)


def check_way_back(case, back=attention_to_conv):
    conv, x = case
    layer, _ = conv_to_attention(conv)
    again, certificate = back(layer)
    assert certificate.exact
    assert certificate.passed
    assert certificate.not_covered == ()
    taps, expected = read_taps(again), read_taps(conv)
    assert taps.displacements == expected.displacements
    assert torch.equal(taps.maps, expected.maps), "weights"
    assert (taps.bias is None) == (expected.bias is None)
    assert taps.bias is None or torch.equal(taps.bias, expected.bias), "bias"
    if type(again) is type(conv):
        assert torch.equal(again.weight, conv.weight)
        for name in ATTRIBUTES:
            assert getattr(again, name) == getattr(conv, name), name
        assert taps.geometry == expected.geometry
    else:
        assert set(conv.stride) == {1}, "only a transposed convolution of stride 1 is a plain one"
        assert not isinstance(again, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    assert_convolves(again(x), conv, x)


def sums_of_results(conv, x, upstream):
    """What the numbers of `convolution_results` are sums of."""
    absolute, counts = copy.deepcopy(conv), copy.deepcopy(conv)
    with torch.no_grad():
        for one, other in zip(absolute.parameters(), counts.parameters(), strict=True):
            one.abs_()
            other.fill_(1)
    totals = convolution_results(call, absolute, x.abs(), upstream.abs())
    terms = convolution_results(call, counts, torch.ones_like(x), torch.ones_like(upstream))
    return [
        Sums(int(count.max()) if count.numel() else 0, total)
        for count, total in zip(terms, totals, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module inside strategies"
)  # the type check does
@pytest.mark.parametrize("count", COUNTS)
def test_every_convolution_is_attention(count):
    examples = 0

    @settings(max_examples=count)
    @given(convolutions_with_images())
    def run(case):
        nonlocal examples
        examples += 1
        check(case)
        check_way_back(case)

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
    "taps in reverse order": lambda layer: layer.values.weight.copy_(
        layer.values.weight.flip(2, 3)
    ),
    "one head a pixel off": misplace,
    "heads too soft": lambda layer: setattr(layer, "encoding", layer.encoding.soften(12.0)),
    "values in half precision": lambda layer: layer.values.weight.copy_(layer.values.weight.half()),
    "bias left out": lambda layer: layer.bias.zero_(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_faulty_conversion_is_rejected(fault):
    torch.manual_seed(0)
    case = nn.Conv2d(3, 5, 3, padding=1), torch.randn(2, 3, 5, 7)
    check(case)
    with pytest.raises(AssertionError, match=r"reference: .*: error"):
        check(case, faulty(fault))


def test_a_wrong_way_back_is_rejected():
    torch.manual_seed(0)
    case = nn.Conv2d(3, 5, 3, padding=1), torch.randn(2, 3, 5, 7)
    check_way_back(case)

    def soft(layer):
        layer.encoding = layer.encoding.soften(12.0)
        return attention_to_conv(layer, kernel_size=3)

    def rounded(layer):
        conv, certificate = attention_to_conv(layer)
        conv.weight.data.copy_(conv.weight.half())
        return conv, certificate

    with pytest.raises(AssertionError, match="exact"):
        check_way_back(case, soft)
    with pytest.raises(AssertionError, match="weights"):
        check_way_back(case, rounded)
