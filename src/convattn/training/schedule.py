"""The learning rate over time, as pure functions of the step; each returns a factor of the highest learning rate."""

import math
from collections.abc import Sequence


def warmup_cosine(step: int, *, total: int, warmup: int) -> float:
    """Rises linearly to 1 in W steps of warm-up, then falls to 0 along half a cosine until step T.

    ``f(s) = s / W`` for s < W, then ``½ (1 + cos(π (s − W) / (T − W)))``; f(W) = 1 and f(T) = 0.

    Example:
        >>> [warmup_cosine(step, total=6, warmup=2) for step in (0, 1, 2, 4, 6)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return step / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


def step_decay(step: int, *, milestones: Sequence[int], factor: float) -> float:
    """Multiplies by a factor at each milestone, a number of steps: ``f(s) = factor^|{m : m ≤ s}|``.

    Example:
        >>> [step_decay(step, milestones=(2, 4), factor=0.5) for step in (0, 1, 2, 3, 4, 5)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    return factor ** sum(milestone <= step for milestone in milestones)


def triangle(step: int, *, total: int, start: float, peak: float, end: float) -> float:
    """Rises in a straight line to 1, then falls in a straight line; with a peak of 0 it only falls.

    ``f(0) = start, f(peak · T) = 1, f(T) = end``, and straight between.

    Example:
        >>> [triangle(step, total=8, start=0.5, peak=0.25, end=0.25) for step in (0, 1, 2, 5, 8)]
        [0.5, 0.75, 1.0, 0.625, 0.25]
    """
    highest = peak * total
    if step < highest:
        return start + (1 - start) * step / highest
    return 1 + (end - 1) * (step - highest) / (total - highest)
