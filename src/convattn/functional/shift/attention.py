"""Finding hard heads from scores, and attention with them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from convattn.functional.shift.convolution import shift_convolution
from convattn.grid import Axis, Geometry


class Shifts(NamedTuple):
    """Where hard heads look."""

    # Displacement of each head. Where it leads out of the image, the head looks at the nearest key.
    offsets: tuple[tuple[int, ...], ...]
    leak: float  # largest share of attention, over heads and queries, that is not at that key

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


def find_shifts(tables: Sequence[Float[Tensor, "heads _"]], axes: Sequence[Axis], most: float) -> Shifts | None:
    """Finds out from scores alone whether all heads are hard, and where they look, in O(displacements).

    A head looks at the displacement Δ of its highest score if that leads to a key. If Δ leads out of the image, it must
    look at the nearest key, which has the highest or the lowest displacement that the query sees; exp s there, compared
    with its sum over all displacements on the other side, bounds the leak.

    Args:
        tables: Scores of all displacements along each axis, from the lowest to the highest.
        axes: Queries and keys along each axis.
        most: Largest leak at which a head counts as hard.

    Returns:
        The shifts, with a bound on the leak of every query; None if that is larger than `most`.

    Example:
        >>> shifts = find_shifts([torch.tensor([[-1e3, -1e3, 0.0, -1e3]])], [Axis(range(2), 3)], most=0.0)
        >>> shifts.offsets, shifts.leak
        (((1,),), 0.0)
    """
    offsets, leak = [], torch.zeros(())
    for table, axis in zip(tables, axes, strict=True):
        scores = table.detach()
        at = scores.argmax(-1, keepdim=True)
        inside = torch.softmax(scores, -1).scatter(-1, at, 0.0).sum(-1).amax().cpu()
        if not leak + inside <= most:
            return None
        along = at + axis.lowest
        last, first = _leak_at_end(scores, along, axis), _leak_at_end(scores.flip(-1), -along, axis.mirrored)
        leak = leak + torch.stack([inside.double(), last.double(), first.double()]).amax()
        if not leak <= most:
            return None
        offsets.append(along[:, 0].tolist())
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


def _leak_at_end(
    scores: Float[Tensor, "heads displacements"], offsets: Int[Tensor, "heads 1"], axis: Axis
) -> Float[Tensor, ""]:
    """Bounds the leak of queries whose displacement leads out after the last key, which they should look at."""
    first, stop = axis.keys - 1, int(offsets.max()) - axis.lowest  # displacements to the last key are at first:stop
    if first >= stop:
        return torch.zeros(())
    nearest, lower = scores[:, first:stop], scores[:, :first]
    if first:  # all that lies below, as its largest score divided by the softmax there: quicker than its logarithm
        below = lower.amax(-1, keepdim=True) - torch.softmax(lower, -1).amax(-1, keepdim=True).log()
        lower = torch.cat([below, nearest], -1).logcumsumexp(-1)[:, :-1]
    else:
        lower = functional.pad(nearest.logcumsumexp(-1)[:, :-1], (1, 0), value=-math.inf)
    displacements = axis.displacements(scores.device)[first:stop]
    leads_out = (displacements < offsets)[:, :: axis.queries.step]
    return (lower - nearest).exp()[:, :: axis.queries.step].masked_fill(~leads_out, 0.0).amax().cpu()
