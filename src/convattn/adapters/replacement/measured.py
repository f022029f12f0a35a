"""The kernels of a report as tensors, cut to where their weight is, in groups of like size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.records.head_report import HeadStatistics, LayerReport

_CUT = 1e-3
"""Share of a head's kernel that may lie outside the box to which it is cut."""

_APART = 4
"""A head runs in the box of larger ones if that has at most so many times the taps of its own."""


@dataclass(frozen=True)
class MeasuredHeads:
    """Some heads of a layer with their kernels in one box."""

    heads: tuple[int, ...]  # Their numbers in the layer
    kernel: Float[Tensor, "heads *box"]  # Mean weight of each displacement, of sum 1
    first: tuple[int, ...]  # Displacement of the box's first tap
    prefix_shares: Float[Tensor, "heads prefix"]  # Mean weight of a position for each prefix token
    prefix_maps: Float[Tensor, "heads prefix tokens"]  # Weights of each prefix token's query, of sum 1


def measured_heads(layer: LayerReport, heads: Sequence[int]) -> tuple[MeasuredHeads, ...]:
    """Reads the kernels of some heads, in groups of like size, the smallest first."""
    boxes = {head: _box(layer, layer.heads[head]) for head in heads}
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
    return tuple(_group(layer, members, box) for members, box in groups)


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


def _whole(layer: LayerReport, head: HeadStatistics) -> tuple[Float[Tensor, "*box"], int]:
    """Returns the whole kernel of a head, of sum 1, and the largest displacement along each axis."""
    displacements = torch.tensor(layer.displacements, dtype=torch.float64).round().long()
    radius = int(displacements.abs().max())
    kernel = torch.zeros((2 * radius + 1,) * len(layer.grid), dtype=torch.float64)
    kernel[tuple((displacements + radius).unbind(1))] = torch.tensor(head.kernel, dtype=torch.float64)
    return kernel / kernel.sum(), radius


def _box(layer: LayerReport, head: HeadStatistics) -> _Box:
    """Returns the smallest box around 0, cut along each axis from far to near, that leaves at most `_CUT` outside."""
    kernel, radius = _whole(layer, head)
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


def _group(layer: LayerReport, heads: Sequence[int], box: _Box) -> MeasuredHeads:
    kernels = []
    for head in heads:
        kernel, radius = _whole(layer, layer.heads[head])
        inside = kernel[tuple(slice(a + radius, b + radius + 1) for a, b in zip(box.first, box.last, strict=True))]
        kernels.append(inside / inside.sum())
    found = [layer.heads[head] for head in heads]
    shares = torch.tensor([head.prefix_weights for head in found], dtype=torch.float64).view(len(heads), -1)
    prefix, tokens = shares.shape[1], shares.shape[1] + prod(layer.grid)
    maps = torch.tensor([head.prefix_maps for head in found], dtype=torch.float64).view(len(heads), prefix, tokens)
    return MeasuredHeads(
        heads=tuple(heads),
        kernel=torch.stack(kernels),
        first=box.first,
        prefix_shares=shares,
        prefix_maps=maps / maps.sum(-1, keepdim=True),
    )
