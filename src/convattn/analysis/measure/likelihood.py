"""Weights by displacement of maximum likelihood: shared out, they give every displacement the attention measured.

Weights are kept as logarithms: between a head that looks beyond the border and its nearest position there are more
powers of ten than a float64 has.
"""

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from convattn.analysis.measure.pairs import Pairs
from convattn.analysis.measure.sums import HeadSums

_ROUNDS, _SETTLED, _LEAST = 100, 1e-5, 1e-8
_STEPS, _ROUNDING, _LARGEST = 100, 1e-13, 2048
"""Newton steps of one head; rounding of its likelihood; number of queries or displacements whose steps take minutes."""


def fit_logs(sums: HeadSums, pairs: Pairs) -> tuple[Float64[Tensor, "heads displacements"], Bool[Tensor, " heads"]]:
    """Finds ln w(δ), Σ w = 1, such that, shared out, every displacement gets the attention that was measured.

    Also says which heads do not get there. Nearly all do in rounds, which take all heads at once; a head that looks
    beyond the border takes Newton's method.
    """
    measured = sums.by_displacement.clamp_min(0)
    wanted = measured / measured.sum(dim=1, keepdim=True) * pairs.queries
    there = _keys_by_displacement(pairs)
    weights, settled = _in_rounds(wanted, there, pairs)
    logs = weights.log()
    for head in (~settled).nonzero()[:, 0].tolist():
        known = wanted[head] > 0
        seen = there[:, known]
        seen = seen[(seen > 0).any(dim=1)]
        if min(seen.shape) > _LARGEST:
            continue
        start = (wanted[head] / pairs.counts)[known].log()
        found, settled[head] = _by_newton(wanted[head, known], seen.log(), start)
        logs[head] = -torch.inf
        logs[head, known] = found
    return logs.log_softmax(dim=1), settled


def _in_rounds(
    wanted: Float64[Tensor, "heads displacements"], there: Float64[Tensor, "queries displacements"], pairs: Pairs
) -> tuple[Float64[Tensor, "heads displacements"], Bool[Tensor, " heads"]]:
    """Returns weights, and which heads have settled.

    The gradient of the log-likelihood in ln w is what was measured less what w gives; its curvature is taken to be
    twice the diagonal, which keeps steps safe. Sharing out in proportion would take n rounds to bring a weight that
    should be 0 down to 1/n.
    """
    weights = wanted / pairs.counts
    rounds = 0
    while True:
        inverse = (weights @ there.mT).reciprocal().nan_to_num(posinf=0.0)
        given = weights * (inverse @ there)
        settled = _settled(wanted, given)
        if rounds == _ROUNDS or bool(settled.all()):
            return weights, settled
        curvature = given - weights.square() * (inverse.square() @ there)
        step = (wanted - given) / (2 * curvature.clamp_min(0) + _LEAST)
        weights = weights * step.clamp(-1, 1).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
        rounds += 1


def _by_newton(
    wanted: Float64[Tensor, " displacements"],
    there: Float64[Tensor, "queries displacements"],
    logs: Float64[Tensor, " displacements"],
) -> tuple[Float64[Tensor, " displacements"], bool]:
    """Returns ln w of one head and whether it has settled, by damped Newton steps; `there` are logarithms as well.

    With P[q, δ] the share of query q that w gives to δ, the curvature is diag(Σ_q P) − PᵀP.
    """

    def at(logs: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.logsumexp(there + logs, dim=1, keepdim=True)
        return total.sum() - (wanted * logs).sum(), (there + logs - total).exp()

    damping = 1.0
    loss, shares = at(logs)
    for _ in range(_STEPS):
        given = shares.sum(dim=0)
        if bool(_settled(wanted, given)):
            return logs, True
        step = _solve((1 + damping) * given + _LEAST, shares, wanted - given)
        new_loss, new_shares = at(logs + step)
        better = bool(new_loss - loss <= _ROUNDING * loss.abs())
        damping = max(damping / 4, _LEAST) if better else 4 * damping
        if better:
            logs, loss, shares = logs + step, new_loss, new_shares
    return logs, bool(_settled(wanted, shares.sum(dim=0)))


def _solve(
    diagonal: Float64[Tensor, " displacements"],
    shares: Float64[Tensor, "queries displacements"],
    gap: Float64[Tensor, " displacements"],
) -> Float64[Tensor, " displacements"]:
    """Solves (diag − PᵀP) x = gap, by whichever of PᵀP and P diag⁻¹ Pᵀ is smaller."""
    queries, displacements = shares.shape
    if displacements < queries:
        return torch.linalg.solve(diagonal.diag() - shares.mT @ shares, gap)
    scaled = shares / diagonal
    inner = torch.eye(queries, dtype=shares.dtype, device=shares.device) - scaled @ shares.mT
    return gap / diagonal + scaled.mT @ torch.linalg.solve(inner, scaled @ gap)


def _settled(wanted: Float64[Tensor, "*heads displacements"], given: Float64[Tensor, "*heads displacements"]) -> Tensor:
    """Says which heads get what was measured; those of which nothing is known (nan) are settled."""
    return ~((wanted - given).abs().amax(dim=-1) > _SETTLED * wanted.amax(dim=-1))


def _keys_by_displacement(pairs: Pairs) -> Float64[Tensor, "queries displacements"]:
    """Returns how many keys each query has at each displacement."""
    bins, size = pairs.bins.flatten(0, 1), len(pairs.counts)
    found = torch.zeros(len(bins), size + 1, dtype=torch.float64, device=bins.device)
    return found.scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float64))[:, :size]
