"""Random layers, convolutions and images, each from a seed, to hold certificates to their words."""

import math
from random import Random

import torch
from torch import Tensor

from convattn.encodings import ENCODINGS, Quadratic, Shift
from convattn.grid import PADDING_MODES
from convattn.layers import (
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)

__all__ = ["SCALES", "random_images", "random_layer", "random_sizes"]

_ATTENTION = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}

SCALES = {
    torch.float32: [1e-30, 1e-3, 1.0, 1e3, 1e20],
    torch.float64: [1e-100, 1e-3, 1.0, 1e3, 1e100],
    torch.bfloat16: [1e-20, 1e-3, 1.0, 1e3, 1e20],
    torch.float16: [1e-3, 1.0, 30.0],
}


def random_layer(random: Random) -> RelativeAttention:
    """Draws an attention layer: every encoding, quadratic heads soft to hard, near and far, and every geometry."""
    dims, dtype, groups, heads = (
        random.choice([1, 2, 2, 3]),
        _dtype(random),
        random.choice([1, 2, 3]),
        random.randint(1, 5),
    )
    options = {
        "kernel_size": _per_axis(random, dims, 1, 4),
        "dilation": _per_axis(random, dims, 1, 2),
    }
    options |= {"kernel_size": 1, "dilation": 1} if random.random() < 0.3 else {}
    options |= {
        "groups": groups,
        "bias": random.random() < 0.7,
        "head_width": random.choice([None, None, 1, 2]),
    }
    options |= _padding(random, dims)
    encoding = (
        _quadratic(random, heads, dims) if random.random() < 0.4 else random.choice(list(ENCODINGS))
    )
    if encoding == "shift":  # by name it is for the taps of a kernel only
        encoding = Shift(
            heads,
            dims,
            displacements=[[random.randint(-3, 3) for _ in range(dims)] for _ in range(heads)],
        )
    channels = [groups * random.randint(1, 3) for _ in range(2)]
    layer = _ATTENTION[dims](*channels, num_heads=heads, encoding=encoding, **options).to(dtype)
    layer.encoding.to(torch.promote_types(dtype, torch.float32))
    return layer


def random_images(
    random: Random, channels: int, sizes: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Draws two images: noise, noise of ±1 or the same number everywhere, at a scale of the dtype."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    x = torch.randn(2, channels, *sizes, generator=generator, dtype=torch.float64)
    return (random.choice([x, x.sign(), torch.ones_like(x)]) * random.choice(SCALES[dtype])).to(
        dtype
    )


def random_sizes(random: Random, dims: int) -> tuple[int, ...]:
    """Draws sizes of images."""
    return _per_axis(random, dims, 1, 14 if dims < 3 else 8)


def _padding(random: Random, dims: int) -> dict[str, object]:
    """Draws stride and padding, or what a transposed convolution has instead."""
    mode, stride = random.choice(PADDING_MODES), _per_axis(random, dims, 1, 3)
    pairs = [(random.randint(-1, 2), random.randint(-1, 2)) for _ in range(dims)]
    spread = [(max(before, 0), max(after, 0)) for before, after in pairs]
    return random.choice(
        [
            {"stride": stride},
            {"stride": stride, "padding": _per_axis(random, dims, 0, 2), "padding_mode": mode},
            {"stride": stride, "padding": pairs, "padding_mode": mode},
            {"padding": "same", "padding_mode": mode},
            {"padding": spread, "input_dilation": _per_axis(random, dims, 1, 3)},
        ]
    )


def _quadratic(random: Random, heads: int, dims: int) -> Quadratic:
    """Draws quadratic heads, which may lead far out of any image, on pixels or between them."""
    reach = random.choice([1.0, 2.0, 6.0, 12.0])
    centres = [[random.uniform(-reach, reach) for _ in range(dims)] for _ in range(heads)]
    if random.random() < 0.7:
        centres = [[float(math.floor(along)) for along in centre] for centre in centres]
    return Quadratic(
        heads, dims, centres=centres, sharpness=random.choice([0.3, 2.0, 20.0, 46.0, 128.0, 800.0])
    )


def _dtype(random: Random) -> torch.dtype:
    return random.choice([torch.float32] * 4 + [torch.float64, torch.bfloat16, torch.float16])


def _per_axis(random: Random, dims: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(random.randint(low, high) for _ in range(dims))
