"""How well weights by displacement describe a head."""

from math import nan

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from convattn.heads.head_sums import HeadSums, Pairs, attention_on_grid, sum_squares
from convattn.heads.jackknife import Estimate, explained

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
        unsettled: Number of heads whose weights are not yet those of maximum likelihood.
        mass: Mean attention of a query on positions.
        squares: Squared errors of these weights, and of uniform attention, for each image of each batch scored.
    """

    def __init__(self) -> None:
        """Starts without images."""
        self.logs: Float64[Tensor, "heads displacements"] | None = None
        self.unsettled = 0
        self.mass: Float64[Tensor, " heads"] = torch.zeros(0)
        self.squares: list[Float64[Tensor, "heads 2 images"]] = []

    def score(
        self,
        weights: Float[Tensor, "images groups heads queries keys"],
        pairs: Pairs,
        fitted: HeadSums,
    ) -> None:
        """Adds images to score; `fitted` are the sums over the images to fit to, used for the first batch only."""
        if self.logs is None:
            total = fitted.total()
            self.mass = total.by_displacement.sum(dim=1) / (total.images * pairs.queries)
            self.logs, settled = fit_logs(total, pairs)
            self.unsettled = int((~settled).sum())
        squares = []
        for head, logs in enumerate(self.logs):
            attention = attention_on_grid(weights, pairs, head)
            for shares in (pairs.shared_out(logs), pairs.uniform):
                expected = (self.mass[head] * shares).to(attention.dtype)
                squares.append(sum_squares(attention - expected))
        self.squares.append(torch.stack(squares).unflatten(0, (-1, 2)))

    def estimate(self, head: int) -> Estimate:
        """Returns R² of a head on the images scored.

        It is 0 for weights that describe the head no better than uniform attention.
        """
        if self.logs is None:
            return Estimate(nan, nan)
        least = _FLAT * float(self.mass[head]) ** 2
        squares = torch.cat(self.squares, dim=2)
        return explained(squares[head], least=least)

    def kernel(self, head: int, inside: Int64[Tensor, " kernel"]) -> tuple[float, ...]:
        """Returns the weights of a head at some displacements; over all of them they sum to its mean attention."""
        if self.logs is None:
            return ()
        weights = self.logs[head, inside].exp()
        return tuple((self.mass[head] * weights).tolist())


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
    bins = pairs.bins.flatten(0, 1)
    none = pairs.counts.new_zeros(len(bins), len(pairs.counts) + 1)
    keys = none.scatter_add(1, bins, torch.ones_like(bins).double())[:, :-1]  # Of each query
    weights = measured / pairs.counts
    rounds = 0
    while True:
        inverse = (weights @ keys.mT).reciprocal().nan_to_num(posinf=0.0)
        fitted = weights * (inverse @ keys)
        error = (measured - fitted).abs().amax(dim=1)
        settled = ~(error > _SETTLED * largest)  # a head of nan counts as settled
        if rounds == _ROUNDS or settled.all():
            return weights.log().log_softmax(dim=1), settled
        curvature = fitted - weights.square() * (inverse.square() @ keys)
        step = (measured - fitted) / (2 * curvature.clamp_min(0) + _LEAST)
        weights = weights * step.clamp(-1, 1).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
        rounds += 1
