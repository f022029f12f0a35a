"""Conversions whose kind is known beforehand: each is told right, as exact, close, different or failed."""

import pytest
import torch
from torch import nn

from convattn.convert import (
    attention_to_conv,
    conv_to_attention,
    network_check,
    network_to_attention,
    network_to_conv,
)
from convattn.convert.rounding import Predictions
from convattn.convert.taps import read_taps
from convattn.convert.to_attention import certify_attention
from convattn.encodings import Quadratic, Shift
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention2d

IMAGES = torch.randn(16, 3, 9, 11, generator=torch.Generator().manual_seed(7))


def network(kind="scores"):
    """Two convolutions, and what makes a map, scores, scores of which one is far ahead, or none is on average."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 7, 3))
    if kind == "map":
        return made
    scores = nn.Sequential(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        made[2].bias[5] += 3.0 if kind == "sure" else 0.0
        made[2].bias -= scores(IMAGES).mean(0) if kind == "unsure" else 0.0
    return scores


def soft_layer(sharpness, padding=0, seed=0):
    """A layer whose heads look one pixel away at most."""
    torch.manual_seed(seed)
    layer = RelativeAttention2d(
        3, 5, num_heads=4, encoding=Quadratic(4, 2), kernel_size=1, padding=padding
    )
    with torch.no_grad():
        layer.encoding.centres.clamp_(-1, 1)
        layer.encoding.root_sharpness.fill_(sharpness**0.5)
    return layer


def soft_network(sharpness, padding=0):
    return nn.Sequential(soft_layer(sharpness, padding), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def conv2d(**options):
    return conv_to_attention(nn.Conv2d(3, 5, 3), **options)[1]


def to_attention(kind="scores", images=IMAGES, **options):
    return network_to_attention(network(kind), images=images, **options)[1]


def to_conv(model, images=IMAGES, **options):
    return network_to_conv(model, images=images, **options)[1]


def cifar_like(sharpness):
    """The network above, converted with soft heads, so that it may come back."""
    return network_to_attention(network(), sharpness=sharpness, images=IMAGES)[0]


EXACT = {
    "layer": conv2d,
    "layer of bfloat16 and back": lambda: attention_to_conv(
        conv_to_attention(nn.Conv2d(3, 5, 3).bfloat16())[0]
    )[1],
    "softmax of hard heads": lambda: conv2d(impl="separable"),
    "closed gates": lambda: conv2d(content=True),
    "sharpness that hides behind rounding": lambda: conv2d(sharpness=20.0),
    "sharpness whose leak underflows": lambda: conv2d(sharpness=128.0),
    "layer that pads": lambda: attention_to_conv(soft_layer(2.25, padding=6), spatial=8)[1],
    "network": to_attention,
    "network, softmax": lambda: to_attention(impl="separable"),
    "network of maps": lambda: to_attention("map"),
    "network without images": lambda: to_attention(images=None),
    "network with sharpness behind rounding": lambda: to_attention(sharpness=24.0),
    "network with closed gates": lambda: to_attention(content=True),
    "network and back": lambda: to_conv(network_to_attention(network())[0]),
    "network and back without images": lambda: to_conv(
        network_to_attention(network())[0], images=None
    ),
    "network that pads": lambda: to_conv(soft_network(2.25, padding=6)),
}
CLOSE = {
    **{
        f"network of sharpness {sharpness}": lambda sharpness=sharpness: to_attention(
            sharpness=sharpness
        )
        for sharpness in (9.0, 10.0, 12.0, 15.0)
    },
    "maps, which have no decisions": lambda: to_attention("map", sharpness=10.0),
    "a limit of the caller": lambda: to_attention("sure", sharpness=5.0, tolerance=0.2),
    "a smaller limit of the caller": lambda: to_attention(sharpness=15.0, tolerance=1e-4),
    "back, by windows that leave little out": lambda: to_conv(cifar_like(10.0), kernel_size=3),
    "back, by a limit of the caller": lambda: to_conv(
        network_to_attention(network("sure"), sharpness=5.0)[0], kernel_size=3, tolerance=0.2
    ),
}
DIFFERENT = {
    **{
        f"layer of sharpness {sharpness}": lambda sharpness=sharpness: conv2d(sharpness=sharpness)
        for sharpness in (1.0, 3.0, 5.0, 10.0, 15.0)
    },
    "borders": lambda: attention_to_conv(soft_layer(2.25), spatial=8)[1],
    "narrow window": lambda: attention_to_conv(
        soft_layer(0.5, padding=9), spatial=8, kernel_size=3
    )[1],
    "window of one pixel": lambda: attention_to_conv(
        soft_layer(2.0, padding=9), spatial=8, kernel_size=1
    )[1],
    **{
        f"network of sharpness {sharpness}": lambda sharpness=sharpness: to_attention(
            sharpness=sharpness
        )
        for sharpness in (1.0, 2.0, 3.0, 5.0)
    },
    "close but for the limit": lambda: to_attention(sharpness=10.0, tolerance=1e-5),
    "close without a limit": lambda: to_attention(sharpness=10.0, tolerance=None),
    "close, on random numbers alone": lambda: to_attention(sharpness=10.0, images=None),
    "back, without images": lambda: to_conv(cifar_like(10.0), images=None, kernel_size=3),
    "within a wide limit, with decisions changed": lambda: to_attention(
        "unsure", sharpness=1.0, tolerance=0.99
    ),
    "sure, but far": lambda: to_attention("sure", sharpness=2.0),
    "network with borders": lambda: to_conv(soft_network(2.25)),
    "network with narrow windows": lambda: to_conv(soft_network(0.5, padding=6), kernel_size=3),
}


def tampered(fault):
    """Certifies a layer that was changed after it was converted."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    layer, _ = conv_to_attention(conv)
    with torch.no_grad():
        fault(layer)
    return certify_attention(conv, read_taps(conv), layer, leak=0.0)


