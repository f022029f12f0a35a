"""The first centres of heads: drawn, given, or the taps of a kernel."""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.errors import ArgumentError, ShapeError, must_be


def starting_centres(
    num_heads: int, dims: int, centres: Sequence[Sequence[float]] | Float[Tensor, "heads dims"] | None
) -> Float[Tensor, "heads dims"]:
    """Copies the given centres Δ (heads, dims) after checking them, or draws them from N(0, 2²)."""
    if centres is None:
        return torch.randn(num_heads, dims) * 2
    try:
        start = torch.as_tensor(centres, dtype=torch.get_default_dtype()).detach().clone()
    except (TypeError, ValueError):
        raise ShapeError(must_be("centres", f"of shape {(num_heads, dims)}", centres)) from None
    if start.shape != (num_heads, dims):
        raise ShapeError(must_be("centres", f"of shape {(num_heads, dims)}", tuple(start.shape)))
    if not start.is_meta and not torch.isfinite(start).all():
        raise ArgumentError(must_be("centres", "finite", start.tolist()))
    return start


def grid_centres(num_heads: int) -> list[list[float]]:
    """Lists the K × K shifts (row, column) around the query for K² heads, K odd: the taps of a kernel, row by row."""
    taps = kernel_taps(num_heads, 2)
    if taps is None:
        raise ArgumentError(must_be("heads", "the square of an odd number for centres on a grid", num_heads))
    return [[float(row), float(col)] for row, col in taps]


def kernel_taps(num_heads: int, dims: int) -> list[tuple[int, ...]] | None:
    """Lists the displacements of a kernel's taps, row by row; None if no odd kernel has as many taps as heads."""
    side = round(max(num_heads, 0) ** (1 / dims))
    if side**dims != num_heads or side % 2 == 0:
        return None
    return list(product(range(-(side // 2), side // 2 + 1), repeat=dims))
