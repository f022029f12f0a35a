"""The kernels of a report as tensors, cut to where their weight is, in groups of like size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.records.head_report import LayerReport

_CUT = 2.0**-23
"""Share of a head's kernel that may lie outside the box to which it is cut: no more than float32 rounds away."""

_APART = 4
"""A head runs in the box of larger ones if that has at most so many times the taps of its own."""


@dataclass(frozen=True)
class MeasuredHeads:
    """Some heads of a layer with their kernels in one box."""

    heads: tuple[int, ...]  # Their numbers in the layer
    kernel: Float[Tensor, "heads *box"]  # K, of sum 1
    first: tuple[int, ...]  # Displacement of the box's first tap
    prefix_shares: Float[Tensor, "heads prefix"]  # Mean weight of a position for each prefix token
    prefix_maps: Float[Tensor, "heads prefix tokens"]  # Weights of each prefix token's query, of sum 1


def measured_heads(layer: LayerReport, heads: Sequence[int]) -> tuple[MeasuredHeads, ...]:
    """Reads the kernels of some heads, in groups of like size, the smallest first."""
    kernels = _kernels(layer, heads)
    boxes = {head: _box(kernel) for head, kernel in kernels.items()}
    groups: list[tuple[list[int], _Box]] = []
    for head in sorted(heads, key=lambda head: boxes[head].taps):
        box = boxes[head]
        if groups:
            members, old = groups[-1]
            joint = old.joined(box)
            if joint.taps <= _APART * min(boxes[member].taps for member in members):
                groups[-1] = ([*members, head], joint)
                continue
        groups.append(([head], box))
    return tuple(_group(layer, members, kernels, box) for members, box in groups)


@dataclass(frozen=True)
class _Box:
    """A box of displacements that contains 0."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(last - first + 1 for first, last in zip(self.first, self.last, strict=True))

    @property
    def taps(self) -> int:
        return prod(self.sizes)

    def joined(self, other: "_Box") -> "_Box":
        """Returns the smallest box that contains both."""
        first = tuple(map(min, self.first, other.first))
        return _Box(first, tuple(map(max, self.last, other.last)))


def _kernels(layer: LayerReport, heads: Sequence[int]) -> dict[int, Float[Tensor, "*box"]]:
    """Returns the whole kernel of each head, in a box as far to all sides as the report's displacements."""
    displacements = torch.tensor(layer.displacements, dtype=torch.float64).round().long()
    weights = torch.tensor([layer.heads[head].position_kernel for head in heads], dtype=torch.float64)
    radius = int(displacements.abs().max())
    whole = torch.zeros(len(heads), *(2 * radius + 1,) * len(layer.grid), dtype=torch.float64)
    whole[(slice(None), *(displacements + radius).unbind(1))] = weights / weights.sum(1, keepdim=True)
    return dict(zip(heads, whole, strict=True))


def _box(kernel: Float[Tensor, "*box"]) -> _Box:
    """Returns the smallest box around 0, cut from its sides, the lightest first, that leaves at most `_CUT` outside."""
    radius = kernel.shape[0] // 2
    first, last = [-radius] * kernel.ndim, [radius] * kernel.ndim
    spare = _CUT
    while True:
        found = []
        for axis in range(kernel.ndim):
            inside = kernel[tuple(slice(a + radius, b + radius + 1) for a, b in zip(first, last, strict=True))]
            if first[axis] < 0:
                found.append((inside.select(axis, 0).sum().item(), axis, first, 1))
            if last[axis] > 0:
                found.append((inside.select(axis, -1).sum().item(), axis, last, -1))
        if not found or min(found, key=lambda item: item[0])[0] > spare:
            return _Box(tuple(first), tuple(last))
        weight, axis, ends, step = min(found, key=lambda item: item[0])
        spare -= weight
        ends[axis] += step


def _group(
    layer: LayerReport, heads: Sequence[int], kernels: dict[int, Float[Tensor, "*box"]], box: _Box
) -> MeasuredHeads:
    radius = next(iter(kernels.values())).shape[0] // 2
    cut = tuple(slice(a + radius, b + radius + 1) for a, b in zip(box.first, box.last, strict=True))
    inside = torch.stack([kernels[head][cut] for head in heads])
    total = inside.flatten(1).sum(1).view(-1, *(1,) * len(layer.grid))
    found = [layer.heads[head] for head in heads]
    shares = torch.tensor([head.prefix_weights for head in found], dtype=torch.float64).view(len(heads), -1)
    prefix, tokens = shares.shape[1], shares.shape[1] + prod(layer.grid)
    maps = torch.tensor([head.prefix_maps for head in found], dtype=torch.float64).view(len(heads), prefix, tokens)
    return MeasuredHeads(
        heads=tuple(heads),
        kernel=inside / total,
        first=box.first,
        prefix_shares=shares,
        prefix_maps=maps / maps.sum(-1, keepdim=True),
    )
