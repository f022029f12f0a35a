"""Networks of timm and torchvision, converted on both paths: random weights, nothing in them as new."""

import pytest
import torch
from tests.convert.network.network_cases import (
    assert_unchanged,
    convolutions,
    filled,
    fingerprint,
    images,
)
from torch import nn

from convattn import network_to_attention, network_to_conv
from convattn.convert.calls import AttendedCalls
from convattn.errors import UnsupportedModelError
from evidence.sweep.randomise import randomise
from evidence.sweep.subjects import Built

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")
transformers = pytest.importorskip("transformers")

COMPUTED = "its weight is computed in each call, as before"
TIMM = {
    "test_resnet": set(),
    "test_convnext": set(),
    "test_byobnet": set(),
    "test_coatnet": set(),
    "test_nfnet": {COMPUTED},
    "mixnet_s": set(),  # kernels of several sizes side by side
    "tf_mobilenetv3_small_minimal_100": set(),  # pads by the size of the image
    "edgenext_xx_small": set(),  # asks a convolution for the dtype of its weight
    "vit_tiny_r_s16_p8_224": {COMPUTED},  # asks for nothing, standardises and pads
}
SIZES = {"test_coatnet": 160, "vit_tiny_r_s16_p8_224": 224}
"""Networks that take images of one size only; the others are run on smaller ones than their own."""


QUICK = ("test_resnet",)
"""Networks for every run; what the others hold beyond these, smaller tests below have layer by layer."""


def some(cases):
    return [
        pytest.param(*case, marks=[] if case[0] in QUICK else [pytest.mark.slow])
        for case in cases.items()
    ]


def check(network, x, notes):
    """Converts a network on both paths; nothing is left over, and the whole is right within its budget."""
    torch.manual_seed(0)
    randomise(Built(network, (x,)))
    before = fingerprint(network)
    for impl, path in (("auto", "shift"), ("separable", "separable")):
        made, certificate = network_to_attention(network, impl=impl, images=x)
        assert certificate.passed, certificate.summary()
        assert certificate.exact
        assert certificate.left_alone == ()
        assert {layer.path for layer in certificate.layers} == {path}
        assert {note for layer in certificate.layers for note in layer.notes} == notes
        assert len(certificate.layers) == len(convolutions(network))
        assert not convolutions(made)
        assert certificate.reference == "float64"
        assert certificate.measured_error <= certificate.rounding
        assert certificate.top1_changed in (0, None)
    assert_unchanged(network, before)


@pytest.mark.parametrize(("name", "notes"), some(TIMM), ids=TIMM)
def test_timm(name, notes):
    torch.manual_seed(0)
    size = SIZES.get(name, 64)
    check(timm.create_model(name, num_classes=11), images(1, 3, size, size), notes)


@pytest.mark.parametrize(
    "kind", ["Conv2dSame", "StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"]
)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_subclass_of_timm(kind, stride):
    """On images of which strides leave other rests along each axis: "same" pads by them."""
    torch.manual_seed(0)
    build = getattr(timm.layers, kind)
    network = (
        nn.Sequential(build(4, 6, 3, stride=stride), build(6, 6, (5, 2), groups=2, bias=True))
        .double()
        .float()
    )
    before = fingerprint(network)
    made, certificate = network_to_attention(network, images=images(2, 4, 16, 23))
    assert_unchanged(network, before)
    assert certificate.passed
    assert certificate.reference == "float64"
    assert isinstance(made[0], AttendedCalls)
    assert bool(certificate.layers[0].notes) == kind.startswith(("Std", "Scaled"))
    assert made[0].weight.shape == (6, 4, 3, 3)


def encodec():
    config = transformers.EncodecConfig(
        num_filters=4, hidden_size=8, upsampling_ratios=[2, 2], num_lstm_layers=1
    )
    return transformers.EncodecModel(config)


def dac():
    ratios = {"downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2]}
    sizes = {"encoder_hidden_size": 4, "decoder_hidden_size": 16, "hidden_size": 16}
    return transformers.DacModel(transformers.DacConfig(**ratios, **sizes))


OF_SOUND = {
    "encodec, there": (lambda: encodec().encoder, (1, 160)),
    "encodec, back": (lambda: encodec().decoder, (8, 20)),
    "dac, there": (lambda: dac().encoder, (1, 160)),
    "dac, back": (lambda: dac().decoder, (16, 12)),
}
"""Small ones of the codecs that are swept: causal, dilated, transposed and cut, weights normalised."""


@pytest.mark.parametrize("name", OF_SOUND)
def test_networks_of_sound_there_and_back(name):
    torch.manual_seed(0)
    build, shape = OF_SOUND[name]
    network, x = build().eval(), images(1, *shape)
    randomise(Built(network, (x,)))
    attention, there = network_to_attention(network, images=x)
    made, back = network_to_conv(attention, images=x)
    assert (there.verdict, back.verdict) == ("exact", "exact")
    assert not there.left_alone
    assert not back.left_alone
    assert len(there.layers) == len(back.layers) == len(convolutions(made))


@pytest.mark.parametrize("borders", ["plain", "exact"])
def test_a_wider_window_than_that_of_the_padding_is_taken_inside_it(borders):
    network = nn.Sequential(timm.layers.Conv2dSame(3, 4, 3, stride=2), nn.Conv2d(4, 4, 3)).eval()
    x = images(2, 3, 17, 24)
    soft, _ = network_to_attention(network, images=x, sharpness=4.0)
    made, certificate = network_to_conv(soft, images=x, borders=borders)
    assert not certificate.left_alone
    assert certificate.verdict in (("close", "different") if borders == "plain" else ("exact",))
    assert made[0](x).shape == network[0](x).shape


def test_mixed_convolutions_are_converted_one_by_one():
    network = timm.layers.MixedConv2d(6, 9, [3, 5, 7])
    _, certificate = network_to_attention(network, images=images(1, 6, 11, 13))
    assert certificate.passed
    assert [layer.heads for layer in certificate.layers] == [9, 25, 49]


def test_kernels_and_taps_that_follow_the_input_are_not_converted():
    kernels = nn.Sequential(nn.Conv2d(4, 4, 1), Routed(4))
    _, certificate = network_to_attention(kernels, images=images(2, 4, 7, 9))
    assert [(item.name, item.reason) for item in certificate.left_alone] == [
        ("1.conv", "the convolutions that it calls depend on the input")
    ]
    taps = nn.Sequential(torchvision.ops.DeformConv2d(4, 4, 3))
    with pytest.raises(UnsupportedModelError, match="its taps move with the input"):
        network_to_attention(taps, images=images(1, 4, 7, 9))


class Routed(nn.Module):
    """A convolution whose kernel is a mixture that depends on the image."""

    def __init__(self, width):
        super().__init__()
        self.conv = timm.layers.CondConv2d(width, width, 3)
        self.route = nn.Linear(width, 4)

    def forward(self, x):
        return self.conv(x, self.route(x.mean((2, 3))).sigmoid())


def test_a_convolution_as_a_function_inside_timm_is_converted():
    network = timm.create_model(
        "resnetblur50", num_classes=3, layers=(1, 1, 1, 1), channels=(8, 8, 8, 8)
    )
    _, certificate = network_to_attention(filled(network), images=images(1, 3, 64, 64))
    assert certificate.passed
    assert not certificate.left_alone
    assert sum(layer.call for layer in certificate.layers) == 4
