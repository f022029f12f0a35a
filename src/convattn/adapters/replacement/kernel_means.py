"""Means of values under kernels: what a head computes whose weights depend on the displacement alone."""

from collections.abc import Sequence
from math import prod
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from convattn.functional.autocast import without_autocast

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
