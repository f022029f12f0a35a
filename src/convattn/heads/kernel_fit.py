"""How well weights by displacement describe a head."""

from math import exp, nan

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from convattn.heads.head_sums import HeadSums, Pairs, attention_on_grid, sum_squares
from convattn.heads.jackknife import Estimate, explained
from convattn.heads.layout import AttentionCall

_SETTLED = 1e-5
"""Largest error of a displacement's attention, as a share of the largest one's, of a fit that has settled."""

_ROUNDS = 100
"""Rounds of the fit of all heads."""

_LEAST = 1e-8
"""What is added to a curvature."""

_FLAT = 1e-14
"""Squared distance to uniform attention that rounding explains, as a share of a query's squared attention."""


class KernelFit:
    """Weights by displacement of every head of a layer, fitted to sums over images and scored on others.

    Attributes:
        logs: ln w(δ) of every head; None before the first images to score.
        settled: Which heads have the weights of maximum likelihood.
        mass: Mean attention of a query on positions.
        errors: Squared errors of these weights, for each batch of images scored.
        totals: Those of uniform attention.
    """

    def __init__(self) -> None:
        """Starts without images."""
        self.logs: Float64[Tensor, "heads displacements"] | None = None
        self.settled = torch.ones(0, dtype=torch.bool)
        self.mass: Float64[Tensor, " heads"] = torch.zeros(0)
        self.errors: list[Float64[Tensor, "heads images"]] = []
        self.totals: list[Float64[Tensor, "heads images"]] = []

    def score(self, call: AttentionCall, pairs: Pairs, fitted: HeadSums) -> None:
        """Adds images to score; `fitted` are the sums over the images to fit to, used for the first batch only."""
        if self.logs is None:
            total = fitted.map(lambda part: part.sum(dim=0))
            self.mass = total.by_displacement.sum(dim=1) / (total.images * pairs.queries)
            self.logs, self.settled = fit_logs(total, pairs)
        uniform = uniform_attention(pairs)
        errors = []
        totals = []
        for head, logs in enumerate(self.logs):
            attention = attention_on_grid(call, pairs, head)
            by_displacement = self.mass[head] * shared_out(logs, pairs)
            by_displacement = by_displacement.to(attention.dtype)
            everywhere_alike = (self.mass[head] * uniform).to(attention.dtype)
            errors.append(sum_squares(attention - by_displacement))
            totals.append(sum_squares(attention - everywhere_alike))
        self.errors.append(torch.stack(errors))
        self.totals.append(torch.stack(totals))

    def estimate(self, head: int, groups: int) -> Estimate:
        """Returns R² of a head on the images scored.

        It is 0 for weights that describe the head no better than uniform attention.
        """
        if self.logs is None:
            return Estimate(nan, nan)
        errors = [part[head] for part in self.errors]
        totals = [part[head] for part in self.totals]
        return explained(errors, totals, groups, least=_FLAT * float(self.mass[head]) ** 2)

    def kernel(self, head: int, inside: Int64[Tensor, " kernel"]) -> tuple[float, ...]:
        """Returns the weights of a head at some displacements; over all of them they sum to its mean attention."""
        if self.logs is None:
            return ()
        weights = self.logs[head, inside].exp()
        return tuple((self.mass[head] * weights).tolist())

    @property
    def unsettled(self) -> int:
        """Number of heads whose weights are not yet those of maximum likelihood."""
        return int((~self.settled).sum())


def shared_out(
    logs: Float64[Tensor, " displacements"], pairs: Pairs
) -> Float64[Tensor, "groups rows cols"]:
    """Returns weights of every pair by displacement, given as logarithms, such that those of a query sum to 1."""
    without_pair = logs.new_full((1,), -torch.inf)
    scores = torch.cat([logs, without_pair])[pairs.bins]
    nothing = (scores == -torch.inf).all(dim=2, keepdim=True)
    return scores.softmax(dim=2).masked_fill(nothing, 0.0)


def uniform_attention(pairs: Pairs) -> Float64[Tensor, "groups rows cols"]:
    """Returns weights that are the same for all keys of a query."""
    return shared_out(torch.zeros_like(pairs.counts), pairs)


def everywhere_alike(pairs: Pairs) -> tuple[float, float]:
    """Returns of a head that looks everywhere alike the mean attention distance, in cells, and exp(mean entropy)."""
    weights = uniform_attention(pairs)
    lengths = torch.cat([pairs.lengths, pairs.lengths.new_zeros(1)])
    distances = weights * lengths[pairs.bins]
    entropies = -torch.xlogy(weights, weights)
    return float(distances.sum() / pairs.queries), exp(entropies.sum() / pairs.queries)


def fit_logs(
    sums: HeadSums, pairs: Pairs
) -> tuple[Float64[Tensor, "heads displacements"], Bool[Tensor, " heads"]]:
    """Fits ln w(δ), Σ w = 1, by maximum likelihood: each displacement gets the attention that was measured at it.

    Also returns which heads have settled: nearly all but those that look beyond the border. The gradient of the
    log-likelihood in ln w is what was measured less what w gives; its curvature is taken to be twice the diagonal,
    which keeps steps safe. Sharing out in proportion would take n rounds to bring a weight that should be 0 down to
    1/n.
    """
    measured = sums.by_displacement.clamp_min(0)
    measured = measured / measured.sum(dim=1, keepdim=True) * pairs.queries
    largest = measured.amax(dim=1)
    keys = _keys_by_displacement(pairs)
    weights = measured / pairs.counts
    rounds = 0
    while True:
        inverse = (weights @ keys.mT).reciprocal().nan_to_num(posinf=0.0)
        fitted = weights * (inverse @ keys)
        error = (measured - fitted).abs().amax(dim=1)
        settled = ~(error > _SETTLED * largest)  # a head of nan counts as settled
        if rounds == _ROUNDS or bool(settled.all()):
            return weights.log().log_softmax(dim=1), settled
        curvature = fitted - weights.square() * (inverse.square() @ keys)
        step = (measured - fitted) / (2 * curvature.clamp_min(0) + _LEAST)
        weights = weights * step.clamp(-1, 1).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
        rounds += 1


def _keys_by_displacement(pairs: Pairs) -> Float64[Tensor, "queries displacements"]:
    """Returns how many keys each query has at each displacement."""
    bins = pairs.bins.flatten(0, 1)
    size = len(pairs.counts)
    counts = torch.zeros(len(bins), size + 1, dtype=torch.float64, device=bins.device)
    ones = torch.ones_like(bins, dtype=torch.float64)
    counts.scatter_add_(1, bins, ones)
    return counts[:, :size]
