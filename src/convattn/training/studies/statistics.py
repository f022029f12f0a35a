"""Means, spreads and paired differences over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from convattn.errors import MissingDependencyError
from convattn.training.studies.record import StudyDifference, Summary

_RESAMPLES = 9_999
_CONFIDENCE = 0.95
_SEED = 0
"""Of the resampling, so that the same runs always give the same interval."""


def summarise(values: Sequence[float]) -> Summary:
    """Summarises one quantity over one or more runs.

    Example:
        >>> summarise([1.0, 2.0, 6.0])
        Summary(n=3, mean=3.0, deviation=2.6457513110645907, minimum=1.0, maximum=6.0)
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(len(values), statistics.fmean(values), deviation, float(min(values)), float(max(values)))


def paired_difference(
    label: str, baseline: str, values: Mapping[int, float], against: Mapping[int, float]
) -> StudyDifference | None:
    """Compares two recipes (value minus baseline) over the seeds that both have; None if there are none."""
    seeds = sorted(values.keys() & against.keys())
    if not seeds:
        return None
    differences = tuple(values[seed] - against[seed] for seed in seeds)
    found, interval = summarise(differences), bootstrap_interval(differences)
    return StudyDifference(
        label=label,
        baseline=baseline,
        seeds=tuple(seeds),
        values=differences,
        mean=found.mean,
        deviation=found.deviation,
        low=interval[0],
        high=interval[1],
        worth=interval_worth(len(seeds)),
    )


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Computes the 95 % percentile bootstrap interval of a mean, from 9,999 resamples with a fixed seed.

    Fewer than two values have no interval. Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993),
    section 13.3.
    """
    if len(values) < 2:
        return None, None
    import numpy as np
    from scipy import stats

    found = stats.bootstrap(
        (np.asarray(values, dtype=np.float64),),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=_CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    # The mean of equal numbers can be a rounding error away from them, but no mean leaves the range.
    return max(float(found.low), min(values)), min(float(found.high), max(values))


def require_scipy() -> None:
    """Raises if scipy is missing, before hours of training rather than after."""
    if find_spec("scipy") is None:
        raise MissingDependencyError("scipy", "train")


def interval_worth(n: int) -> str:
    """Says how far a percentile bootstrap interval over n differences can be trusted.

    A resample that draws the smallest value n times has probability n⁻ⁿ. For n of 2 and 3 that is above 2.5 %, so that
    the interval is exactly the range; and the range of n independent draws holds the median of what they are drawn from
    with probability 1 − 2¹⁻ⁿ.

    Example:
        >>> print(interval_worth(3))
        n = 3: the interval is the range from the smallest to the largest difference; such a range holds the median
        difference in 75 % of studies, not in 95 %.
    """
    if n < 2:
        return "n = 1: one difference has no interval and shows no spread."
    if n < 4:
        return (
            f"n = {n}: the interval is the range from the smallest to the largest difference; such a range holds the "
            f"median difference in {100 * (1 - 2 ** (1 - n)):.0f} % of studies, not in 95 %."
        )
    return (
        f"n = {n}: the percentile bootstrap cannot be wider than the range of the differences, and holds the mean in "
        "fewer than 95 % of studies where seeds are few."
    )
