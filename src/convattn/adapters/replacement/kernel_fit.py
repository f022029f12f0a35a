"""The kernel whose softmax over existing positions has the mean weights that a report states."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

_STEPS = 300
_LEAST = -80.0
"""Least score: weights below e^−80 of the largest never count, and float32 holds no smaller ones."""


_SETTLED = 1e-8
"""Weight, summed over queries, from which on a tap need not become smaller: of a hard head it would never end."""


def fit_kernels(
    mean: Float64[Tensor, "heads displacements"],
    displacements: Int64[Tensor, "displacements axes"],
    grid: Sequence[int],
) -> Float64[Tensor, "heads displacements"]:
    """Fits K with A[q, q+δ] = K(δ) / Σ K(δ') over δ' with q + δ' on the grid, by maximum likelihood; K sums to 1.

    The mean weight of a displacement is not K: near a border the weights of what lies beyond go to what is left, and so
    into the means. A head that looks one patch to the right looks at its own patch in the last column; its mean weight
    there is 1/columns, and taken as a kernel would be added everywhere.

    The score s = log K climbs the likelihood, which is concave: gradient Σ_q (A − p), p = K(δ)/Z(q), divided by
    2 Σ_q p (1 − p), a bound on the curvature, in steps of at most 1.
    """
    exists = _exists(displacements, grid)
    count = exists.sum(0)
    seen = mean * count
    seen = seen * (exists.shape[0] / seen.sum(1, keepdim=True))
    score = (mean / mean.amax(1, keepdim=True)).log().clamp_min(_LEAST)
    for _ in range(_STEPS):
        kernel = score.exp()
        inverse = 1 / (kernel @ exists.mT)
        shares = kernel * (inverse @ exists)
        curvature = 2 * (shares - kernel**2 * (inverse**2 @ exists)).clamp_min(0)
        score = score + ((seen - shares) / (curvature + _SETTLED)).clamp(-1, 1)
        score = (score - score.amax(1, keepdim=True)).clamp_min(_LEAST)
    return score.softmax(1)


def _exists(displacements: Int64[Tensor, "displacements axes"], grid: Sequence[int]) -> Float64[Tensor, "queries _"]:
    """Returns 1 where a query has a position at a displacement."""
    sizes = torch.tensor(list(grid))
    queries = torch.cartesian_prod(*(torch.arange(size) for size in grid)).view(-1, len(sizes))
    keys = queries[:, None] + displacements
    return ((keys >= 0) & (keys < sizes)).all(-1).double()
