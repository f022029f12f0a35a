"""The way back: layers and arguments that are refused, and why."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from convattn.convert import attention_to_conv
from convattn.encodings import Quadratic, Shift
from convattn.errors import (
    ArgumentError,
    ConversionError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
)
from convattn.layers import (
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def with_hook(layer):
    layer.register_forward_hook(lambda *_: None)
    return layer


def with_norm(layer):
    weight_norm(layer.values)
    return layer


def with_nan(layer):
    with torch.no_grad():
        layer.values.weight[0, 0, 0] = torch.nan
    return layer


def with_values(layer):
    layer.values = nn.Identity()
    return layer


def plain(**options):
    return RelativeAttention2d(2, 2, num_heads=4, **options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: nn.Linear(2, 2),
            UnsupportedModelError,
            "cannot convert Linear to a convolution: supported layers are Rel",
        ),
        (lambda: plain(content=Content()), ConversionError, "its scores depend on content"),
        (
            lambda: RelativeAttention2d(2, 2, num_heads=4, gate="sigmoid"),
            ConversionError,
            "its gate is open, and lets content take more attention than rounding does; layer",
        ),
        (
            lambda: with_hook(plain()),
            UnsupportedModelError,
            r"it has forward hooks \(pruning adds some\); make them",
        ),
        (
            lambda: weight_norm(plain(), "bias", dim=None),
            UnsupportedModelError,
            "RelativeAttention2d: it has para",
        ),
        (
            lambda: with_norm(plain()),
            UnsupportedModelError,
            r"\(weight norm is one\) at values; make",
        ),
        (
            lambda: with_nan(plain()),
            UnsupportedModelError,
            r"values\.weight must be finite, but holds 1 NaN or infinite number",
        ),
        (
            lambda: with_values(plain()),
            UnsupportedModelError,
            "its values must be MergedValues or FactoredValues, but are Identity",
        ),
        (
            lambda: plain(device="meta"),
            UnsupportedModelError,
            "on the meta device and has no values",
        ),
        (
            lambda: plain(stride=2, input_dilation=2),
            ConversionError,
            "cannot convert: no torch convolution has this geometry: Geometry",
        ),
    ],
)
def test_layers_that_are_no_convolution_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        attention_to_conv(make())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"kernel_size": 0},
            ArgumentError,
            "kernel_size must be an integer of at least 1, or 2 of them, but is 0",
        ),
        (
            {"kernel_size": 4},
            ArgumentError,
            r"kernel_size must be one with which .*, but is \(4, 4\)",
        ),
        (
            {"kernel_size": 10**20 - 1},
            ArgumentError,
            "kernel_size must be one whose kernel has at most 268,435,456 num",
        ),
        ({"mass": 0}, ArgumentError, r"mass must be a share in \(0, 1\), or None, but is 0"),
        ({"mass": True}, ArgumentError, "mass must be a share"),
        ({"spatial": 0}, ArgumentError, "spatial must be an integer of at least 1"),
        ({"borders": "mirror"}, UnknownNameError, "unknown borders 'mirror'"),
    ],
)
def test_hostile_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        attention_to_conv(plain(), **options)


def test_sizes_that_the_window_does_not_fit_are_refused():
    layer = plain(kernel_size=3, padding=1, padding_mode="reflect")
    with pytest.raises(
        ConversionError, match=r"reflect padding of 6 .* give a smaller kernel_size"
    ):
        attention_to_conv(layer, spatial=6, kernel_size=13)
    with pytest.raises(ShapeError, match="x must have at least 3"):
        attention_to_conv(plain(kernel_size=3), spatial=2)


def test_the_size_of_a_kernel_is_that_of_its_groups(monkeypatch):
    monkeypatch.setattr("convattn.convert.to_conv._MOST_NUMBERS", 6 * 5 * 5)
    encoding = Quadratic(1, 2, centres=[[0.0, 0.0]], sharpness=5.0)
    layer = RelativeAttention2d(6, 6, num_heads=1, groups=6, encoding=encoding)
    made, _ = attention_to_conv(layer, kernel_size=5, spatial=7)
    assert made.weight.shape == (6, 1, 5, 5)
    with pytest.raises(ArgumentError, match="at most 150 numbers"):
        attention_to_conv(layer, kernel_size=7, spatial=7)


def test_hard_heads_that_look_beyond_every_image_need_the_size():
    encoding = Shift(1, 1, displacements=[[1500]])
    layer = RelativeAttention1d(2, 3, num_heads=1, encoding=encoding)
    with pytest.raises(ArgumentError, match="heads look beyond images of 1,024 pixels"):
        attention_to_conv(layer)


@pytest.mark.parametrize("name", ["sinusoidal", "distance"])
def test_heads_that_do_not_fall_off_need_the_size(name):
    layer = RelativeAttention1d(2, 3, num_heads=2, encoding=name)
    with pytest.raises(
        ArgumentError, match="spatial must be given, because the heads do not fall off"
    ):
        attention_to_conv(layer)
    assert attention_to_conv(layer, spatial=7)[1].verdict == "different"


def test_a_kernel_that_overflows_is_refused():
    encoding = Quadratic(2, 1, centres=[[0.0], [0.0]], sharpness=128.0)
    layer = RelativeAttention1d(1, 1, num_heads=2, encoding=encoding, dtype=torch.float16)
    nn.init.constant_(layer.values.weight, 60_000.0)
    with pytest.raises(ConversionError, match=r"the kernel would not be finite in torch\.float16"):
        attention_to_conv(layer)


def test_a_kernel_too_large_to_compare_is_refused(monkeypatch):
    """Torch unfolds volumes: a kernel of 39 x 39 x 39 taps took 68 GB."""
    message = (
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 68335488000"
    )

    def forward(*_):
        raise RuntimeError(message)

    monkeypatch.setattr(nn.Conv2d, "forward", forward)
    with pytest.raises(
        ConversionError,
        match=r"not enough memory to compare it .*; give a kernel_size, a larger mass",
    ):
        attention_to_conv(plain(), spatial=7)
    message = "another fault"
    with pytest.raises(RuntimeError, match="another fault"):
        attention_to_conv(plain(), spatial=7)