def wrong_promise(leak):
    """Certifies soft heads that leak more than they promise."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, padding=1)
    layer, _ = conv_to_attention(conv, sharpness=3.0)
    return certify_attention(conv, read_taps(conv), layer, leak)


class Wrong(nn.Module):
    """Returns other outputs in a network whose layers were replaced."""

    def __init__(self, fault):
        super().__init__()
        self.conv, self.fault = nn.Conv2d(3, 5, 3), fault

    def forward(self, x):
        y = self.conv(x)
        return y if isinstance(self.conv, nn.Conv2d) else self.fault(y)


def wrong_network(fault, **options):
    torch.manual_seed(0)
    return network_to_attention(Wrong(fault), images=IMAGES, **options)[1]


FAILED = {
    "one tap": lambda: tampered(lambda layer: layer.values.weight[..., 0, 0].mul_(1.001)),
    "bias": lambda: tampered(lambda layer: layer.bias.add_(1e-4)),
    "a head elsewhere": lambda: tampered(
        lambda layer: setattr(
            layer, "encoding", Shift(9, 2, displacements=[*Shift(9, 2).displacements[:8], (0, 0)])
        )
    ),
    "a head turned off": lambda: tampered(lambda layer: layer.values.weight[4].zero_()),
    "heads that became soft": lambda: tampered(
        lambda layer: setattr(layer, "encoding", layer.encoding.soften(8.0))
    ),
    "not a number": lambda: tampered(lambda layer: layer.bias[0].fill_(torch.nan)),
    "soft heads called exact": lambda: wrong_promise(0.0),
    "more leak than promised": lambda: wrong_promise(1e-3),
    "exact layers, another network": lambda: wrong_network(lambda y: 1.001 * y),
    "a network of zeros": lambda: wrong_network(torch.zeros_like),
    "outputs not finite": lambda: wrong_network(lambda y: y / 0),
    "outputs not finite, soft": lambda: wrong_network(lambda y: y / 0, sharpness=5.0),
    "outputs of another shape, soft": lambda: wrong_network(lambda y: y[:, 1:], sharpness=5.0),
}
KNOWN = {"exact": EXACT, "close": CLOSE, "different": DIFFERENT, "failed": FAILED}
CASES = [
    pytest.param(verdict, case, id=f"{verdict}: {name}")
    for verdict, cases in KNOWN.items()
    for name, case in cases.items()
]


@pytest.mark.parametrize(("verdict", "convert"), CASES)
def test_a_conversion_of_known_kind_is_told_right(verdict, convert):
    torch.manual_seed(0)
    certificate = convert()
    assert certificate.verdict == verdict, certificate.summary()
    assert certificate.passed is (verdict in ("exact", "close"))
    name = certificate.direction.replace("_", " ")
    summary = certificate.summary()
    assert summary.startswith(f"{name}: {verdict} (")
    assert ("made smaller" in summary) is (verdict in ("close", "different"))
    assert repr(type(certificate).from_json(certificate.to_json())) == repr(
        certificate
    )  # also where it holds nan


def test_a_difference_is_said_with_its_size_decisions_and_layers():
    certificate = to_attention("unsure", sharpness=3.0)
    first, *lines = certificate.summary().splitlines()
    assert certificate.top1_changed > 0
    size = (
        f"by {certificate.measured_error / certificate.largest:.2g} of its channel's largest output"
    )
    assert (
        f"different ({size}, {certificate.top1_changed} of 16 decisions changed, 2 layers" in first
    )
    told = [line for line in lines if line.startswith("  layer")]
    assert [line.split()[1:3] for line in told] == [["0:", "different,"], ["2:", "different,"]]
    assert certificate.difference == certificate.measured_error / certificate.largest


@pytest.mark.parametrize(("ties", "verdict"), [(2, "close"), (1, "different")])
def test_a_decision_that_rounding_can_swap_is_not_held_against_a_result(ties, verdict, monkeypatch):
    monkeypatch.setattr(network_check, "count_predictions", lambda *_: Predictions(16, 2, ties))
    assert to_attention("sure", sharpness=8.0).verdict == verdict


def test_only_the_layers_in_which_a_difference_arises_are_named():
    torch.manual_seed(0)
    soft, hard = (
        conv_to_attention(nn.Conv2d(3, 5, 3), sharpness=3.0)[0],
        conv_to_attention(nn.Conv2d(5, 7, 3))[0],
    )
    certificate = to_conv(nn.Sequential(soft, hard), kernel_size=3)
    assert [(layer.name, layer.verdict) for layer in certificate.layers] == [
        ("0", "different"),
        ("1", "exact"),
    ]
    assert [
        line.split()[1] for line in certificate.summary().splitlines() if line.startswith("  layer")
    ] == ["0:"]


@pytest.mark.parametrize("tolerance", [0, 1, -1.0, float("nan"), float("inf"), True])
@pytest.mark.parametrize("convert", [network_to_attention, network_to_conv])
def test_a_tolerance_is_a_share(convert, tolerance):
    with pytest.raises(
        ArgumentError, match=r"tolerance must be a share in \(0, 1\), or None, but is"
    ):
        convert(network(), images=IMAGES, tolerance=tolerance)
