"""What a certificate measures is computed in full float32, whatever torch is set to: a device with TF32 is imitated."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from convattn import certify
from convattn.convert import (
    attention_to_conv,
    conv_to_attention,
    network_to_attention,
    network_to_conv,
)
from convattn.errors import ArgumentError

IMAGES = torch.randn(5, 3, 11, 13, generator=torch.Generator().manual_seed(3))
CUDNN = torch.backends.cudnn


def to_ten_bits(x):
    """Rounds float32 to the ten bits that TF32 keeps of a mantissa."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class WithTF32(TorchFunctionMode):
    """Rounds what convolutions take, where torch would let CUDA do so, and notes whether it did."""

    def __init__(self):
        super().__init__()
        self.rounded = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (F.conv2d, torch.conv2d, F.linear):
            self.rounded.append(CUDNN.conv.fp32_precision == "tf32")
            if self.rounded[-1]:
                x, weight, *others = args
                args = (to_ten_bits(x), to_ten_bits(weight), *others)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def with_tf32():
    before = CUDNN.allow_tf32
    CUDNN.allow_tf32 = True
    yield
    assert CUDNN.allow_tf32
    CUDNN.allow_tf32 = before


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 7, 3)).eval()


def attending():
    return network_to_attention(network(), images=IMAGES)[0]


CERTIFICATES = {
    "layer": lambda: conv_to_attention(network()[0])[1],
    "layer back": lambda: attention_to_conv(attending()[0])[1],
    "network": lambda: network_to_attention(network(), images=IMAGES, impl="separable")[1],
    "network back": lambda: network_to_conv(attending(), images=IMAGES)[1],
    "any conversion": lambda: certify(network(), attending(), IMAGES),
}


@pytest.mark.parametrize("certificate", CERTIFICATES.values(), ids=CERTIFICATES)
def test_tf32_is_off_where_a_certificate_is_measured(certificate):
    plain = certificate()
    with WithTF32() as device:
        measured = certificate()
    assert device.rounded
    assert not any(device.rounded)
    assert measured == plain
    assert plain.verdict == "exact"
    assert plain.precision == "float32 in full, TF32 off"
    assert plain.precision in plain.summary()


class InTF32(nn.Conv2d):
    """A convolution of numbers of ten bits."""

    def forward(self, x):
        return F.conv2d(to_ten_bits(x), to_ten_bits(self.weight), self.bias)


def test_an_error_of_the_size_of_tf32_is_found():
    right = network()
    other = nn.Sequential(InTF32(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 7, 3))
    other.load_state_dict(right.state_dict())
    certificate = certify(right, other, IMAGES)
    assert certificate.verdict == "close"
    assert certificate.first == "0"
    assert certificate.rounding < certificate.measured_error < 2e-3 * certificate.largest


class Refusing(nn.Module):
    """Notes what torch is set to, and does not run."""

    def __init__(self, seen):
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 4, 3), seen

    def __deepcopy__(self, memo):
        return Refusing(self.seen)

    def forward(self, x):
        self.seen.append(CUDNN.allow_tf32)
        raise RuntimeError(f"no memory for {len(x)} images")


def test_the_setting_comes_back_after_an_error():
    seen = []
    with pytest.raises(ArgumentError, match="no memory for 1 images"):
        network_to_attention(Refusing(seen), images=IMAGES)
    assert seen == [False]
    assert CUDNN.allow_tf32
