"""Hostile input to the conversions of attention to convolutions."""

import threading

import pytest
import torch
from tests.convert.network.hostile_cases import Listed, Whole
from tests.convert.network.network_cases import Called, images, unchanged
from torch import nn

from convattn import attention_to_conv, conv_to_attention, network_to_conv
from convattn.errors import ArgumentError, ConversionError, UnsupportedModelError
from convattn.layers import RelativeAttention2d


def hard(channels=4):
    torch.manual_seed(0)
    return conv_to_attention(nn.Conv2d(3, channels, 3))[0]


def with_a_lock():
    network = nn.Sequential(hard())
    network.lock = threading.Lock()
    return network


REFUSED = {
    "gate": (
        lambda: RelativeAttention2d(3, 4, num_heads=4, encoding="quadratic", gate="sigmoid"),
        "its gate is open",
    ),
    "complex": (
        lambda: hard().to(torch.complex64),
        r"must be float16, .* or float64, but is torch\.complex64",
    ),
    "float8": (
        lambda: hard().to(torch.float8_e4m3fn),
        r"must be float16, .* or float64, but is torch\.float8_e4m3fn",
    ),
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_layers_that_are_refused(make, message):
    network = nn.Sequential(make())
    none = rf"no layer could be converted .0 \(\w+\): .*{message}"
    with unchanged(network), pytest.raises(ConversionError, match=none):
        network_to_conv(network)


def test_what_does_not_run_in_float64_is_held_against_itself():
    network, x = Listed(conv_to_attention(nn.Conv2d(4, 5, 1))[0], hard()), images(6, 3, 7, 9)
    with unchanged(network, x):
        made, certificate = network_to_conv(network, images=x)
    assert isinstance(made.hidden[0], RelativeAttention2d)
    assert certificate.passed
    assert certificate.reference == "float32"
    assert certificate.measured_error <= certificate.rounding > 0
    assert any(
        "float64: the network does not run in it (ArgumentError: " in item
        for item in certificate.not_covered
    )


@pytest.mark.parametrize(
    ("make", "x", "kind", "message"),
    [
        (
            lambda: Called(hard(), lambda layer, x: layer(x) * layer.num_heads),
            images(2, 3, 7, 9),
            ConversionError,
            "the converted network does not run: AttributeError",
        ),
        (
            with_a_lock,
            images(2, 3, 7, 9),
            UnsupportedModelError,
            "cannot copy Sequential: cannot pickle",
        ),
        (
            lambda: torch.compile(nn.Sequential(hard())),
            images(2, 3, 7, 9),
            UnsupportedModelError,
            "cannot convert OptimizedModule: it is compiled; convert the network that it was made from",
        ),
        (
            nn.Sequential,
            images(2, 3, 7, 9),
            ConversionError,
            "no layer could be converted .it has no RelativeAttention",
        ),
        (
            lambda: nn.Sequential(hard(), nn.Linear(7, 2, device="meta")),
            images(2, 3, 7, 9),
            UnsupportedModelError,
            r"cannot convert Sequential: its 1\.weight is on the meta device and has no values",
        ),
        (
            lambda: Whole(hard()),
            images(2, 3, 7, 9, dtype=torch.float64),
            ArgumentError,
            r"images must fit the network, but on the 2 images given \(.*\) it raised ArgumentError: x",
        ),
        (lambda: Whole(hard()), images(2, 3, 2, 2), ArgumentError, "it raised ShapeError"),
    ],
)
def test_networks_and_images_that_are_refused(make, x, kind, message):
    network = make()
    with unchanged(network, x), pytest.raises(kind, match=message):
        network_to_conv(network, images=x)


@pytest.mark.usefixtures("without_type_checks")
def test_arguments_of_other_kinds():
    attention = Whole(hard()).eval()
    with unchanged(attention):
        with pytest.raises(
            ArgumentError, match=r"model must be an nn\.Module, but is of type tuple$"
        ):
            network_to_conv((attention, 3))
        with pytest.raises(
            UnsupportedModelError, match="cannot convert int to a convolution: supported layers are"
        ):
            attention_to_conv(3)
