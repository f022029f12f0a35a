"""How well weights by displacement alone, shared out at borders as softmax does, describe a head on images held out.

A head without content has weights A[q, q + δ] = w(δ) / Σ w over the displacements that stay on the grid: a convolution,
normalised at the border. Near the border its weights are larger than w, so that their mean over all positions
(`shift_invariance`) does not describe it exactly. Here w is the maximum-likelihood estimate: with it, every
displacement has the attention that was measured.
"""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from convattn.adapters.attention import AttentionCall
from convattn.analysis.measure.jackknife import jackknife
from convattn.analysis.measure.pairs import Pairs
from convattn.analysis.measure.sums import HeadSums, images_in_cache, tiles
from convattn.records.head_report import Estimate

_ROUNDS, _SETTLED, _LEAST = 100, 1e-5, 1e-8
_FLAT = 1e-14
"""Squared distance to looking everywhere alike, as a share of the squared attention of a query, that is rounding."""


class KernelFit:
    """Weights by displacement of every head of a layer, fitted to sums over images and scored on others."""

    def __init__(self) -> None:
        """Starts without images."""
        self.state: dict[str, Tensor] = {}

    def score(self, call: AttentionCall, pairs: Pairs, fitted: HeadSums) -> None:
        """Adds images to score; `fitted` are the sums over the images to fit to, used for the first batch only."""
        if "weights" not in self.state:
            everything = fitted.map(lambda part: part.sum(dim=0))
            mass = everything.by_displacement.sum(dim=1) / (everything.images * pairs.queries)
            self.state = {"weights": fit_weights(everything, pairs), "mass": mass}
        alike = shared_out(torch.ones_like(pairs.counts), pairs)
        errors, totals = [], []
        for chosen, tile in tiles(call, pairs):
            by_position = [shared_out(weights, pairs) for weights in self.state["weights"][chosen]]
            mass = self.state["mass"][chosen, None, None]
            for model, found in ((torch.stack(by_position, dim=1), errors), (alike[:, None], totals)):
                expected = (mass * model).to(tile.dtype)
                apart = [(part - expected).square_().sum(dim=4) for part in tile.split(images_in_cache(tile))]
                found.append(torch.cat(apart).double().sum(dim=(1, 3)).mT)
        for name, found in {"errors": torch.cat(errors), "totals": torch.cat(totals)}.items():
            self.state[name] = torch.cat([self.state[name], found], dim=1) if name in self.state else found

    def estimate(self, head: int, groups: int) -> Estimate:
        """Returns R² of a head on the images scored, with the standard error of a jackknife over groups of them.

        It is 0 for weights that describe the head no better than looking everywhere alike.
        """
        nan = float("nan")
        if "errors" not in self.state:
            return Estimate(nan, nan)
        errors, totals = self.state["errors"][head], self.state["totals"][head]
        if not float(totals.sum()) > _FLAT * float(self.state["mass"][head]) ** 2 * len(totals):
            return Estimate(nan, nan)
        parts = torch.arange(len(errors)) * min(groups, len(errors)) // len(errors)
        keep = [parts != part for part in parts.unique()] if len(errors) > 1 else []
        others = [float(1 - errors[kept].sum() / totals[kept].sum()) for kept in keep]
        return Estimate(float(1 - errors.sum() / totals.sum()), jackknife(others))

    def kernel(self, head: int, inside: Int64[Tensor, " kernel"]) -> tuple[float, ...]:
        """Returns the weights of a head at some displacements; over all of them they sum to its mean attention."""
        if "weights" not in self.state:
            return ()
        return tuple((self.state["mass"][head] * self.state["weights"][head, inside]).tolist())


def fit_weights(sums: HeadSums, pairs: Pairs) -> Float64[Tensor, "heads displacements"]:
    """Finds w(δ) ≥ 0 with sum 1 such that, shared out, every displacement gets the attention that was measured.

    The gradient of the log-likelihood in ln w is what was measured less what w gives; its curvature is taken to be
    twice the diagonal, which keeps steps safe. Sharing out in proportion would take n rounds to bring a weight that
    should be 0 down to 1/n.
    """
    measured = sums.by_displacement.clamp_min(0)
    wanted = measured / measured.sum(dim=1, keepdim=True) * pairs.queries
    weights = wanted / pairs.counts
    there = _keys_by_displacement(pairs)
    for _ in range(_ROUNDS):
        inverse = (weights @ there.mT).reciprocal().nan_to_num(posinf=0.0)
        given = weights * (inverse @ there)
        if bool(((wanted - given).abs().amax(dim=1) <= _SETTLED * wanted.amax(dim=1)).all()):
            break
        curvature = given - weights.square() * (inverse.square() @ there)
        step = (wanted - given) / (2 * curvature.clamp_min(0) + _LEAST)
        weights = weights * step.clamp(-1, 1).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights / weights.sum(dim=1, keepdim=True)


def _keys_by_displacement(pairs: Pairs) -> Float64[Tensor, "queries displacements"]:
    """Returns how many keys each query has at each displacement."""
    bins, size = pairs.bins.flatten(0, 1), len(pairs.counts)
    found = torch.zeros(len(bins), size + 1, dtype=torch.float64, device=bins.device)
    return found.scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float64))[:, :size]


def shared_out(weights: Float64[Tensor, " displacements"], pairs: Pairs) -> Float64[Tensor, "groups rows cols"]:
    """Returns weights of every pair by displacement, such that those of a query sum to 1."""
    shares = _row_sums(weights, pairs).reciprocal().nan_to_num(posinf=0.0)
    return _extended(weights)[pairs.bins] * shares[..., None]


def uniform_distance(pairs: Pairs) -> float:
    """Returns the mean attention distance of a head that looks everywhere alike."""
    alike = shared_out(torch.ones_like(pairs.counts), pairs)
    lengths = torch.cat([pairs.lengths, pairs.lengths.new_zeros(1)])
    return float((alike * lengths[pairs.bins]).sum() / pairs.queries)


def _row_sums(weights: Float64[Tensor, " displacements"], pairs: Pairs) -> Float64[Tensor, "groups rows"]:
    return _extended(weights)[pairs.bins].sum(dim=2)


def _extended(weights: Float64[Tensor, " displacements"]) -> Float64[Tensor, " bins"]:
    """Adds a weight of 0 for pairs that do not count."""
    return torch.cat([weights, weights.new_zeros(1)])
