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
from convattn.analysis.measure.likelihood import fit_logs
from convattn.analysis.measure.pairs import Pairs
from convattn.analysis.measure.sums import HeadSums, images_in_cache, tiles
from convattn.records.head_report import Estimate

_FLAT = 1e-14
"""Squared distance to looking everywhere alike, as a share of the squared attention of a query, that is rounding."""


class KernelFit:
    """Weights by displacement of every head of a layer, fitted to sums over images and scored on others."""

    def __init__(self) -> None:
        """Starts without images."""
        self.state: dict[str, Tensor] = {}

    def score(self, call: AttentionCall, pairs: Pairs, fitted: HeadSums) -> None:
        """Adds images to score; `fitted` are the sums over the images to fit to, used for the first batch only."""
        if "logs" not in self.state:
            everything = fitted.map(lambda part: part.sum(dim=0))
            mass = everything.by_displacement.sum(dim=1) / (everything.images * pairs.queries)
            logs, settled = fit_logs(everything, pairs)
            self.state = {"logs": logs, "settled": settled, "mass": mass}
        alike = shared_out(torch.zeros_like(pairs.counts), pairs)
        errors, totals = [], []
        for chosen, tile in tiles(call, pairs):
            by_position = [shared_out(logs, pairs) for logs in self.state["logs"][chosen]]
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
        if "logs" not in self.state:
            return ()
        return tuple((self.state["mass"][head] * self.state["logs"][head, inside].exp()).tolist())

    @property
    def unsettled(self) -> int:
        """Number of heads whose weights are not yet those of maximum likelihood."""
        return int((~self.state["settled"]).sum()) if "settled" in self.state else 0


def shared_out(logs: Float64[Tensor, " displacements"], pairs: Pairs) -> Float64[Tensor, "groups rows cols"]:
    """Returns weights of every pair by displacement, given as logarithms, such that those of a query sum to 1."""
    scores = torch.cat([logs, logs.new_full((1,), -torch.inf)])[pairs.bins]
    return scores.softmax(dim=2).masked_fill((scores == -torch.inf).all(dim=2, keepdim=True), 0.0)


def uniform_distance(pairs: Pairs) -> float:
    """Returns the mean attention distance of a head that looks everywhere alike."""
    alike = shared_out(torch.zeros_like(pairs.counts), pairs)
    lengths = torch.cat([pairs.lengths, pairs.lengths.new_zeros(1)])
    return float((alike * lengths[pairs.bins]).sum() / pairs.queries)
