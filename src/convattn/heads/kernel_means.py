"""Means of values under kernels: what a head computes whose weights depend on the displacement alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from convattn.functional.autocast import without_autocast
from convattn.heads.head_report import LayerReport

_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_PER_TAP = 8
"""A depthwise convolution takes about as long for one tap as a matrix product for so many positions."""


@final
class KernelMeans(nn.Module):
    """Heads that average values by displacement: y_h[q] = Σ_δ K_h(δ) v_h[q+δ] / Σ_δ K_h(δ), over δ with q + δ present.

    Positions beyond the grid's border, and masked ones, are not present: softmax leaves them out in the same way. If
    no weight is left, the mean is 0. A kernel that is small beside the grid runs as a depthwise convolution, a larger
    one as a product with the weights of all pairs of positions.

    Attributes:
        kernel: K, (heads, *box), in at least float32; in general of sum 1, but only ratios count.
        first: Displacement of the kernel's first tap along each axis, ≤ 0.

    Example:
        >>> left = KernelMeans(torch.tensor([[1.0, 0.0]]), (-1,))
        >>> left(torch.tensor([3.0, 5.0, 7.0]).view(1, 1, 3, 1), (3,)).flatten().tolist()
        [0.0, 3.0, 5.0]
    """

    def __init__(self, kernel: Float[Tensor, "heads *box"], first: Sequence[int]) -> None:
        """Takes the kernels of the heads, in a box that contains the displacement 0."""
        super().__init__()
        self.kernel, self.first = nn.Parameter(kernel.clone()), tuple(first)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.kernel.shape[0]

    @property
    def box(self) -> tuple[int, ...]:
        """Taps along each axis."""
        return tuple(self.kernel.shape[1:])

    def convolves(self, sizes: Sequence[int]) -> bool:
        """Tells whether grids of these sizes are averaged by a depthwise convolution."""
        return prod(self.box) * _PER_TAP <= prod(sizes)

    def forward(
        self,
        values: Float[Tensor, "batch heads positions width"],
        sizes: Sequence[int],
        present: Bool[Tensor, "batch positions"] | None = None,
    ) -> Float[Tensor, "batch heads positions width"]:
        """Averages.

        Args:
            values: Values at each position of the grid, row by row.
            sizes: Sizes of the grid.
            present: Positions that count; None means all.

        Returns:
            The means at each position.
        """
        if self.convolves(sizes):
            return self._convolved(values, sizes, present)
        weights = self.weights(sizes, present).to(values.dtype)
        return torch.matmul(weights, values)

    def weights(
        self, sizes: Sequence[int], present: Bool[Tensor, "batch positions"] | None = None
    ) -> Float[Tensor, "*batch heads positions positions"]:
        """Returns the weight of each position for each query; rows sum to 1, or to 0 where no weight is left."""
        taps = self._taps(sizes)
        padded = functional.pad(self.kernel.flatten(1), (0, 1))  # The tap after the last one stands for none
        weights = padded[:, taps]
        if present is not None:
            weights = weights * present[:, None, None, :]
        return weights / _divisor(weights.sum(-1, keepdim=True))

    def _taps(self, sizes: Sequence[int]) -> Int64[Tensor, "positions positions"]:
        """Returns the number of the kernel's tap that each pair of query and key is at; if none, the one after."""
        index, inside = None, None
        for size, taps, first in zip(sizes, self.box, self.first, strict=True):
            places = torch.arange(size, device=self.kernel.device)
            tap = places[None, :] - places[:, None] - first
            within = (tap >= 0) & (tap < taps)
            if index is None or inside is None:
                index, inside = tap, within
                continue
            count = len(index) * size
            index = (index[:, None, :, None] * taps + tap[None, :, None, :]).reshape(count, count)
            inside = (inside[:, None, :, None] & within[None, :, None, :]).reshape(count, count)
        assert index is not None
        assert inside is not None
        return torch.where(inside, index, prod(self.box))

    def _convolved(
        self, values: Tensor, sizes: Sequence[int], present: Bool[Tensor, "batch positions"] | None
    ) -> Float[Tensor, "batch heads positions width"]:
        """Averages by a depthwise convolution with zeros around, divided by that of ones."""
        heads, width, convolve = values.shape[1], values.shape[3], _CONVOLVE[len(sizes)]
        pads = [
            n for size, first in zip(self.box[::-1], self.first[::-1], strict=True) for n in (-first, size - 1 + first)
        ]
        kernel = self.kernel[:, None]
        if present is None:
            ones = self.kernel.new_ones(1, 1, *sizes)
        else:
            ones = present.to(self.kernel.dtype).view(-1, 1, *sizes)
            values = values * present[:, None, :, None]
        with without_autocast(values.device):
            total = convolve(functional.pad(ones, pads), kernel).flatten(2)
        images = rearrange(values, "batch heads positions width -> batch (heads width) positions").unflatten(
            2, tuple(sizes)
        )
        depthwise = kernel.repeat_interleave(width, 0).to(values.dtype)
        sums = convolve(functional.pad(images, pads), depthwise, groups=heads * width)
        y = rearrange(sums.flatten(2), "batch (heads width) positions -> batch heads positions width", width=width)
        return y / _divisor(total).to(y.dtype)[..., None]

    def extra_repr(self) -> str:
        """Returns heads, box and its first displacement, for printing."""
        return f"{self.heads} heads, {' x '.join(map(str, self.box))} from {self.first}"


def _divisor(total: Tensor) -> Tensor:
    """Returns sums of weights with 1 in place of 0."""
    return torch.where(total == 0, torch.ones_like(total), total)


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
