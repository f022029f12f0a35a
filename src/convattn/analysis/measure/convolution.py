"""How much of a layer's output the best convolution of its input explains, on images that it was not fitted to."""

from itertools import product
from math import prod

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from convattn.analysis.measure.jackknife import jackknife
from convattn.records.head_report import Estimate

FEATURES = 288
"""Most inputs of a window, taps × components; more would cost as much as the network itself."""

_ROUNDS = 8
"""Rounds of orthogonal iteration: enough for directions that are twice as strong as those left out."""

_RIDGES = 10.0 ** torch.arange(-9, 1)


class ConvolutionFit:
    """A least-squares convolution, fitted to one batch after another and then scored on others.

    The input, padded with zeros, is reduced to its first principal components on the first batch if channels × taps
    are more than `FEATURES`. That can only hide what a convolution explains, so that the score is a lower bound. A
    ridge, chosen by generalised cross-validation on the images of the fit, keeps few images from being learned by
    heart.
    """

    def __init__(self, grid: tuple[int, ...], kernel_size: int) -> None:
        """Starts without images."""
        self.grid, self.kernel_size = grid, kernel_size
        self.state: dict[str, Tensor] = {}

    @property
    def components(self) -> int:
        """Principal components of the input that are seen; 0 before the first batch."""
        return self.state["basis"].shape[1] if "basis" in self.state else 0

    @property
    def images(self) -> tuple[int, int]:
        """Images fitted to, and images scored."""
        scored = len(self.state["errors"]) if "errors" in self.state else 0
        return (int(self.state["images"]) if "images" in self.state else 0), scored

    def fit(self, x: Float[Tensor, "images positions channels"], y: Float[Tensor, "images positions outputs"]) -> None:
        """Adds images to fit to."""
        if "basis" not in self.state:
            self.state = {"basis": _principal(x, max(1, FEATURES // self.kernel_size ** len(self.grid)))}
        features, target = self._features(x), _rows(y)
        added = {
            "gram": (features.mT @ features).double(),
            "cross": (features.mT @ target).double(),
            "feature_sum": features.sum(dim=0).double(),
            "target_sum": target.sum(dim=0).double(),
            "target_squares": _squares(target).sum(),
            "rows": torch.tensor(float(len(target)), dtype=torch.float64),
            "images": torch.tensor(len(x)),
        }
        for name, value in added.items():
            self.state[name] = self.state[name] + value if name in self.state else value

    def score(
        self, x: Float[Tensor, "images positions channels"], y: Float[Tensor, "images positions outputs"]
    ) -> None:
        """Adds images to score; from the first of them on, the fit is done."""
        if "weights" not in self.state:
            self._solve()
        target, features = _rows(y), self._features(x)
        weights, bias, mean = (self.state[name].to(target) for name in ("weights", "bias", "target_mean"))
        missed = target - torch.addmm(bias, features, weights)
        errors = _squares(missed).view(len(x), -1).sum(dim=1)
        totals = _squares(target - mean).view(len(x), -1).sum(dim=1)
        for name, value in {"errors": errors, "totals": totals}.items():
            self.state[name] = torch.cat([self.state[name], value]) if name in self.state else value

    def estimate(self, groups: int) -> Estimate:
        """Returns R² on the images scored, with the standard error of a jackknife over groups of them."""
        if "errors" not in self.state or not float(self.state["totals"].sum()) > 0:
            return Estimate(float("nan"), float("nan"))
        errors, totals = self.state["errors"], self.state["totals"]
        parts = torch.arange(len(errors)) * min(groups, len(errors)) // len(errors)
        keep = [parts != part for part in parts.unique()] if len(errors) > 1 else []
        others = [float(1 - errors[kept].sum() / totals[kept].sum()) for kept in keep]
        return Estimate(float(1 - errors.sum() / totals.sum()), jackknife(others))

    def _features(self, x: Float[Tensor, "images positions channels"]) -> Float[Tensor, "rows features"]:
        """Returns the window of every position, one row each."""
        reduced = (x.to(self.state["basis"].dtype) @ self.state["basis"]).unflatten(1, self.grid)
        before = (self.kernel_size - 1) // 2
        padded = functional.pad(reduced, (0, 0, *(before, self.kernel_size - 1 - before) * len(self.grid)))
        taps = product(range(self.kernel_size), repeat=len(self.grid))
        cut = [padded[:, *(slice(at, at + size) for at, size in zip(tap, self.grid, strict=True))] for tap in taps]
        return torch.cat(cut, dim=-1).reshape(len(x) * prod(self.grid), -1)

    def _solve(self) -> None:
        """Computes the convolution from the sums."""
        state = self.state
        rows = state["rows"]
        feature_mean, target_mean = state["feature_sum"] / rows, state["target_sum"] / rows
        gram = state["gram"] - rows * feature_mean.outer(feature_mean)
        cross = state["cross"] - rows * feature_mean.outer(target_mean)
        squares = state["target_squares"] - rows * target_mean.square().sum()
        values, vectors = torch.linalg.eigh(gram)
        values, turned = values.clamp_min(0), vectors.mT @ cross
        power = turned.square().sum(dim=1)
        ridges = _RIDGES.double() * values.mean().clamp_min(torch.finfo(torch.float64).tiny)
        shrunk = 1 / (values[None] + ridges[:, None])
        error = squares - (power * (2 * shrunk - values * shrunk.square())).sum(dim=1)
        freedom = (values * shrunk).sum(dim=1)
        # A fit with as many degrees of freedom as rows explains anything, and is never chosen.
        criterion = torch.where(freedom < 0.9 * rows, error / (rows - freedom).square(), torch.inf)
        best = shrunk[criterion.argmin()]
        state["weights"] = vectors @ (best[:, None] * turned)
        state["bias"] = target_mean - feature_mean @ state["weights"]
        state["target_mean"] = target_mean


def _rows(values: Float[Tensor, "images positions channels"]) -> Float[Tensor, "rows channels"]:
    """Puts all positions of all images below one another, in at least float32."""
    return values.flatten(0, 1).to(torch.promote_types(values.dtype, torch.float32))


def _squares(rows: Float[Tensor, "rows channels"]) -> Float64[Tensor, " rows"]:
    """Returns the squared length of each row, added up in its own dtype."""
    return rows.square().sum(dim=1).double()


def _principal(x: Float[Tensor, "images positions channels"], count: int) -> Float[Tensor, "channels components"]:
    """Returns the directions in which the input is largest, or all channels if they are no more than `count`.

    They are found by orthogonal iteration, and span the largest ones nearly: a good basis is all that is needed.
    """
    rows = _rows(x)
    channels = rows.shape[1]
    if channels <= count:
        return torch.eye(channels, dtype=rows.dtype, device=rows.device)
    count = min(count, len(rows))  # beyond the rank of the first batch, rounding would choose the directions
    moment = rows.mT @ rows
    draw = torch.Generator().manual_seed(0)
    found = torch.randn(channels, count, generator=draw, dtype=torch.float64).to(rows)
    for _ in range(_ROUNDS):
        found = torch.linalg.qr(moment @ found).Q
    return found
