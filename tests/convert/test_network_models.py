"""Networks of timm and torchvision, converted on both paths: random weights, batch-norm statistics that are not new."""

import pytest
import torch
from torch import nn

from convattn import network_to_attention
from convattn.convert import SamePaddedAttention
from convattn.errors import UnsupportedModelError
from convert.network_cases import assert_unchanged, filled, fingerprint, images

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

FROZEN = "the standardised weight was converted; trained further, it is not standardised again"
TIMM = {
    "resnet18": set(),
    "tf_mobilenetv3_small_minimal_100": set(),  # pads by the size of the image
    "edgenext_xx_small": set(),  # asks a convolution for the dtype of its weight
    "nf_resnet26": {FROZEN},
    "convnext_atto": set(),
}
TORCHVISION = {
    "mobilenet_v3_small": (torchvision.models.mobilenet_v3_small, (3, 64, 64)),
    "mc3_18": (torchvision.models.video.mc3_18, (3, 4, 32, 32)),
}


def check(network, x, notes):
    """Converts a network on both paths; nothing is left over, and the whole is right within its budget."""
    network = filled(network).eval()
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
        assert 0 < certificate.measured_error <= certificate.rounding
        assert certificate.top1_changed == 0
    assert_unchanged(network, before)


def convolutions(network):
    return [module for module in network.modules() if isinstance(module, nn.modules.conv._ConvNd)]


@pytest.mark.parametrize(("name", "notes"), TIMM.items(), ids=TIMM)
def test_timm(name, notes):
    torch.manual_seed(0)
    check(timm.create_model(name, num_classes=11), images(2, 3, 64, 64), notes)


@pytest.mark.parametrize(("build", "shape"), TORCHVISION.values(), ids=TORCHVISION)
def test_torchvision(build, shape):
    torch.manual_seed(0)
    check(build(num_classes=11), images(2, *shape), set())


@pytest.mark.parametrize("sizes", [(17, 23), (16, 24)])
@pytest.mark.parametrize("kind", ["Conv2dSame", "StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_subclass_of_timm(kind, stride, sizes):
    torch.manual_seed(0)
    build = getattr(timm.layers, kind)
    network = nn.Sequential(build(4, 6, 3, stride=stride), build(6, 6, (5, 2), groups=2, bias=True)).double().float()
    before = fingerprint(network)
    made, certificate = network_to_attention(network, images=images(2, 4, *sizes))
    assert_unchanged(network, before)
    assert certificate.passed
    assert certificate.measured_error > 0
    dynamic = kind == "Conv2dSame" or (kind.endswith("Same") and stride > 1)
    assert isinstance(made[0], SamePaddedAttention) == dynamic
    assert bool(certificate.layers[0].notes) == kind.startswith(("Std", "Scaled"))
    assert made[0].weight.shape == (6, 4, 3, 3)


def test_mixed_convolutions_are_converted_one_by_one():
    network = timm.layers.MixedConv2d(6, 9, [3, 5, 7])
    _, certificate = network_to_attention(network, images=images(1, 6, 11, 13))
    assert certificate.passed
    assert [layer.heads for layer in certificate.layers] == [9, 25, 49]


def test_kernels_and_taps_that_follow_the_input_are_refused():
    network = nn.ModuleList(
        [
            timm.layers.CondConv2d(4, 4, 3),
            torchvision.ops.DeformConv2d(4, 4, 3),
            torchvision.ops.Conv2dNormActivation(4, 4),
        ]
    )
    with pytest.raises(UnsupportedModelError) as caught:
        network_to_attention(network, images=images(1, 4, 7, 9))
    assert str(caught.value).splitlines()[1:] == [
        "  0 (CondConv2d): its kernels depend on the input",
        "  1 (DeformConv2d): its taps move with the input",
    ]


def test_a_convolution_as_a_function_inside_timm_is_named():
    network = timm.create_model("resnetblur50", num_classes=3, layers=(1, 1, 1, 1), channels=(8, 8, 8, 8))
    _, certificate = network_to_attention(filled(network), images=images(1, 3, 64, 64))
    assert certificate.passed
    assert {item.kind for item in certificate.left_alone} == {"BlurPool2d"}
