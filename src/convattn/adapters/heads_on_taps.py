"""One attention head per tap of a convolution of patches: adds missing heads, and centres heads on taps."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from convattn.adapters.native import NativeAttention, linear
from convattn.encodings import Quadratic
from convattn.encodings.quadratic import root_of_sharpness
from convattn.grid import Geometry

_HARD = {torch.float64: 800.0}
"""α at which e^{−α} is 0; elsewhere softmax is in float32, and 128 is enough."""


def add_heads(layer: NativeAttention, geometry: Geometry, generator: torch.Generator | None) -> NativeAttention:
    """Adds heads of the same width after a layer's own until there is one for every tap; new biases are 0.

    The new matrices are normal with the deviation of the layer's own.
    """
    missing = math.prod(geometry.kernel_size) - layer.heads
    if missing <= 0:
        return layer
    inner = missing * layer.head_width

    def wider(old: nn.Linear) -> nn.Linear:
        weight = torch.cat([old.weight, _draw_normal(old.weight, (inner, old.in_features), generator)])
        bias = None if old.bias is None else torch.cat([old.bias, old.bias.new_zeros(inner)])
        return linear(weight, bias, like=old)

    value, out = wider(layer.value), layer.output
    weight = torch.cat([out.weight, _draw_normal(out.weight, (out.out_features, inner), generator)], dim=1)
    output = linear(weight, out.bias, like=out)
    query, key = wider(layer.query), wider(layer.key)
    return replace(layer, heads=layer.heads + missing, query=query, key=key, value=value, output=output)


def tap_encoding(layer: NativeAttention, geometry: Geometry, sharpness: float | None) -> Quadratic:
    """Centres the first heads on the taps, row by row, and the rest on the query's own patch, in at least float32.

    `sharpness` is α > 0 in 1/patch²; None makes weights off the taps exactly zero.
    """
    weight = layer.value.weight
    kind = torch.promote_types(weight.dtype, torch.float32)
    centres = torch.zeros(layer.heads, 2, dtype=kind)
    taps = torch.tensor([displacement for _, displacement in geometry.taps()], dtype=kind)
    centres[: len(taps)] = taps
    encoding = Quadratic(layer.heads, 2).to(device=weight.device, dtype=kind)
    with torch.no_grad():
        encoding.centres.copy_(centres)
        encoding.root_sharpness.fill_(
            root_of_sharpness(_HARD.get(kind, 128.0) if sharpness is None else sharpness, kind)
        )
    return encoding


def _draw_normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws normal numbers with the deviation of others."""
    device = torch.device("cpu") if generator is None else generator.device
    drawn = torch.randn(shape, generator=generator, device=device).to(device=like.device, dtype=like.dtype)
    return drawn * like.detach().std()
