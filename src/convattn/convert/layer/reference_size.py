"""The image size for which the kernel of an attention layer is computed."""

import math

from convattn.convert.certificate.trial import smallest_image
from convattn.convert.layer.attention_map import map_attention, unit_steps
from convattn.convert.layer.hard_heads import fixed_heads
from convattn.convert.layer.windows import own_window
from convattn.encodings import LearnedAxial, LearnedTable
from convattn.errors import ArgumentError, must_be
from convattn.grid import PerAxis, axis_lists
from convattn.layers import RelativeAttention

__all__ = ["choose_sizes"]

_MOST = 1 << 18
_LONGEST = 1 << 10
"""Limits of the search: displacements of a grid, and keys along an axis."""


def choose_sizes(layer: RelativeAttention, mass: float, spatial: PerAxis | None) -> tuple[int, ...]:
    """Chooses the sizes of the images for which a kernel is computed and measured; those of the user if given.

    For tables: the sizes that just use the whole table. For hard heads: sizes at which each head's displacement leads
    to a key. For others: growing sizes until the heads use only half of the displacements; if they use more than half
    of any grid, ArgumentError asks the user for sizes.
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
            expectation = (
                "given, because the heads do not fall off with distance, so that the kernel depends on the image's size"
            )
            raise ArgumentError(must_be("spatial", expectation, spatial))
        if heads is not None:
            shown = heads.seen(axes)
        else:
            attention = map_attention(layer.encoding, axes, weight.device)
            shown = (own is not None and attention.left_out(own) <= mass) or attention.falls_off(mass)
        if shown:
            return sizes
        extra += extra // 2
