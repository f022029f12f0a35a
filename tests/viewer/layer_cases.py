"""Random layers of attention by displacement, with an image for each."""

import math
import random
from typing import Any

import torch
from torch import Tensor

from convattn.encodings import ENCODINGS, Encoding, create_encoding
from convattn.grid import PADDING_MODES
from convattn.layers import RelativeAttention2d

NAMES = sorted(
    {"distance", "generalized_quadratic", "learned_axial", "learned_table", "linear_distance"}
)
NAMES += ["quadratic", "shift", "sinusoidal", "axial_distance"]
assert set(NAMES) <= set(ENCODINGS)


def random_layer(seed: int) -> tuple[RelativeAttention2d, Tensor]:
    """Draws a layer and one image that fits it."""
    draw = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        name, groups = NAMES[seed % len(NAMES)], draw.choice([1, 1, 2, 3])
        heads = 9 if name == "shift" else draw.randint(1, 7)
        stride = draw.choice([1, 1, (2, 1), 3])
        options: dict[str, Any] = {
            "head_width": draw.choice([None, None, 1, 2, 5]),
            "kernel_size": draw.choice([1, 3, (2, 3), 5]),
            "stride": stride,
            "padding": draw.choice(
                [0, 1, (2, 1), ((1, 0), (2, 3)), ((-1, 1), (0, -1)), "same" if stride == 1 else 2]
            ),
            "padding_mode": draw.choice(PADDING_MODES),
            "dilation": draw.choice([1, 1, 2, (1, 2)]),
            "input_dilation": draw.choice([1, 1, 1, (2, 1), 2]),
            "groups": groups,
            "bias": draw.random() < 0.7,
        }
        inputs, outputs = groups * draw.randint(1, 5), groups * draw.randint(1, 5)
        layer = RelativeAttention2d(
            inputs, outputs, num_heads=heads, encoding=_encoding(name, heads, draw), **options
        )
        image = torch.randn(1, inputs, draw.randint(10, 17), draw.randint(10, 17)) * draw.choice(
            [1e-2, 1.0, 30.0]
        )
        return layer.eval(), image


def _encoding(name: str, heads: int, draw: random.Random) -> Encoding:
    """Draws an encoding, from nearly uniform heads to hard ones."""
    options: dict[str, Any] = {"extent": 70} if name.startswith("learned") else {}
    if name == "shift":
        options["displacements"] = [
            [draw.randint(-4, 4), draw.randint(-4, 4)] for _ in range(heads)
        ]
    encoding = create_encoding(name, heads, 2, **options)
    scale = math.exp(draw.uniform(-1, 2))
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.mul_(scale)
    return encoding
