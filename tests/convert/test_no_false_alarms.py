"""No right conversion is called failed: random networks, there and back.

`pytest -m slow tests/convert/test_no_false_alarms.py --seed-shift N` draws others.
"""

import random

import pytest
import torch
from tests.convert.network.network_cases import filled
from torch import nn

from convattn.convert import network_to_attention, network_to_conv
from convattn.grid import PADDING_MODES
from convattn.models import AttentionNet

pytestmark = pytest.mark.slow


def right(conversion, *verdicts):
    """What was made, by a conversion that keeps its promise; one that loses something may say how much."""
    made, certificate = conversion
    assert certificate.verdict in (verdicts or ("exact", "close", "different")), (
        certificate.summary()
    )
    return made


def draws():
    """A source of random numbers that the seed of torch sets."""
    return random.Random(int(torch.randint(2**31, ())))


def convolutional(draw):
    """A random network of convolutions, with what stands between them."""
    width, parts = 3, []
    for _ in range(draw.randint(1, 4)):
        groups, wide = draw.choice([1, width]), draw.randint(1, 3)
        options = {
            "stride": draw.choice([1, 1, 2]),
            "padding": 1,
            "groups": groups,
            "bias": draw.random() < 0.5,
        }
        mode = draw.choice(PADDING_MODES)
        parts.append(
            nn.Conv2d(
                width, width * wide, draw.choice([1, 3, (3, 2)]), padding_mode=mode, **options
            )
        )
        width *= wide
        parts.append(draw.choice([nn.BatchNorm2d(width), nn.GroupNorm(1, width), nn.Identity()]))
        parts.append(draw.choice([nn.ReLU(), nn.GELU(), nn.SiLU()]))
    if draw.random() < 0.3:
        parts.append(nn.ConvTranspose2d(width, width, 3, stride=2))
    if draw.random() < 0.7:
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, draw.choice([1, 2, 10]))]
    return filled(nn.Sequential(*parts)).eval()


def test_networks_of_convolutions():
    draw = draws()
    for _ in range(12):
        dtype, count = draw.choice([torch.float32, torch.float64]), draw.choice([1, 2, 5])
        network, x = convolutional(draw).to(dtype), torch.randn(count, 3, 9, 11, dtype=dtype)
        made = right(network_to_attention(network, images=x, content=draw.random() < 0.2), "exact")
        right(network_to_conv(made, images=x), "exact")
        right(network_to_attention(network, images=x, sharpness=draw.choice([5.0, 46.0])))


@pytest.mark.parametrize(
    "encoding", ["distance", "generalized_quadratic", "learned_table", "quadratic"]
)
def test_networks_of_attention(encoding):
    draw = draws()
    for _ in range(2):
        sizes = {"width": 12, "depth": draw.randint(1, 3), "heads": 4, "ffn": 16, "image_size": 16}
        network, x = (
            filled(AttentionNet(encoding, **sizes)).eval(),
            torch.randn(draw.choice([1, 3]), 3, 16, 16),
        )
        right(network_to_conv(network, images=x, kernel_size=draw.choice([1, 3, 7])))
