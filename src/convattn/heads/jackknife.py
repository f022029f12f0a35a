"""Standard errors over images: a statistic is computed again without each of several groups of images."""

from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.heads.head_report import Estimate


def jackknife(others: list[float]) -> float:
    """Returns the standard error of a statistic from its values without each of several groups of images.

    Fewer than two groups have none: nan.

    Example:
        >>> jackknife([1.0, 2.0, 3.0])
        1.1547005383792515
    """
    if len(others) < 2:
        return nan
    values = torch.tensor(others, dtype=torch.float64)
    count = len(values)
    squares = (values - values.mean()).square().sum()
    variance = (count - 1) / count * squares
    return float(variance.sqrt())


def explained(
    errors: list[Float[Tensor, " images"]],
    totals: list[Float[Tensor, " images"]],
    groups: int,
    least: float = 0.0,
) -> Estimate:
    """Returns R² = 1 − Σ errors / Σ totals over batches, with the standard error of a jackknife over groups of images.

    `totals` are the squared errors of a trivial model. R² is nan unless they are more than `least` an image.
    """
    error = torch.cat([*errors, torch.zeros(0)])
    total = torch.cat([*totals, torch.zeros(0)])
    count = len(error)
    if not float(total.sum()) > least * count:
        return Estimate(nan, nan)
    groups = min(groups, count)
    members = torch.arange(count) * groups // count
    others = []
    for group in range(groups if count > 1 else 0):
        rest = members != group
        missed = error[rest].sum() / total[rest].sum()
        others.append(float(1 - missed))
    value = 1 - error.sum() / total.sum()
    return Estimate(float(value), jackknife(others))
