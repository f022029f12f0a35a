"""Standard errors from statistics that leave out one group of images after another."""

import torch


def jackknife(others: list[float]) -> float:
    """Returns the standard error of a statistic from its values without each of several groups of images.

    Fewer than two groups have none: nan.

    Example:
        >>> jackknife([1.0, 2.0, 3.0])
        1.1547005383792515
    """
    if len(others) < 2:
        return float("nan")
    found = torch.tensor(others, dtype=torch.float64)
    count = len(others)
    return float(((count - 1) / count * (found - found.mean()).square().sum()).sqrt())
