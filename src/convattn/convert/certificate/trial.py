"""What a conversion is measured with: random images, the layer as softmax attention, other orders of summation."""

import copy
from collections.abc import Iterator, Sequence
from itertools import count

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.convert.taps import Taps
from convattn.encodings import Quadratic
from convattn.errors import ShapeError
from convattn.functional import combine_heads, pad_keys, query_pixels
from convattn.grid import Axis, Geometry
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


def tap_by_tap(taps: Taps, x: Float[Tensor, "batch channels *spatial"]) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as a sum over taps."""
    y = None
    for pixels, weight in zip(tap_pixels(taps, x), taps.maps, strict=True):
        term = combine_heads(pixels[:, None], weight[None], taps.groups)
        y = term if y is None else y + term
    assert y is not None
    return _with_bias(taps, y)


def in_one_product(taps: Taps, x: Float[Tensor, "batch channels *spatial"]) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution in its own dtype as one matrix product, with a copy of the image for every tap."""
    every = rearrange(
        torch.stack(list(tap_pixels(taps, x)), 1),
        "b taps (groups c) ... -> b 1 (groups taps c) ...",
        groups=taps.groups,
    )
    maps = rearrange(taps.maps, "taps outputs c -> 1 outputs (taps c)")
    return _with_bias(taps, combine_heads(every, maps, taps.groups))


def tap_pixels(taps: Taps, x: Tensor) -> Iterator[Tensor]:
    """Yields, for each tap, the pixels that all queries see there."""
    axes, keys = taps.geometry.axes(x.shape[2:]), pad_keys(x, taps.geometry)
    for displacement in taps.displacements:
        shifted = [
            Axis(range(axis.queries.start + d, axis.queries.stop + d, axis.queries.step), axis.keys)
            for axis, d in zip(axes, displacement, strict=True)
        ]
        yield query_pixels(keys, shifted)


def _with_bias(taps: Taps, y: Tensor) -> Tensor:
    return y if taps.bias is None else y + taps.bias.view(-1, *(1,) * (y.ndim - 2))
