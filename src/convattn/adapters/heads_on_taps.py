"""A native layer's heads, one per tap of a convolution of patches, as layers of this library."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from convattn.adapters.native import NativeAttention, NativeTransformer, linear
from convattn.adapters.patch_attention import GatedPatchAttention, PatchAttention
from convattn.adapters.position_layer import layer_by_position
from convattn.encodings import Quadratic
from convattn.encodings.quadratic import root_of_sharpness
from convattn.grid import Geometry

__all__ = ["gated_attention", "on_taps", "position_attention", "tap_encoding"]

_HARD = {torch.float64: 800.0}
"""α at which e^{−α} is 0; elsewhere softmax is in float32, and 128 is enough."""


def on_taps(layer: NativeAttention, geometry: Geometry, generator: torch.Generator | None) -> NativeAttention:
    """Adds heads to a layer that has fewer than there are taps.

    Args:
        layer: The layer.
        geometry: The window.
        generator: Source of the new heads' matrices, normal with the deviation of the layer's own; biases are 0.

    Returns:
        A layer of at least as many heads as taps, of the same width, its own heads first.
    """
    missing = math.prod(geometry.kernel_size) - layer.heads
    if missing <= 0:
        return layer
    inner = missing * layer.head_width

    def wider(old: nn.Linear) -> nn.Linear:
        weight = torch.cat([old.weight, _drawn(old.weight, (inner, old.in_features), generator)])
        bias = None if old.bias is None else torch.cat([old.bias, old.bias.new_zeros(inner)])
        return linear(weight, bias, like=old)

    value, out = wider(layer.value), layer.output
    weight = torch.cat([out.weight, _drawn(out.weight, (out.out_features, inner), generator)], dim=1)
    output = linear(weight, out.bias, like=out)
    query, key = wider(layer.query), wider(layer.key)
    return replace(layer, heads=layer.heads + missing, query=query, key=key, value=value, output=output)


def tap_encoding(layer: NativeAttention, geometry: Geometry, sharpness: float | None) -> Quadratic:
    """Centres the first heads on the taps, row by row, and the rest on the query's own patch.

    Args:
        layer: A layer of at least as many heads as taps.
        geometry: The window.
        sharpness: α > 0 in 1/patch²; None makes weights off the taps exactly zero.

    Returns:
        The encoding, in at least float32.

    Raises:
        ArgumentError: The sharpness is out of range.
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


def gated_attention(
    layer: NativeAttention, native: NativeTransformer, encoding: Quadratic, geometry: Geometry, content_share: float
) -> GatedPatchAttention:
    """Makes a layer whose heads look at their taps and, as far as their gates are open, at what they looked at before.

    Args:
        layer: The layer, with the heads that it is to have.
        native: The network that it stands in.
        encoding: Where its heads look.
        geometry: The window.
        content_share: Share of content at the start, in [0, 1).

    Returns:
        The layer.
    """
    weight = layer.value.weight
    return GatedPatchAttention(
        encoding,
        torch.full((layer.heads,), math.atanh(content_share), dtype=weight.dtype, device=weight.device),
        native.grid,
        geometry,
        query=layer.query,
        key=layer.key,
        value=layer.value,
        output=layer.output,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        prefix=native.prefix,
        dropout=layer.dropout,
        after=layer.after,
    )


def position_attention(
    layer: NativeAttention, native: NativeTransformer, encoding: Quadratic, geometry: Geometry
) -> PatchAttention:
    """Makes a layer whose heads look at their taps alone.

    Args:
        layer: The layer, with the heads that it is to have.
        native: The network that it stands in.
        encoding: Where its heads look.
        geometry: The window.

    Returns:
        The layer.
    """
    made = layer_by_position(encoding, geometry, layer.value, layer.output)
    return PatchAttention(made, native.grid, prefix=native.prefix, after=layer.after)


def _drawn(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws normal numbers with the deviation of others."""
    device = torch.device("cpu") if generator is None else generator.device
    drawn = torch.randn(shape, generator=generator, device=device).to(device=like.device, dtype=like.dtype)
    return drawn * like.detach().std()
