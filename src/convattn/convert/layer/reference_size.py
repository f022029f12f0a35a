"""The image size for which an attention layer's kernel is computed."""

import math

from convattn.convert.certificate.attention import smallest_image
from convattn.convert.layer.attention_map import attention_map, unit_steps
from convattn.convert.layer.hard_heads import fixed_heads
from convattn.convert.layer.windows import own_window
from convattn.encodings import LearnedAxial, LearnedTable
from convattn.errors import ArgumentError, must_be
from convattn.grid import PerAxis, axis_lists
from convattn.layers import RelativeAttention

__all__ = ["reference_size"]

_MOST = 1 << 18
_LONGEST = 1 << 10
"""Displacements of a grid, and keys along an axis, beyond which no larger grid is tried."""


def reference_size(layer: RelativeAttention, mass: float, spatial: PerAxis | None) -> tuple[int, ...]:
    """Chooses the sizes of the images for which a kernel is computed and measured.

    Args:
        layer: The layer.
        mass: Share of attention that may be left out.
        spatial: Sizes that the user gave, or None.

    Returns:
        The user's sizes; for tables those that just use them; for hard heads those that show where each looks; else
        sizes of which the heads use only half of the displacements, found by growing.

    Raises:
        ArgumentError: The heads use nearly all displacements of any grid, so that the user must say which; ShapeError
            where the user's sizes are smaller than the window.
    """
    geometry = layer.geometry
    if spatial is not None:
        sizes = axis_lists("spatial", spatial, layer.dims, least=1)
        layer.encoding.require_axes(unit_steps(geometry, sizes))
        return sizes
    if isinstance(layer.encoding, LearnedAxial | LearnedTable):
        pads, steps = (sum(pair) for pair in geometry.padding), geometry.input_dilation
        held = zip(layer.encoding.extent, pads, steps, strict=True)
        return tuple(max(1, (extent - pad - 1) // step + 1) for extent, pad, step in held)
    weight = next(layer.values.parameters())
    least, extra, own = smallest_image(geometry), 4, own_window(geometry)
    heads = fixed_heads(layer.encoding, weight.dtype)
    while True:
        sizes = tuple(size + extra + axis for axis, size in enumerate(least))
        axes = unit_steps(geometry, sizes)
        many = heads is None and math.prod(2 * axis.keys for axis in axes) > _MOST
        if extra > 4 and (many or max(sizes) > _LONGEST):
            expectation = "given, because the heads do not fall off with distance and attend differently in each size"
            raise ArgumentError(must_be("spatial", expectation, spatial))
        if heads is not None:
            shown = heads.seen(axes)
        else:
            attention = attention_map(layer.encoding, axes, weight.device)
            shown = (own is not None and attention.left_out(own) <= mass) or attention.falls_off(mass)
        if shown:
            return sizes
        extra += extra // 2
