"""Which heads of a report are replaced, and why the others are not."""

import math
from collections.abc import Sequence

import torch

from convattn.errors import ArgumentError, UnknownNameError, must_be, must_be_a
from convattn.records.head_report import HeadReport, HeadStatistics, LayerReport

LEAST_SHARE = 0.95
"""Share of its attention on positions that a head's kernel must hold, or the report's radius is too small."""

_PATTERNS = ("global", "sequence")


def check_threshold(threshold: object) -> float:
    """Returns the threshold, or raises ArgumentError if it is not a number in (0, 1]."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise ArgumentError(must_be("threshold", "a number in (0, 1]", threshold))
    return float(threshold)


def check_heads(report: HeadReport, heads: object) -> frozenset[tuple[str, int]]:
    """Returns the heads that the caller names, or raises if they are not pairs of a layer's name and a number."""
    if isinstance(heads, str) or not isinstance(heads, Sequence | set | frozenset):
        raise ArgumentError(must_be_a("heads", "pairs of a layer's name and the number of a head", heads))
    known = {layer.name: len(layer.heads) for layer in report.layers}
    for item in heads:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            raise ArgumentError(must_be("heads", "pairs of a layer's name and the number of a head", item))
        name, number = item
        if name not in known:
            raise UnknownNameError("layer", name, known)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < known[name]:
            raise ArgumentError(must_be("heads", f"numbers from 0 to {known[name] - 1} in {name}", number))
    return frozenset((name, int(number)) for name, number in heads)


def why_not_layer(layer: LayerReport) -> str | None:
    """Returns why none of a layer's heads can be replaced; None if they can."""
    if layer.pattern not in _PATTERNS:
        return f"its layer attends in a pattern ({layer.pattern}) whose borders are not those of the grid"
    return None if layer.normalised else "its layer's weights do not sum to one"


def why_not_head(layer: LayerReport, head: HeadStatistics, threshold: float | None) -> str | None:
    """Returns why a head is left; None if it is replaced. `threshold` is None for heads that the caller names."""
    unusable = _why_unusable(layer, head.position_kernel)
    if unusable is not None or threshold is None:
        return unusable
    score = head.position_score.value
    if math.isnan(score):
        return "its position score is not known: its weights do not vary, or it was measured on one image"
    if score < threshold:
        return "its position score is below the threshold"
    if not head.kernel_share.value >= LEAST_SHARE:
        return f"the report's radius holds less than {LEAST_SHARE:.0%} of its attention"
    return None


def _why_unusable(layer: LayerReport, kernel: Sequence[float]) -> str | None:
    """Returns why a kernel cannot be run; None if it can."""
    if len(kernel) != len(layer.displacements) or not math.isfinite(sum(kernel)) or min(kernel, default=-1) < 0:
        return "the report holds no kernel of weights for it"
    if sum(kernel) <= 0:
        return "its kernel holds no weight: all of its attention is on prefix tokens, or beyond the report's radius"
    if any(step != round(step) for shift in layer.displacements for step in shift):
        return "its keys lie between the positions"
    return None


def random_heads(report: HeadReport, count: int, *, seed: int = 0) -> tuple[tuple[str, int], ...]:
    """Draws heads of a report at random, as a control for `replace_convolutional_heads`.

    Args:
        report: The report.
        count: How many to draw.
        seed: Seed.

    Returns:
        Pairs of a layer's name and the number of a head, to be given as `heads`.

    Raises:
        ArgumentError: `count` is larger than the number of heads, or `report` is not a HeadReport.
    """
    if not isinstance(report, HeadReport):
        raise ArgumentError(must_be_a("report", "a HeadReport", report))
    every = [(layer.name, head.head) for layer in report.layers for head in layer.heads]
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(every):
        raise ArgumentError(must_be("count", f"from 0 to {len(every)}, the heads of the report", count))
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[:count]
    return tuple(every[index] for index in sorted(order.tolist()))
