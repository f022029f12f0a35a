"""Every convolution that torch has, made attention and back again, is itself.

The full count: `pytest -m slow tests/convert/layer/test_there_and_back.py`.
"""

import pytest
import torch
from hypothesis import given, settings
from tests.testing.convolutions import assert_convolves
from tests.testing.strategies import convolutions_with_images
from torch import nn

from convattn.convert import attention_to_conv, conv_to_attention
from convattn.convert.taps import read_taps

ATTRIBUTES = ("kernel_size", "stride", "padding_mode", "dilation", "groups", "output_padding")
COUNTS = [
    pytest.param(40, id="40"),
    pytest.param(2000, id="2000", marks=pytest.mark.slow),
]


def check(case, back=attention_to_conv):
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


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module inside strategies"
)  # the type check does
@pytest.mark.parametrize("count", COUNTS)
def test_every_convolution_comes_back(count):
    examples = 0

    @settings(max_examples=count)
    @given(convolutions_with_images())
    def run(case):
        nonlocal examples
        examples += 1
        check(case)

    run()
    assert examples >= count


def test_a_wrong_way_back_is_rejected():
    torch.manual_seed(0)
    case = nn.Conv2d(3, 5, 3, padding=1), torch.randn(2, 3, 5, 7)
    check(case)

    def soft(layer):
        layer.encoding = layer.encoding.soften(12.0)
        return attention_to_conv(layer, kernel_size=3)

    def rounded(layer):
        conv, certificate = attention_to_conv(layer)
        conv.weight.data.copy_(conv.weight.half())
        return conv, certificate

    with pytest.raises(AssertionError, match="exact"):
        check(case, soft)
    with pytest.raises(AssertionError, match="weights"):
        check(case, rounded)
