"""Reading tables at real displacements, and saying so where they end."""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.errors import EncodingRangeError

__all__ = ["read_table", "require_extent"]


def read_table(
    table: Float[Tensor, "*axes width"], displacement: Float[Tensor, "*points dims"]
) -> Float[Tensor, "*points width"]:
    """Reads a table of displacements by multilinear interpolation; at integers it returns the entries themselves.

    Args:
        table: Entries for the displacements −(E − 1), …, E − 1 along each axis.
        displacement: Displacements within that range, in pixels.

    Returns:
        One entry per displacement.
    """
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


def require_extent(kind: str, extents: Sequence[int], axis: int, lowest: float, highest: float) -> None:
    """Checks that a table holds a span of displacements.

    Args:
        kind: Name of the encoding, for the error.
        extents: E per axis; the table holds −(E − 1), …, E − 1.
        axis: The axis asked for.
        lowest: Smallest displacement asked for.
        highest: Largest displacement asked for.

    Raises:
        EncodingRangeError: It does not.
    """
    reach, needed = extents[axis] - 1, max(-lowest, highest)
    if needed > reach:
        raise EncodingRangeError(
            f"{kind} holds displacements from {-reach} to {reach} along axis {axis}, but {lowest:g} to {highest:g} are"
            f" asked: build it with extent={-int(-needed // 1) + 1} or more"
        )
