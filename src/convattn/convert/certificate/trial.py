"""What a conversion is measured with: a random image, and the layer as real softmax attention."""

import copy
from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from convattn.encodings import Quadratic
from convattn.errors import ShapeError
from convattn.grid import Geometry
from convattn.layers import RelativeAttention

SEED = 0
"""Seed of the random images."""


def draw_images(layer: RelativeAttention, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws two standard normal images of given sizes for a layer, in float64, and rounds them."""
    shape = (2, layer.in_channels, *sizes)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64, device="cpu")
    return x.to(device=next(layer.values.parameters()).device, dtype=dtype)


def smallest_image(geometry: Geometry) -> Sequence[int]:
    """Returns the smallest sizes for which the padded image holds the window."""
    slack = {"reflect": 1, "circular": 0}.get(geometry.padding_mode)
    sizes = []
    for axis, pads in enumerate(geometry.padding):
        for size in count(1 if slack is None else max(1, max(pads) + slack)):
            spatial = [10**9] * len(geometry.padding)
            spatial[axis] = size
            try:
                geometry.axes(spatial)
            except ShapeError:
                continue
            sizes.append(size)
            break
    return sizes


def softmax_copy(layer: RelativeAttention, dtype: torch.dtype) -> RelativeAttention:
    """Copies a layer for inference so that it computes a real softmax; a layer with content keeps its own path.

    Hard heads would otherwise run as a convolution, and comparing that with a convolution proves nothing.
    """
    copied = copy.deepcopy(layer).eval()
    copied.dropout = 0.0  # plays no part in inference, and not every path has it
    if dtype == torch.float64:
        copied = copied.double()
    if copied.content is None:
        copied.impl = "separable" if copied.encoding.axis_additive else "dense"
    return copied


def largest(x: Tensor) -> float:
    """Returns the largest absolute value, or 0 for an empty tensor."""
    return x.abs().max().item() if x.numel() else 0.0


def lowest_sharpness(layer: RelativeAttention) -> float | None:
    """Returns the smallest α of quadratic heads; None for other encodings."""
    encoding = layer.encoding
    return encoding.sharpness.detach().double().min().item() if isinstance(encoding, Quadratic) else None


def describe_attention(layer: RelativeAttention) -> str:
    """Returns a layer in one line, as a certificate prints it."""
    return f"{type(layer).__name__}({layer.extra_repr()}, encoding={layer.encoding})"
