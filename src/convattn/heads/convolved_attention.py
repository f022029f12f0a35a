"""Attention over tokens of which some or all heads average values by displacement."""

from collections.abc import Sequence
from math import prod
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.errors import ShapeError
from convattn.functional.quotient import kernel_means
from convattn.functional.reference import displacement_scores
from convattn.functional.torch_modes import without_autocast
from convattn.grid import Axis
from convattn.heads.call_stack import CallStack, require_sizes
from convattn.heads.families.attention_class import TokenAttention, part_of
from convattn.heads.fixed_attention import DisplacedHeads
from convattn.heads.head_report import LayerReport
from convattn.heads.layout import times

_PER_TAP = 8
"""Positions in a matrix product that take about as long as one tap of a depthwise convolution."""


@final
class KernelMeans(nn.Module):
    """Heads that average values by displacement: y_h[q] = Σ_δ K_h(δ) v_h[q+δ] / Σ_δ K_h(δ), over δ with q + δ present.

    Positions beyond the grid's border are not present: softmax leaves them out in the same way. If no weight is left,
    the mean is 0. A kernel that is small beside the grid runs as a depthwise convolution, a larger
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
        """Copies the kernels of the heads, in a box that contains the displacement 0."""
        super().__init__()
        self.kernel = nn.Parameter(kernel.clone())
        self.first = tuple(first)

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
    ) -> Float[Tensor, "batch heads positions width"]:
        """Returns kernel-weighted means of the values at each position of a grid of some sizes, row by row."""
        if self.convolves(sizes):
            return self._convolved(values, sizes)
        weights = self.weights(sizes).to(values.dtype)
        return torch.matmul(weights, values)

    def weights(self, sizes: Sequence[int]) -> Float[Tensor, "heads positions positions"]:
        """Returns the weight of each position for each query; rows sum to 1, or to 0 where no weight is left."""
        # The weight of every displacement on the grid along each axis, in place of those in the box
        pads = []
        for size, taps, first in zip(sizes, self.box, self.first, strict=True):
            pads = [size - 1 + first, size - taps - first, *pads]
        weights = displacement_scores(functional.pad(self.kernel, pads), _axes(sizes))
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1)

    def _convolved(
        self, values: Tensor, sizes: Sequence[int]
    ) -> Float[Tensor, "batch heads positions width"]:
        """Divides the depthwise convolution of the values, with zeros around, by that of ones."""
        with without_autocast(values.device):
            # In the kernel's dtype: at borders that a head looks past, few and small weights are left.
            images = values.mT.unflatten(3, tuple(sizes))
            means = kernel_means(images, [self.kernel], self.first, _axes(sizes))
        return means.flatten(3).mT.to(values.dtype)


def _axes(sizes: Sequence[int]) -> list[Axis]:
    """Returns the axes of a grid of which every position is a query and a key."""
    return [Axis(range(size), size) for size in sizes]


@final
class OtherHeads(nn.Module):
    """Heads that attend as before, with the query and key rows of these heads only: softmax(s q kᵀ) v."""

    def __init__(self, layer: TokenAttention, heads: Sequence[int]) -> None:
        """Copies some heads of a layer."""
        super().__init__()
        rows = _head_rows(heads, layer.head_width)
        self.query = part_of(layer.query, rows)
        self.key = part_of(layer.key, rows)
        self.query_norm = layer.query_norm
        self.key_norm = layer.key_norm
        self.heads = tuple(heads)
        self.dropout = layer.dropout
        self.scale = layer.scale

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        values: Float[Tensor, "batch heads tokens head_width"],
        queries: int | None = None,
    ) -> Float[Tensor, "batch heads queries head_width"]:
        """Attends to all tokens; queries are the first of them, None means all."""
        query = self.query_norm(_split_heads(self.query(tokens[:, :queries]), len(self.heads)))
        key = self.key_norm(_split_heads(self.key(tokens), len(self.heads)))
        dropout = self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(
            query, key, values, None, dropout, scale=self.scale
        )


def _head_rows(heads: Sequence[int], width: int) -> Tensor:
    """Returns the rows of some heads in a matrix of queries, keys or values."""
    first = torch.tensor(list(heads)) * width
    rows = first[:, None] + torch.arange(width)
    return rows.flatten()


def _split_heads(
    tokens: Float[Tensor, "batch tokens inner"], heads: int
) -> Float[Tensor, "batch heads tokens width"]:
    return rearrange(tokens, "batch tokens (heads width) -> batch heads tokens width", heads=heads)


@final
class ConvolvedAttention(nn.Module):
    """Attention over prefix tokens and positions, of which some heads average values by displacement.

    Such a head gives a position the share π_j of the j-th prefix token, the same at every position and for every image,
    and 1 − Σ_j π_j of the mean of the values around it under the kernel. A prefix token has no position; its weights
    for all tokens are fixed, or its query attends as before. Without heads by content there is no query, key and
    softmax.

    Attributes:
        value: W_val with its bias; first the heads that average, in the order of `means`, then the others.
        output: W_out with its bias, with its columns in that order.
        means: The heads that average.
        prefix_shares: π, (heads that average, prefix tokens).
        prefix_maps: Weights of each prefix token's own query, (heads that average, prefix tokens, tokens).
        content: The heads that attend as before, or None.
        at_prefix: The heads that average, for the queries of prefix tokens; None if these have fixed weights.
        grid: Sizes of the grid on which the heads were measured.
        one_grid: Whether it is for that grid alone, because queries of prefix tokens have fixed weights.
        source: Name of the convolution that cuts images into the grid; empty if none does, which leaves one grid.
        after: What follows the output: its dropout.
    """

    def __init__(
        self,
        layer: TokenAttention,
        measured: DisplacedHeads,
        report: LayerReport,
        calls: CallStack,
        *,
        attends: bool = False,
    ) -> None:
        """Copies a layer, of which some heads were measured and average; the others attend as before.

        The grid of an image is what `calls` has noted last of the convolution in the report. Queries of prefix tokens
        attend, or have fixed weights.
        """
        super().__init__()
        others = [head for head in range(layer.heads) if head not in measured.heads]
        rows = _head_rows([*measured.heads, *others], layer.head_width)
        self.heads = layer.heads
        self.grid = report.grid
        self.source = report.grid_source
        self.calls = calls
        self.value = part_of(layer.value, rows)
        self.content = OtherHeads(layer, others) if others else None
        self.one_grid = report.prefix > 0 and not attends
        attends &= report.prefix > 0
        self.at_prefix = OtherHeads(layer, measured.heads) if attends else None
        weight = layer.value.weight
        self.output = part_of(layer.output, torch.arange(layer.output.out_features), rows)
        self.after = layer.after
        wide = torch.promote_types(weight.dtype, torch.float32)

        def parameter(numbers: Tensor) -> nn.Parameter:
            # An empty parameter gets no gradient, which DistributedDataParallel refuses.
            learns = weight.requires_grad and numbers.numel() > 0
            return nn.Parameter(numbers.to(weight.device, wide, copy=True), learns)

        self.means = KernelMeans(measured.kernel, measured.first)
        self.means.kernel = parameter(measured.kernel)
        self.prefix_shares = parameter(measured.prefix_shares)
        maps = measured.prefix_maps
        if attends:
            maps = maps[..., :0]
        self.prefix_maps = parameter(maps)

    @property
    def prefix(self) -> int:
        """Number of tokens before the positions."""
        return self.prefix_shares.shape[1]

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Applies the attention to prefix tokens, then positions row by row; a wrong number raises ShapeError."""
        sizes = self._sizes(tokens.shape[1])
        values = _split_heads(self.value(tokens), self.heads)
        averaging = len(self.means.kernel)
        parts = [self._averaged(tokens, values[:, :averaging], sizes)]
        if self.content is not None:
            parts.append(self.content(tokens, values[:, averaging:]))
        y = torch.cat(parts, dim=1)
        y = rearrange(y, "batch heads tokens width -> batch tokens (heads width)")
        return self.after(self.output(y))

    def _averaged(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        values: Float[Tensor, "batch heads tokens head_width"],
        sizes: tuple[int, ...],
    ) -> Float[Tensor, "batch heads tokens head_width"]:
        """Averages values at positions by displacement, and those of all tokens for prefix tokens."""
        prefix = self.prefix
        around = self.means(values[:, :, prefix:], sizes)
        if not prefix:
            return around
        shares = self.prefix_shares.to(values.dtype)
        rest = 1 - self.prefix_shares.sum(1)
        rest = rest.to(values.dtype)[:, None, None]
        around = rest * around + torch.matmul(shares[:, None], values[:, :, :prefix])
        if self.at_prefix is None:
            first = torch.matmul(self.prefix_maps.to(values.dtype), values)
        else:
            first = self.at_prefix(tokens, values, prefix)
        return torch.cat([first, around], dim=2)

    def _sizes(self, tokens: int) -> tuple[int, ...]:
        """Returns the sizes of the grid, or raises ShapeError if it is another and must not, or does not fit."""
        if len(self.grid) == 1 and not self.one_grid:
            return (tokens - self.prefix,)
        sizes = self.calls.grid(self.source, tokens - self.prefix) or self.grid
        if self.one_grid:
            require_sizes(self.grid, sizes)
        expected = self.prefix + prod(sizes)
        if tokens != expected:
            raise ShapeError(
                f"tokens must be {expected} ({self.prefix} prefix and {times(sizes)} positions), as where the heads"
                f" were measured, but are {tokens}"
            )
        return sizes
