"""Which heads of a report can run as convolutions, and the heads' kernels."""

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from math import prod
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.errors import ArgumentError, must_be, must_be_a
from convattn.functional.convolution import convolve
from convattn.grid import is_whole
from convattn.heads.convolved_attention import MeasuredHeads
from convattn.heads.head_report import HeadReport, HeadStatistics, LayerReport
from convattn.heads.layout import WHOLE

LEAST_SHARE = 0.95
"""Share of its attention on positions that a head's kernel must hold; with less, the report's radius is too small."""


def every_head(report: HeadReport) -> list[tuple[str, int]]:
    """Lists the heads of a report: pairs of a layer's name and the number of a head."""
    heads = []
    for layer in report.layers:
        heads += [(layer.name, head.head) for head in layer.heads]
    return heads


def check_heads(report: HeadReport, heads: Any) -> frozenset[tuple[str, int]]:
    """Returns the heads that the caller names, or raises if one of them is not in the report."""
    known = every_head(report)
    if not isinstance(heads, Collection):
        raise ArgumentError(must_be_a("heads", "pairs of a layer's name and a number", heads))
    for head in heads:
        if head not in known:
            expected = (
                f"pairs of a layer's name and the number of a head of the report, as {known[0]}"
            )
            raise ArgumentError(must_be("heads", expected, head))
    return frozenset(heads)


def random_heads(report: HeadReport, count: int, *, seed: int = 0) -> tuple[tuple[str, int], ...]:
    """Draws heads of a report at random, as a control for `replace_convolutional_heads`.

    Args:
        report: The report.
        count: How many to draw.
        seed: Seed, a whole number that torch takes.

    Returns:
        Pairs of a layer's name and the number of a head, to be given as `heads`.

    Raises:
        ArgumentError: `count` is larger than the number of heads.

    Example:
        >>> from convattn import RelativeAttention2d, analyze
        >>> layer = RelativeAttention2d(3, 8, num_heads=4, encoding="quadratic")
        >>> report = analyze(layer, torch.randn(4, 3, 8, 8), controls=(), progress=False)
        >>> len(random_heads(report, 3, seed=1))
        3
    """
    every = every_head(report)
    if not is_whole(count) or not 0 <= count <= len(every):
        counts = f"from 0 to {len(every)}, the heads of the report"
        raise ArgumentError(must_be("count", counts, count))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(every), generator=generator)
    drawn = sorted(order[:count].tolist())
    return tuple(every[index] for index in drawn)


def why_not(
    layer: LayerReport, threshold: float, named: frozenset[tuple[str, int]] | None
) -> list[str | None]:
    """Returns for each head of a layer why it is left; None for those that are replaced.

    Heads that the caller names are replaced whatever their score.
    """
    reasons: list[str | None] = []
    for head in layer.heads:
        if named is None:
            reasons.append(_unusable(layer, head) or _below(head, threshold))
        elif (layer.name, head.head) in named:
            reasons.append(_unusable(layer, head))
        else:
            reasons.append("it was not named")
    return reasons


def _unusable(layer: LayerReport, head: HeadStatistics) -> str | None:
    """Returns why a head's kernel cannot be run; None if it can."""
    if layer.pattern not in WHOLE:
        return f"its layer attends in a pattern ({layer.pattern}) whose borders are not those of the grid"
    if not layer.normalised:
        return "its layer's weights do not sum to one"
    displacements = torch.tensor(layer.displacements, dtype=torch.float64)
    if not torch.equal(displacements, displacements.round()):
        return "its keys lie between the positions"
    kernel = head.position_kernel
    complete = len(kernel) == len(layer.displacements) and math.isfinite(sum(kernel))
    if not complete or min(kernel, default=-1) < 0:
        return "the report holds no kernel of weights for it"
    if sum(kernel) <= 0:
        return "its kernel holds no weight: all of its attention is on prefix tokens, or beyond the report's radius"
    return None


def _below(head: HeadStatistics, threshold: float) -> str | None:
    """Returns why a head's numbers do not make it a convolution; None if they do."""
    score = head.position_score.value
    if math.isnan(score):
        return "its position score is not known: its weights do not vary, or it was measured on one image"
    if score < threshold:
        return "its position score is below the threshold"
    if not head.kernel_share.value >= LEAST_SHARE:
        return f"the report's radius holds less than {LEAST_SHARE:.0%} of its attention"
    return None


