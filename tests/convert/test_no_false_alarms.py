"""No right conversion is called failed: random layers of every kind and random networks, there and back.

`pytest -m slow tests/convert/test_no_false_alarms.py --seed-shift N` draws others.
"""

import math
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.convert.network.network_cases import filled
from tests.testing.strategies import convolutions
from torch import nn

from convattn.convert import (
    attention_to_conv,
    conv_to_attention,
    network_to_attention,
    network_to_conv,
)
from convattn.convert.taps import TransposedConvolution
from convattn.encodings import ENCODINGS, create_encoding
from convattn.grid import PADDING_MODES
from convattn.layers import RelativeAttention1d, RelativeAttention2d, RelativeAttention3d
from convattn.models import AttentionNet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:Do not use the `random` module inside strategies"
    ),  # the type check does
]
DTYPES = (torch.bfloat16, torch.float32, torch.float64)
SIZES = {1: (23,), 2: (7, 9), 3: (4, 5, 4)}


def right(conversion, *verdicts):
    """What was made, by a conversion that keeps its promise; one that loses something may say how much."""
    made, certificate = conversion
    assert certificate.verdict in (verdicts or ("exact", "close", "different")), (
        certificate.summary()
    )
    return made


def loses_bias(conv):
    """Says whether torch leaves out the bias between taps: some processors do, of transposed ones in bfloat16."""
    if conv.bias is None or not isinstance(conv, TransposedConvolution):
        return False
    sizes = {1: [30], 2: [15, 15], 3: [11, 11, 11]}[
        len(conv.kernel_size)
    ]  # more than any padding takes away
    with torch.no_grad():
        y = conv(torch.zeros(1, conv.in_channels, *sizes, dtype=conv.weight.dtype))
    return not torch.equal(y, conv.bias.view(-1, *(1,) * len(conv.kernel_size)).expand_as(y))


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(convolutions(DTYPES), st.sampled_from([0.5, 5.0, 46.0]), st.integers(1, 3), st.booleans())
def test_convolutions(conv, sharpness, head_width, content):
    layer = right(conv_to_attention(conv, content=content), "exact")
    again = right(attention_to_conv(layer), "exact", *(["failed"] if loses_bias(conv) else []))
    assert torch.equal(again.weight, conv.weight) or isinstance(conv, TransposedConvolution)
    right(conv_to_attention(conv, sharpness=sharpness))
    right(conv_to_attention(conv, head_width=head_width))


def draws():
    """A source of random numbers that the seed of torch sets."""
    return random.Random(int(torch.randint(2**31, ())))


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_attention(name):
    draw = draws()
    for _ in range(100 // len(ENCODINGS) + 1):
        dims, groups, heads = draw.randint(1, 3), draw.choice([1, 1, 2, 3]), draw.randint(1, 7)
        encoding = encoding_of(name, heads, dims, draw)
        layer = (RelativeAttention1d, RelativeAttention2d, RelativeAttention3d)[dims - 1](
            groups * draw.randint(1, 5),
            groups * draw.randint(1, 5),
            heads,
            encoding,
            groups=groups,
            bias=draw.random() < 0.7,
            head_width=draw.choice([None, 1, 2]),
            dtype=draw.choice(DTYPES),
        )
        right(
            attention_to_conv(
                layer,
                kernel_size=draw.choice([1, 3, 5]),
                spatial=SIZES[dims],
                padding_mode=draw.choice([None, *PADDING_MODES]),
            )
        )


def encoding_of(name, heads, dims, draw):
    """From nearly uniform heads to hard ones."""
    options = {"extent": 30} if name.startswith("learned") else {}
    if name == "shift":
        options["displacements"] = [
            [draw.randint(-2, 2) for _ in range(dims)] for _ in range(heads)
        ]
    encoding, scale = create_encoding(name, heads, dims, **options), math.exp(draw.uniform(-1, 2))
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.mul_(scale)
    return encoding


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
