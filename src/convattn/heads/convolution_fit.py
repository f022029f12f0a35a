"""How much of a layer's output the best convolution of its input explains."""

from math import prod

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from convattn.heads.jackknife import Estimate, explained

FEATURES = 288
"""Most inputs of a window, taps × components; more would cost as much as the network itself."""

_ROUNDS = 8
"""Rounds of orthogonal iteration: enough for directions that are twice as strong as those left out."""

_RIDGES = 10.0 ** torch.arange(-9, 1)
_MOST_FREEDOM = 0.9
"""Degrees of freedom a row from which a fit explains anything, and is never chosen."""


class ConvolutionFit:
    """A least-squares convolution, fitted to one batch after another and then scored on others.

    The input, padded with zeros, is reduced to its first principal components on the first batch if channels × taps
    are more than `FEATURES`. That can only hide what a convolution explains, so that the score is a lower bound. A
    ridge, chosen by generalised cross-validation on the images of the fit, avoids overfitting to few images.
    """

    def __init__(self, grid: tuple[int, ...], kernel_size: int) -> None:
        """Starts without images."""
        self.grid = grid
        self.kernel_size = kernel_size
        # Of the convolution's errors, and of what the mean output misses
        self.squares: Float64[Tensor, "2 images"] = torch.zeros(2, 0, dtype=torch.float64)
        self.basis: Float[Tensor, "channels components"] | None = None  # Of the input, once fitted
        self._sums: dict[str, Tensor] = {}
        self._weights: tuple[Tensor, Tensor, Tensor] | None = None  # With bias and mean output

    def fit(
        self,
        x: Float[Tensor, "images positions channels"],
        y: Float[Tensor, "images positions outputs"],
    ) -> None:
        """Adds images to fit to."""
        if self.basis is None:
            taps = self.kernel_size ** len(self.grid)
            self.basis = _principal(_rows(x), max(1, FEATURES // taps))
        features = self._windows(x, self.basis)
        target = _rows(y)
        added = {
            "rows": torch.tensor(len(target)),
            "features": features.sum(dim=0),
            "targets": target.sum(dim=0),
            "gram": features.mT @ features,
            "cross": features.mT @ target,
            "squares": _squares(target).sum(),
        }
        for name, value in added.items():
            self._sums[name] = self._sums.get(name, 0) + value.double()

    def score(
        self,
        x: Float[Tensor, "images positions inputs"],
        y: Float[Tensor, "images positions outputs"],
    ) -> None:
        """Adds images to score; from the first of them on, the fit is done."""
        assert self.basis is not None
        if self._weights is None:
            self._weights = _ridge(self._sums)
        target = _rows(y)
        features = self._windows(x, self.basis)
        weights, bias, mean = (part.to(target) for part in self._weights)
        missed = target - torch.addmm(bias, features, weights)
        rows = torch.stack([_squares(missed), _squares(target - mean)])
        of_images = rows.view(2, len(x), -1).sum(dim=2)
        self.squares = torch.cat([self.squares, of_images], dim=1)

    def estimate(self) -> Estimate:
        """Returns R² on the images scored, with the standard error of a jackknife over groups of them."""
        return explained(self.squares)

    def _windows(
        self,
        x: Float[Tensor, "images positions channels"],
        basis: Float[Tensor, "channels components"],
    ) -> Float[Tensor, "rows features"]:
        """Returns the window of every position, one row each."""
        reduced = (x.to(basis.dtype) @ basis).unflatten(1, self.grid)
        axes = len(self.grid)
        around = (self.kernel_size // 2,) * 2 * axes
        padded = functional.pad(reduced, (0, 0, *around))
        for axis, size in enumerate(self.grid, start=1):
            padded = padded.unfold(axis, size, 1)  # taps in its place, positions behind
        windows = padded.movedim(tuple(range(-axes, 0)), tuple(range(1, axes + 1)))
        return windows.reshape(len(x) * prod(self.grid), -1)


def _ridge(sums: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the weights, the bias and the mean of the output of the ridge regression with the best ridge."""
    rows = sums["rows"]
    feature_mean = sums["features"] / rows
    target_mean = sums["targets"] / rows
    gram = sums["gram"] - rows * feature_mean.outer(feature_mean)
    cross = sums["cross"] - rows * feature_mean.outer(target_mean)
    squares = sums["squares"] - rows * target_mean.square().sum()
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    turned = vectors.mT @ cross
    power = turned.square().sum(dim=1)
    tiny = torch.finfo(torch.float64).tiny
    ridges = _RIDGES.double() * values.mean().clamp_min(tiny)
    shrunk = 1 / (values + ridges[:, None])
    share = 2 * shrunk - values * shrunk.square()
    error = squares - (power * share).sum(dim=1)
    freedom = (values * shrunk).sum(dim=1)
    criterion = error / (rows - freedom).square()
    criterion = criterion.where(freedom < _MOST_FREEDOM * rows, torch.inf)
    best = shrunk[criterion.argmin()]
    weights = vectors @ (best[:, None] * turned)
    bias = target_mean - feature_mean @ weights
    return weights, bias, target_mean


def _rows(values: Float[Tensor, "images positions channels"]) -> Float[Tensor, "rows channels"]:
    """Puts all positions of all images below one another, in at least float32."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return values.flatten(0, 1).to(wide)


def _squares(rows: Float[Tensor, "rows channels"]) -> Float64[Tensor, " rows"]:
    """Returns the squared length of each row, added up in its own dtype."""
    return rows.square().sum(dim=1).double()


def _principal(
    rows: Float[Tensor, "rows channels"], count: int
) -> Float[Tensor, "channels components"]:
    """Returns the directions in which the input is largest, or all channels if they are no more than `count`.

    They are found by orthogonal iteration, and span the largest ones nearly: a good basis is all that is needed.
    """
    channels = rows.shape[1]
    if channels <= count:
        return torch.eye(channels, dtype=rows.dtype, device=rows.device)
    count = min(count, len(rows))  # beyond the rank of the first batch, rounding would choose
    moment = rows.mT @ rows
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(channels, count, generator=generator, dtype=torch.float64).to(rows)
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(moment @ basis).Q
    return basis
