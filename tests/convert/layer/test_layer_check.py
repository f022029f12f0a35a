"""No error above a certificate's own words, on images other than the one that it was measured on.

The full count: `pytest -m slow tests/convert/layer/test_layer_check.py`.
"""

import copy
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.convert.layer.layer_check_cases import (
    SCALES,
    random_images,
    random_layer,
    random_sizes,
)
from tests.testing.strategies import convolutions_with_images
from torch import nn

from convattn.convert import attention_to_conv, conv_to_attention
from convattn.encodings import AxisAdditiveEncoding, Quadratic
from convattn.errors import ArgumentError, ConversionError, ShapeError
from convattn.layers import RelativeAttention1d, RelativeAttention2d

SHARPNESS = [None, 0.5, 3.0, 10.0, 60.0]
COUNTS = [
    pytest.param(60, id="60"),
    pytest.param(2000, id="2000", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
]


def require_promise(certificate, made, source, x):
    """Holds a certificate to its promise; False where the dtype overflows, or one of the two takes no such image."""
    with torch.no_grad():
        try:
            y, exact = made(x).double(), source(x.double())
        except (
            ShapeError,
            RuntimeError,
        ):  # torch's own: the image is too small for a kernel or its padding
            return False
    assert y.shape == exact.shape
    if (
        not exact.numel()
        or exact.abs().max() > torch.finfo(x.dtype).max / 8
        or not torch.isfinite(y).all()
    ):
        return False
    promised = (certificate.bound_per_unit + certificate.rounding_per_unit) * x.abs().max().item()
    error = (y - exact).abs().max().item()
    assert error <= promised + certificate.rounding_at_zero, (certificate, x.shape, x.abs().max())
    return True


def real_attention(layer):
    """The layer's own function: softmax in float64, never the path by which hard heads are a convolution."""
    copied = copy.deepcopy(layer).double().eval()
    additive = isinstance(copied.encoding, AxisAdditiveEncoding)
    copied.impl = "separable" if additive else "dense"
    return copied


def layer_keeps_its_promise(random):
    layer = random_layer(random)
    options = {
        "spatial": random.choice([None, 3, 5]),
        "kernel_size": random.choice([None, None, 3, 4]),
    }
    try:
        conv, certificate = attention_to_conv(layer, mass=random.choice([None, 1e-3]), **options)
    except (
        ArgumentError,
        ConversionError,
        ShapeError,
    ):  # there is no such convolution, or no such image
        return 0
    assert certificate.verdict != "failed", certificate
    source, checked = real_attention(layer), 0
    for _ in range(3):
        sizes = (
            random_sizes(random, layer.dims)
            if certificate.any_size
            else certificate.check_shape[2:]
        )
        x = random_images(random, layer.in_channels, sizes, conv.weight.dtype)
        checked += require_promise(certificate, conv, source, x)
    return checked


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("count", COUNTS)
def test_random_convolutions_keep_their_promises(count):
    checked = 0

    @settings(max_examples=count)
    @given(convolutions_with_images(tuple(SCALES)), st.sampled_from(SHARPNESS), st.integers(0, 4))
    def run(case, sharpness, number):
        nonlocal checked
        conv, x = case
        scale = SCALES[x.dtype][number % len(SCALES[x.dtype])]
        layer, certificate = conv_to_attention(conv, sharpness=sharpness)
        assert certificate.verdict != "failed", certificate
        for layer.impl in ("auto", "separable"):
            exact = copy.deepcopy(conv).double()
            checked += require_promise(certificate, layer, exact, scale * x)

    run()
    assert checked > count // 2


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("count", COUNTS)
def test_random_layers_keep_their_promises(count):
    checked = 0
    for seed in range(count // 2):
        torch.manual_seed(seed)
        checked += layer_keeps_its_promise(Random(seed))
    assert checked > count // 4


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}, {"kernel_size": 3, "padding": 1}])
@pytest.mark.parametrize("centre", [2.0, -4.0, 10.0])
def test_small_images_do_not_hide_where_a_head_looks(centre, options):
    """On three pixels a head that looks far away sees the border, as one that looks at the border does."""
    layer = RelativeAttention1d(
        2, 3, num_heads=1, encoding=Quadratic(1, 1, centres=[[centre]], sharpness=128.0), **options
    )
    conv, certificate = attention_to_conv(layer, spatial=3)
    assert certificate.exact
    assert certificate.passed
    sizes = (1, 3, 7, 23) if certificate.any_size else (3,)
    images = [
        torch.randn(2, 2, size)
        for size in sizes
        if "padding" in options or size >= layer.geometry.kernel_size[0]
    ]
    for x in images:
        assert require_promise(certificate, conv, real_attention(layer), x)
    assert attention_to_conv(layer)[1].any_size


def test_heads_between_pixels_are_no_taps():
    layer = RelativeAttention1d(
        2,
        3,
        num_heads=1,
        encoding=Quadratic(1, 1, centres=[[0.4]], sharpness=80.0),
        kernel_size=3,
        padding=1,
    )
    _, certificate = attention_to_conv(layer)
    assert not certificate.any_size


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_wrong_layer_breaks_its_promise(scale):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1, bias=False)
    layer, certificate = conv_to_attention(conv)
    with torch.no_grad():
        layer.values.weight[4].mul_(1.001)
    with pytest.raises(AssertionError):
        require_promise(
            certificate, layer, copy.deepcopy(conv).double(), scale * torch.randn(2, 3, 7, 9)
        )


def test_promises_scale_with_the_image_and_hold_for_zeros():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    with torch.no_grad():
        conv.bias.fill_(1e3)
    layer, certificate = conv_to_attention(conv)
    for made, source in ((layer, conv), (attention_to_conv(layer)[0], layer)):
        exact = copy.deepcopy(source).double()
        for scale in (0.0, 1e-6, 1.0, 1e20):
            assert require_promise(certificate, made, exact, scale * torch.randn(2, 3, 7, 9))


def test_cropped_layers_that_look_out_say_their_size():
    """A head that looks into pixels that were cut off has no convolution that goes on alike."""
    layer = RelativeAttention2d(
        2,
        3,
        num_heads=1,
        encoding=Quadratic(1, 2, centres=[[1.0, 0.0]], sharpness=128.0),
        padding=[(0, -1), (0, 0)],
    )
    conv, certificate = attention_to_conv(layer, spatial=(5, 4))
    assert not certificate.any_size
    assert require_promise(certificate, conv, real_attention(layer), torch.randn(2, 2, 5, 4))
