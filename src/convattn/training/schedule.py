"""The learning rate over time, as pure functions of the step; each returns a factor of the highest learning rate."""

import math
from collections.abc import Sequence

__all__ = ["step_decay", "warmup_cosine"]


def warmup_cosine(step: int, *, total: int, warmup: int) -> float:
    """Rises linearly to 1 during the warm-up, then falls to 0 along half a cosine.

    ``f(s) = s / W`` for s < W, then ``½ (1 + cos(π (s − W) / (T − W)))``; f(W) = 1 and f(T) = 0.

    Args:
        step: s, steps done, from 0 to T.
        total: T, all steps.
        warmup: W, steps of the warm-up, from 0 and below T.

    Returns:
        The factor, in [0, 1].

    Example:
        >>> [warmup_cosine(step, total=6, warmup=2) for step in (0, 1, 2, 4, 6)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return step / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


def step_decay(step: int, *, milestones: Sequence[int], factor: float) -> float:
    """Multiplies by a factor at each milestone: ``f(s) = factor^|{m : m ≤ s}|``.

    Args:
        step: s, steps done.
        milestones: Steps at which the learning rate falls.
        factor: What it is multiplied by each time, in (0, 1].

    Returns:
        The factor, in (0, 1].

    Example:
        >>> [step_decay(step, milestones=(2, 4), factor=0.5) for step in (0, 1, 2, 3, 4, 5)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    return factor ** sum(milestone <= step for milestone in milestones)
