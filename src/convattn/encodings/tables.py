"""Tables of displacements: interpolation, and errors beyond their extent."""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.encodings.encoding import Encoding
from convattn.errors import EncodingRangeError
from convattn.grid import PerAxis, axis_lists

_COMMON = {1: 520, 2: 40, 3: 20}
_SMALL = 8
"""Extents by the number of axes: common sizes 512, 32 and 16 with some padding; fewer than 10^5 displacements."""


def read_table(
    table: Float[Tensor, "*axes width"], displacement: Float[Tensor, "*points dims"]
) -> Float[Tensor, "*points width"]:
    """Interpolates a table of displacements multilinearly; integer displacements give the entries themselves."""
    # The table holds −(E − 1), …, E − 1 along each axis.
    sizes = torch.tensor(table.shape[:-1], device=displacement.device)
    below = displacement.floor()
    part = displacement - below
    lower = below.long() + (sizes - 1) // 2
    upper = (lower + 1).minimum(sizes - 1)
    result = torch.zeros((), dtype=displacement.dtype, device=displacement.device)
    for corner in product((False, True), repeat=len(sizes)):
        weights = [part[..., a] if high else 1 - part[..., a] for a, high in enumerate(corner)]
        entries = table[tuple((upper if high else lower)[..., a] for a, high in enumerate(corner))]
        result = result + torch.stack(weights).prod(0)[..., None] * entries.to(displacement.dtype)
    return result


def chosen_extent(extent: PerAxis | None, dims: int) -> tuple[int, ...]:
    """Returns a table's extent per axis; None gives one that holds common sizes."""
    return axis_lists("extent", _COMMON.get(dims, _SMALL) if extent is None else extent, dims, least=1)


def require_extent(
    encoding: Encoding, extents: Sequence[int], lowest: Sequence[float], highest: Sequence[float]
) -> None:
    """Raises EncodingRangeError if a table of these extents does not hold a box of displacements."""
    needed = [max(-low, high) for low, high in zip(lowest, highest, strict=True)]
    for axis, extent in enumerate(extents):
        if needed[axis] > extent - 1:
            kind, fitting = type(encoding).__name__, -int(-max(needed) // 1) + 1
            raise EncodingRangeError(
                f"{kind} holds displacements from {1 - extent} to {extent - 1} along axis {axis}, but {lowest[axis]:g}"
                f" to {highest[axis]:g} are asked: build it with extent={fitting} or more, as in"
                f" encoding={kind}({encoding.num_heads}, {encoding.dims}, extent={fitting})"
            )
