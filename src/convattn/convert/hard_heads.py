"""Heads that look at one pixel each, at borders too: what convolution they are."""

from typing import NamedTuple

import torch

from convattn.convert.attention_map import AttentionMap
from convattn.encodings import AxisAdditiveEncoding, Quadratic
from convattn.functional import find_shifts
from convattn.grid import Axis, Geometry
from convattn.layers import RelativeAttention

__all__ = ["HardHeads", "hard_heads"]

_HARD = 1 / 8
"""Share of the rounding of the weights' dtype that a hard head may leak to other pixels."""


class HardHeads(NamedTuple):
    """Heads that look at one displacement each, and beyond the keys at the nearest key.

    Attributes:
        attention: One-hot maps.
        leak: Largest share of attention elsewhere.
        leads_out: Whether a head looks beyond the keys from some query.
        any_size: Whether all of this holds for images of any size.
    """

    attention: AttentionMap
    leak: float
    leads_out: bool
    any_size: bool


def hard_heads(layer: RelativeAttention, axes: tuple[Axis, ...], mode: str) -> HardHeads | None:
    """Finds out whether all heads are hard, and a convolution sees what they see where they look beyond the keys.

    Args:
        layer: The layer.
        axes: Queries, at every pixel, and keys.
        mode: How the image goes on outside.

    Returns:
        The heads, or None.
    """
    if not isinstance(layer.encoding, AxisAdditiveEncoding):
        return None
    parameter = next(layer.values.parameters())
    with torch.no_grad(), torch.autocast(parameter.device.type, enabled=False):
        tables = layer.encoding.axis_tables(axes, torch.float64, parameter.device)
    shifts = find_shifts(tables, axes, torch.finfo(parameter.dtype).eps * _HARD)
    if shifts is None:
        return None
    sides = _sides_left(layer.geometry, shifts.offsets)
    if not _goes_on_alike(layer.geometry, sides, mode):
        return None
    table = tables[0].new_zeros(layer.num_heads, *(axis.highest - axis.lowest + 1 for axis in axes))
    for head, offset in enumerate(shifts.offsets):
        table[(head, *(value - axis.lowest for value, axis in zip(offset, axes, strict=True)))] = 1
    totals = tables[0].new_ones(layer.num_heads, *(len(axis.queries) for axis in axes))
    any_size = isinstance(layer.encoding, Quadratic) and not sides
    return HardHeads(AttentionMap(axes, table, totals), shifts.leak, bool(sides), any_size)


def _sides_left(geometry: Geometry, offsets: tuple[tuple[int, ...], ...]) -> set[tuple[int, int]]:
    """Lists the sides (axis, 0 before or 1 after) on which a head looks beyond the keys from some query."""
    sides = set()
    for axis, along in enumerate(zip(*offsets, strict=True)):
        anchor = geometry.anchor[axis]
        if min(along) < -anchor:
            sides.add((axis, 0))
        if max(along) > geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) - anchor:
            sides.add((axis, 1))
    return sides


def _goes_on_alike(geometry: Geometry, sides: set[tuple[int, int]], mode: str) -> bool:
    """Tells whether beyond the keys a padded image holds what the nearest key holds."""
    if not sides:
        return True
    if any(pixels < 0 for pair in geometry.padding for pixels in pair):
        return False
    if mode == "replicate":
        return set(geometry.input_dilation) == {1}
    return mode == "zeros" and all(geometry.padding[axis][end] > 0 for axis, end in sides)
