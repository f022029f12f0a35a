"""Hard heads: each looks at one fixed displacement, so that attention is a convolution and runs as one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.shift_convolution import shift_convolution
from convattn.grid import Axis, Geometry

__all__ = ["Shifts", "find_shifts", "shift_attention", "table_shifts"]


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


def table_shifts(tables: Sequence[Float[Tensor, "heads _"]], axes: Sequence[Axis], most: float) -> Shifts | None:
    """Finds hard heads by their scores alone, without a weight for every query and key.

    Args:
        tables: Scores of all displacements along each axis, from the lowest to the highest.
        axes: Queries and keys along each axis.
        most: Largest leak at which a head counts as hard.

    Returns:
        The shifts, with a bound on the leak over all displacements of the axes; None where that is larger, or where a
        head leads out of the keys from some query. Such heads may be hard all the same: `find_shifts` tells.

    Example:
        >>> shifts = table_shifts([torch.tensor([[-1e3, -1e3, 0.0, -1e3]])], [Axis(range(2), 3)], most=0.0)
        >>> shifts.offsets, shifts.leak
        (((1,),), 0.0)
    """
    offsets, leak = [], torch.zeros(())
    for table, axis in zip(tables, axes, strict=True):
        highest, at = table.detach().max(-1, keepdim=True)
        leak = leak + (table.detach() - highest).exp().scatter(-1, at, 0.0).sum(-1).max().cpu()
        if not leak <= most:
            return None
        along = [int(index) + axis.lowest for index in at[:, 0].tolist()]
        if min(along) + min(axis.queries) < 0 or max(along) + max(axis.queries) > axis.keys - 1:
            return None
        offsets.append(along)
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
    return shift_convolution(shifts.offsets, shifts.window, axes, geometry)(x, maps, groups, bias)


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