_CUT = 2.0**-23
"""Share of a query's weights that may lie outside the box to which kernels are cut: what float32 rounds away."""


_Box: TypeAlias = tuple[slice, ...]
"""Taps of a kernel along each axis, of which the middle one is displacement 0."""


def measured_heads(layer: LayerReport, heads: Sequence[int]) -> MeasuredHeads:
    """Reads the kernels of some heads, in one box, and their weights for prefix tokens."""
    kernels = _whole_kernels(layer, heads)
    radius = kernels.shape[1] // 2
    box = _smallest_box(kernels, layer.grid)
    kernel = kernels[:, *box]
    totals = kernel.flatten(1).sum(1)
    kernel = kernel / totals.view(-1, *(1,) * len(layer.grid))
    statistics = [layer.heads[head] for head in heads]
    tokens = layer.prefix + prod(layer.grid)
    shares = torch.tensor([head.prefix_weights for head in statistics], dtype=torch.float64)
    maps = torch.tensor([head.prefix_maps for head in statistics], dtype=torch.float64)
    maps = maps.view(len(heads), layer.prefix, tokens)
    return MeasuredHeads(
        heads=tuple(heads),
        kernel=kernel,
        first=tuple(side.start - radius for side in box),
        prefix_shares=shares.view(len(heads), layer.prefix),
        prefix_maps=maps / maps.sum(-1, keepdim=True),
    )


def _whole_kernels(layer: LayerReport, heads: Sequence[int]) -> Float[Tensor, "heads *whole"]:
    """Returns kernels of sum 1, in a box as far to all sides as the report's displacements."""
    displacements = torch.tensor(layer.displacements, dtype=torch.float64).round().long()
    radius = int(displacements.abs().max())
    places = (displacements + radius).unbind(1)
    kernels = []
    for head in heads:
        weights = torch.tensor(layer.heads[head].position_kernel, dtype=torch.float64)
        kernel = weights.new_zeros((2 * radius + 1,) * len(layer.grid))
        kernel[places] = weights / weights.sum()
        kernels.append(kernel)
    return torch.stack(kernels)


def _without_a_side(kernels: Float[Tensor, "heads *whole"], box: _Box) -> _Box | None:
    """Cuts off the side of a box that weighs least; None if only displacement 0 is left."""
    middle = kernels.shape[1] // 2
    inside = kernels[:, *box]
    sides = []
    for axis, taps in enumerate(box):
        shorter = []
        if taps.start < middle:
            shorter.append((0, slice(taps.start + 1, taps.stop)))
        if taps.stop > middle + 1:
            shorter.append((-1, slice(taps.start, taps.stop - 1)))
        for end, rest in shorter:
            weight = inside.select(axis + 1, end).sum()
            sides.append((weight.item(), (*box[:axis], rest, *box[axis + 1 :])))
    if not sides:
        return None
    return min(sides, key=lambda side: side[0])[1]


def _smallest_box(kernels: Float[Tensor, "heads *whole"], grid: tuple[int, ...]) -> _Box:
    """Cuts sides off the kernels, the lightest first, until more than `_CUT` of a query's weights would be outside."""
    axes = len(grid)
    radius = kernels.shape[1] // 2
    ones = torch.ones(1, 1, *grid, dtype=kernels.dtype)
    steps = (1,) * axes

    def seen(kernels: Tensor) -> Tensor:
        return convolve(ones, kernels[:, None], None, steps, (radius,) * axes, steps, 1)

    spare = _CUT * seen(kernels)

    def cuts_too_much(box: _Box) -> bool:
        outside = kernels.clone()
        outside[:, *box] = 0
        return bool((seen(outside) > spare).any())

    boxes: list[_Box] = []
    box: _Box | None = (slice(0, 2 * radius + 1),) * axes
    while box is not None:
        boxes.append(box)
        box = _without_a_side(kernels, box)
    return boxes[bisect_left(boxes, True, key=cuts_too_much) - 1]
