"""Which heads of a report can run as convolutions, and the heads' kernels."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.errors import ArgumentError, UnknownNameError, must_be, must_be_a
from convattn.functional.convolution import convolve
from convattn.grid import is_whole
from convattn.heads.convolved_attention import MeasuredHeads
from convattn.heads.head_report import HeadReport, HeadStatistics, LayerReport

LEAST_SHARE = 0.95
"""Share of its attention on positions that a head's kernel must hold; with less, the report's radius is too small."""

_PATTERNS = ("global", "sequence")


def check_heads(report: HeadReport, heads: object) -> frozenset[tuple[str, int]]:
    """Returns the heads that the caller names, or raises if they are not pairs of a layer's name and a number."""
    pairs = "pairs of a layer's name and the number of a head"
    if isinstance(heads, str) or not isinstance(heads, Sequence | set | frozenset):
        raise ArgumentError(must_be_a("heads", pairs, heads))
    known = {layer.name: len(layer.heads) for layer in report.layers}
    for item in heads:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            raise ArgumentError(must_be("heads", pairs, item))
        name, number = item
        if name not in known:
            raise UnknownNameError("layer", name, known)
        if not is_whole(number) or not 0 <= number < known[name]:
            numbers = f"numbers from 0 to {known[name] - 1} in {name}"
            raise ArgumentError(must_be("heads", numbers, number))
    return frozenset((name, int(number)) for name, number in heads)


def random_heads(report: HeadReport, count: int, *, seed: int = 0) -> tuple[tuple[str, int], ...]:
    """Draws heads of a report at random, as a control for `replace_convolutional_heads`.

    Args:
        report: The report.
        count: How many to draw.
        seed: Seed, a whole number that torch takes.

    Returns:
        Pairs of a layer's name and the number of a head, to be given as `heads`.

    Raises:
        ArgumentError: `count` is larger than the number of heads, `seed` is no seed, or `report` is not a HeadReport.

    Example:
        >>> from convattn import RelativeAttention2d, analyze
        >>> layer = RelativeAttention2d(3, 8, num_heads=4, encoding="quadratic")
        >>> report = analyze(layer, torch.randn(4, 3, 8, 8), controls=(), progress=False)
        >>> len(random_heads(report, 3, seed=1))
        3
    """
    if not isinstance(report, HeadReport):
        raise ArgumentError(must_be_a("report", "a HeadReport", report))
    every = []
    for layer in report.layers:
        every += [(layer.name, head.head) for head in layer.heads]
    if not is_whole(count) or not 0 <= count <= len(every):
        counts = f"from 0 to {len(every)}, the heads of the report"
        raise ArgumentError(must_be("count", counts, count))
    if not is_whole(seed) or not -(2**63) <= seed < 2**64:
        raise ArgumentError(must_be("seed", "a whole number from -2**63 to 2**64 - 1", seed))
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
    if layer.pattern not in _PATTERNS:
        return f"its layer attends in a pattern ({layer.pattern}) whose borders are not those of the grid"
    if not layer.normalised:
        return "its layer's weights do not sum to one"
    kernel = head.position_kernel
    complete = len(kernel) == len(layer.displacements) and math.isfinite(sum(kernel))
    if not complete or min(kernel, default=-1) < 0:
        return "the report holds no kernel of weights for it"
    if sum(kernel) <= 0:
        return "its kernel holds no weight: all of its attention is on prefix tokens, or beyond the report's radius"
    displacements = torch.tensor(layer.displacements, dtype=torch.float64)
    if not torch.equal(displacements, displacements.round()):
        return "its keys lie between the positions"
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


class _Box(NamedTuple):
    """A box of displacements that contains 0."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    def cut(self, kernels: Float[Tensor, "heads *whole"]) -> Float[Tensor, "heads *box"]:
        """Cuts kernels that reach equally far to all sides to the box."""
        radius = kernels.shape[1] // 2
        parts = [slice(None)]
        for first, last in zip(self.first, self.last, strict=True):
            parts.append(slice(first + radius, last + radius + 1))
        return kernels[tuple(parts)]

    def sides(self, kernels: Float[Tensor, "heads *whole"]) -> Iterator[tuple[float, "_Box"]]:
        """Yields the weight of each side that can go, so that 0 stays, and the box without it."""
        inside = self.cut(kernels)
        for axis in range(len(self.first)):
            first = list(self.first)
            last = list(self.last)
            if first[axis] < 0:
                first[axis] += 1
                weight = inside.select(axis + 1, 0).sum()
                yield weight.item(), _Box(tuple(first), self.last)
            if last[axis] > 0:
                last[axis] -= 1
                weight = inside.select(axis + 1, -1).sum()
                yield weight.item(), _Box(self.first, tuple(last))


def measured_heads(layer: LayerReport, heads: Sequence[int]) -> MeasuredHeads:
    """Reads the kernels of some heads, in one box, and their weights for prefix tokens."""
    kernels = _whole_kernels(layer, heads)
    box = _smallest_box(kernels, layer.grid)
    kernel = box.cut(kernels)
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
        first=box.first,
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
        box.cut(outside).zero_()
        return bool((seen(outside) > spare).any())

    boxes = [_Box((-radius,) * axes, (radius,) * axes)]
    while any(boxes[-1].first + boxes[-1].last):
        _, smaller = min(boxes[-1].sides(kernels), key=lambda side: side[0])
        boxes.append(smaller)
    return boxes[bisect_left(boxes, True, key=cuts_too_much) - 1]
