"""Hard heads: each looks at one fixed displacement, so that attention is a convolution and runs as one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.keys import pad_keys
from convattn.grid import Axis, Geometry

__all__ = ["Shifts", "find_shifts", "shift_attention"]

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


class Shifts(NamedTuple):
    """Where hard heads look.

    Attributes:
        offsets: Displacement of each head, one integer per axis; where it leads out of the image, the head looks at the
            nearest key.
        leak: Largest share of attention, over heads and queries, that is not at that key.
    """

    offsets: tuple[tuple[int, ...], ...]
    leak: float

    @property
    def window(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The kernel that holds all heads: (first displacement, taps, dilation) per axis."""
        first, taps, steps = [], [], []
        for along in zip(*self.offsets, strict=True):
            low, high = min(along), max(along)
            step = math.gcd(*(offset - low for offset in along)) or 1
            first.append(low)
            taps.append((high - low) // step + 1)
            steps.append(step)
        return tuple(first), tuple(taps), tuple(steps)


def find_shifts(weights: Sequence[Float[Tensor, "heads _ _"]], axes: Sequence[Axis], most: float) -> Shifts | None:
    """Finds out whether all heads are hard, and where they look.

    Args:
        weights: Attention along each axis, (heads, queries, keys).
        axes: Queries and keys along each axis.
        most: Largest leak at which a head counts as hard.

    Returns:
        The shifts; None where a head leaks more, or looks at different displacements from different queries.

    Example:
        >>> shifts = find_shifts([torch.eye(4)[None, 1:].float()], [Axis(range(3), 4)], most=0.0)
        >>> shifts.offsets, shifts.leak
        (((1,),), 0.0)
    """
    offsets, leak = [], torch.zeros(())
    for weight, axis in zip(weights, axes, strict=True):
        at = weight.detach().argmax(-1, keepdim=True)
        leak = leak + weight.detach().scatter(-1, at, 0.0).sum(-1).max().cpu()
        if not leak <= most:
            return None
        offset = _offsets(at[..., 0], axis)
        if offset is None:
            return None
        offsets.append(offset)
    return Shifts(tuple(zip(*offsets, strict=True)), leak.item())


def shift_attention(
    shifts: Shifts,
    axes: Sequence[Axis],
    geometry: Geometry,
    x: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    bias: Float[Tensor, " outputs"] | None = None,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes attention with hard heads as one convolution.

    Args:
        shifts: Where the heads look.
        axes: Queries and keys along each axis of the padded images.
        geometry: How the images are padded.
        x: Images, before padding.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.
        bias: Added to the output.

    Returns:
        Output channels at each query. Gradients with respect to `x`, `maps` and `bias` are exact.
    """
    first, taps, dilation = shifts.window
    kernel = _kernel(shifts, maps, first, taps, dilation)
    start = [axis.queries[0] + low for axis, low in zip(axes, first, strict=True)]
    spans = [(n - 1) * step + 1 for n, step in zip(taps, dilation, strict=True)]
    stop = [axis.queries[-1] + low + span for axis, low, span in zip(axes, first, spans, strict=True)]
    padding = _own_padding(geometry, axes, start, spans)
    if padding is None:
        x, padding = _window(pad_keys(x, geometry), axes, start, stop), (0,) * len(axes)
    stride = tuple(axis.queries.step for axis in axes)
    return _CONVOLUTIONS[len(axes)](x, kernel, bias, stride, padding, dilation, groups)


def _offsets(found: Tensor, axis: Axis) -> list[int] | None:
    """Returns each head's displacement from which all its queries look at the keys found, or None."""
    queries = torch.arange(axis.queries.start, axis.queries.stop, axis.queries.step, device=found.device)
    inside, low = (found > 0) & (found < axis.keys - 1), found == 0
    last_low = (low.sum(-1) - 1).clamp(min=0)  # of the queries that look beyond the border, one tells the most
    witness = torch.where(inside.any(-1), inside.int().argmax(-1), last_low)
    offset = (found - queries).gather(-1, witness[:, None])
    if not torch.equal((queries + offset).clamp(0, axis.keys - 1), found):
        return None
    return offset[:, 0].tolist()


def _kernel(
    shifts: Shifts, maps: Tensor, first: tuple[int, ...], taps: tuple[int, ...], dilation: tuple[int, ...]
) -> Float[Tensor, "outputs channels_per_group *taps"]:
    """Puts each head's matrix at its tap; heads that look at the same pixel add up."""
    positions = []
    for offset in shifts.offsets:
        position = 0
        for value, low, step, size in zip(offset, first, dilation, taps, strict=True):
            position = position * size + (value - low) // step
        positions.append(position)
    if positions != list(range(math.prod(taps))):
        index = torch.tensor(positions, device=maps.device)
        maps = maps.new_zeros(math.prod(taps), *maps.shape[1:]).index_add(0, index, maps)
    return maps.unflatten(0, taps).movedim((-2, -1), (0, 1))


def _own_padding(
    geometry: Geometry, axes: Sequence[Axis], start: Sequence[int], spans: Sequence[int]
) -> tuple[int, ...] | None:
    """Returns the padding with which a convolution sees the window on its own, or None where it cannot."""
    if set(geometry.input_dilation) != {1} or (geometry.padding_mode != "zeros" and not geometry.keeps_grid):
        return None
    padding = []
    for (before, after), axis, low, span in zip(geometry.padding, axes, start, spans, strict=True):
        step, pad = axis.queries.step, before - low
        high = axis.queries[-1] - axis.queries[0] + low + span
        outputs = (axis.keys - before - after + 2 * pad - span) // step + 1
        if low < 0 or high > axis.keys or pad < 0 or high > axis.keys - after + pad or outputs != len(axis.queries):
            return None
        padding.append(pad)
    return tuple(padding)


def _window(keys: Tensor, axes: Sequence[Axis], start: Sequence[int], stop: Sequence[int]) -> Tensor:
    """Cuts what the kernel passes over out of the keys; beyond their border it is the nearest key."""
    margins = [(max(0, -low), max(0, high - axis.keys)) for low, high, axis in zip(start, stop, axes, strict=True)]
    for dim, (low, high, axis) in enumerate(zip(start, stop, axes, strict=True), start=2):
        inside = slice(min(max(0, low), axis.keys - 1), max(1, min(high, axis.keys)))
        keys = keys[(slice(None),) * dim + (inside,)]
    if not any(sum(pair) for pair in margins):
        return keys
    return functional.pad(keys, [pixels for pair in reversed(margins) for pixels in pair], mode="replicate")
