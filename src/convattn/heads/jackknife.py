"""Estimates with standard errors over images: a statistic is computed again without each of some groups of them."""

from dataclasses import dataclass
from math import isfinite, nan

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

GROUPS = 10
"""Groups of images for the standard errors."""

HELD_OUT = 5
"""Images for each one that is held out from fits."""

_T99 = (31.82, 6.97, 4.54, 3.75, 3.37, 3.15, 3.0, 2.9, 2.83)
"""Standard errors that a mean of 2, 3, … `GROUPS` groups exceeds by chance once in a hundred times (Student's t)."""


@dataclass(frozen=True, repr=False)
class Estimate:
    """A number measured on a sample of images."""

    value: float  # The number
    error: float  # Its standard error over images; nan of too few images

    def __str__(self) -> str:
        """Returns the number with its standard error."""
        value = f"{self.value:.3g}"
        return f"{value} ± {self.error:.2g}" if isfinite(self.error) else value

    __repr__ = __str__

    def least(self, groups: int) -> float:
        """Returns what it is at least, but for one case in a hundred; an error that is not known counts as 0."""
        if not isfinite(self.error) or groups < 2:
            return self.value
        return self.value - _T99[min(groups, GROUPS) - 2] * self.error


def held_out(images: int) -> int:
    """Returns how many of some images are held out from fits: of four or more at least two, for standard errors."""
    if images < 2:
        return 0
    return max(1 if images < 4 else 2, round(images / HELD_OUT))


def jackknife(others: Shaped[Tensor, "groups *statistics"]) -> Float64[Tensor, "*statistics"]:
    """Returns the standard error of statistics from their values without each of several groups of images.

    Fewer than two groups have none: nan.

    Example:
        >>> jackknife(torch.tensor([1, 2, 3]))
        tensor(1.1547, dtype=torch.float64)
    """
    count = len(others)
    values = others.double().movedim(0, -1).contiguous()
    if count < 2:
        return values.new_full(values.shape[:-1], nan)
    squares = (values - values.mean(-1, keepdim=True)).square().sum(-1)
    variance = (count - 1) / count * squares
    return variance.sqrt()


def explained(
    squares: Float64[Tensor, "2 images"], groups: int = GROUPS, least: float = 0.0
) -> Estimate:
    """Returns R² = 1 − Σ errors / Σ totals, with the standard error of a jackknife over groups of images.

    `squares` are the squared errors of a model and the totals, those of a trivial one. R² is nan unless totals are more
    than `least` an image.
    """
    errors, totals = squares
    count = len(errors)
    if not float(totals.sum()) > least * count:
        return Estimate(nan, nan)
    groups = min(groups, count)
    members = torch.arange(count) * groups // count
    others = []
    for group in range(groups):
        rest = members != group
        others.append(1 - errors[rest].sum() / totals[rest].sum())
    value = 1 - errors.sum() / totals.sum()
    return Estimate(float(value), float(jackknife(torch.stack(others))))
