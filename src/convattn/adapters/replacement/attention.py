"""Multi-head attention of which some or all heads average by displacement."""

from collections.abc import Sequence
from math import prod
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from convattn.adapters.native import linear
from convattn.adapters.replacement.content_heads import ContentHeads, GatedHeads, head_rows, some_rows, split_heads
from convattn.adapters.replacement.kernel_means import KernelMeans
from convattn.adapters.replacement.measured import MeasuredHeads
from convattn.adapters.replacement.readers import ReadAttention
from convattn.errors import ShapeError


@final
class ConvolvedAttention(nn.Module):
    """Attention over prefix tokens and positions, of which some heads average values by displacement.

    Such a head gives a position the share π_j of the j-th prefix token, the same at every position and for every image,
    and 1 − Σ_j π_j of the mean of the values around it under the kernel. A prefix token has no position; its weights
    for all tokens are fixed. Heads of which the kernels differ much in size run apart. Without heads by content there
    is no query, key and softmax.

    Attributes:
        value: W_val with its bias; first the heads that average, in the order of `means`, then the others.
        output: W_out with its bias, with its columns in that order; None if another module applies it.
        means: The heads that average.
        prefix_shares: π, (heads that average, prefix tokens).
        prefix_maps: Weights of each prefix token's own query, (heads that average, prefix tokens, tokens).
        content: The heads that attend as before, or None.
        back: Where each head of the layer is in that order, if no `output` is there to put them right.
        grid: Sizes of the grid of positions; None for a sequence of any length.
        after: What follows the output: its dropout.
    """

    back: Tensor | None

    def __init__(self, layer: ReadAttention, groups: Sequence[MeasuredHeads], grid: tuple[int, ...] | None) -> None:
        """Takes over a layer, with heads that average in groups of like size; the others attend as before."""
        super().__init__()
        moved = [head for group in groups for head in group.heads]
        kept = [head for head in range(layer.heads) if head not in moved]
        order, width = [*moved, *kept], layer.head_width
        rows = head_rows(order, width)
        self.value = some_rows(layer.value, rows)
        out, back = layer.output, torch.argsort(torch.tensor(order, device=layer.value.weight.device))
        self.output = None if out is None else linear(out.weight[:, rows], out.bias, like=out)
        self.register_buffer("back", back if out is None and order != sorted(order) else None, persistent=False)
        like = layer.value.weight
        kind = {"device": like.device, "dtype": torch.promote_types(like.dtype, torch.float32)}
        means = nn.ModuleList(KernelMeans(group.kernel.to(**kind), group.first) for group in groups)
        self.means = means.requires_grad_(like.requires_grad)
        shares, maps = (
            torch.cat(parts).to(**kind)
            for parts in zip(*((group.prefix_shares, group.prefix_maps) for group in groups), strict=True)
        )
        self.prefix_shares = nn.Parameter(shares, requires_grad=like.requires_grad)
        self.prefix_maps = nn.Parameter(maps, requires_grad=like.requires_grad)
        attend = ContentHeads if layer.gated is None else GatedHeads
        self.content = attend(layer, kept) if kept else None
        self.heads, self.moved, self.grid, self.after = layer.heads, len(moved), grid, layer.after

    @property
    def prefix(self) -> int:
        """Number of tokens before the positions."""
        return self.prefix_shares.shape[1]

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"], present: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Applies the attention to a batch of tokens.

        Args:
            tokens: Prefix tokens, then positions row by row.
            present: Tokens that may be attended to; None means all. Prefix tokens always are.

        Returns:
            Tokens in the same order.

        Raises:
            ShapeError: The number of tokens is not that of prefix tokens and positions.
        """
        sizes = self._sizes(tokens.shape[1])
        values = split_heads(self.value(tokens), self.heads)
        moved, kept = values.split([self.moved, self.heads - self.moved], dim=1)
        parts = [self._averaged(moved, sizes, present)]
        if self.content is not None:
            parts.append(self.content(tokens, kept, present))
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self.back is not None:
            y = y[:, self.back]
        y = rearrange(y, "batch heads tokens width -> batch tokens (heads width)")
        return self.after(y if self.output is None else self.output(y))

    def _averaged(
        self, values: Float[Tensor, "batch heads tokens width"], sizes: tuple[int, ...], present: Tensor | None
    ) -> Float[Tensor, "batch heads tokens width"]:
        """Averages values at positions, and those of all tokens for prefix tokens."""
        prefix, cells = values.split([self.prefix, values.shape[2] - self.prefix], dim=2)
        there = None if present is None else present[:, self.prefix :]
        counts = [means.heads for means in self.means]
        pairs = zip(self.means, cells.split(counts, dim=1), strict=True)
        around = torch.cat([means(part, sizes, there) for means, part in pairs], dim=1)
        if not self.prefix:
            return around
        shares = self.prefix_shares.to(values.dtype)
        rest = 1 - shares.sum(1)
        around = rest[:, None, None] * around + torch.matmul(shares[:, None], prefix)
        maps = self.prefix_maps
        if present is not None:
            maps = maps * present[:, None, None]
            maps = maps / maps.sum(-1, keepdim=True)
        return torch.cat([torch.matmul(maps.to(values.dtype), values), around], dim=2)

    def _sizes(self, tokens: int) -> tuple[int, ...]:
        if self.grid is None:
            return (tokens - self.prefix,)
        if tokens != self.prefix + prod(self.grid):
            cells = " x ".join(map(str, self.grid))
            expected = f"{self.prefix + prod(self.grid)} ({self.prefix} prefix and {cells} positions)"
            raise ShapeError(f"tokens must be {expected}, as where the heads were measured, but are {tokens}")
        return self.grid
