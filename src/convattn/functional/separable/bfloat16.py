"""The same attention in bfloat16 on a CPU: few large products for all heads, as matrix units such as AMX want them.

::

    pixels of some images             (cols, rows, images · channels)
      times the rows of all heads     (cols, heads · rows_out, images · channels)
      times the columns               (heads, cols_out, rows_out · images · channels)
      with the heads side by side     (cols_out · rows_out · images, heads · channels)
      times W                         (cols_out · rows_out · images, outputs)

The last product adds the heads up in float32 and rounds once; means are rounded after each axis. Gradients of W and of
the weights are summed over parts of the batch in float32. Means are computed again for gradients.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.derivatives import backward_to_differentiate, needs_own_operations
from convattn.functional.separable.products import attention_as_products
from convattn.functional.separable.tiles import Workspace, chunks

_CACHE = 1 << 22
"""Bytes of the means of all heads that are worked on at a time, about twice the second-level cache of a core."""

_ALIGNED = 32
"""Images times channels is a multiple of this: other products take up to three times as long (oneDNN, AMX)."""


def bfloat16_attention(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels"],
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention` along one or two axes in bfloat16, with gradients in the dtypes given."""
    return _Bfloat16.apply(keys.bfloat16(), maps, *weights).movedim(-1, 1)


class _Means:
    """Means of all heads for some images at a time, in memory that each part of the batch uses again."""

    # A single axis counts as the rows of one column.

    def __init__(self, weights: Sequence[Tensor], channels: int, like: Tensor) -> None:
        rows, *cols = (weight.to(like.dtype) for weight in weights)
        self.heads, self.channels, self.queries = len(rows), channels, [w.shape[1] for w in weights]
        self.rows, self.cols = rows.flatten(0, 1), cols[0] if cols else None
        self.rows_back = self.rows.mT.contiguous()  # products with transposed views take up to twice as long
        self.cols_back = None if self.cols is None else self.cols.mT.contiguous()
        pixels = max(math.prod(self.queries), math.prod(w.shape[2] for w in weights))
        fitting = _CACHE // max(1, pixels * self.heads * channels * like.element_size())
        aligned = _ALIGNED // math.gcd(_ALIGNED, channels)
        self.images = max(1, fitting // aligned) * aligned
        self.space = Workspace(like)

    def lay_out(self, x: Float[Tensor, "images channels *spatial"], name: str) -> Float[Tensor, "cols rows inner"]:
        """Copies pixels, columns first, images and channels last."""
        pixels = (x[..., None] if self.cols is None else x).permute(3, 2, 0, 1)
        return self.space.get(name, *pixels.shape).copy_(pixels).flatten(2)

    def restore(
        self, pixels: Float[Tensor, "cols rows inner"], into: Float[Tensor, "images channels *spatial"]
    ) -> None:
        """Undoes `lay_out`."""
        apart = pixels.unflatten(2, into.shape[:2]).permute(2, 3, 1, 0)
        into.copy_(apart[..., 0] if self.cols is None else apart)

    def along_rows(self, pixels: Float[Tensor, "cols rows inner"]) -> Float[Tensor, "heads cols means"]:
        """Takes the means along the rows."""
        out = self.space.get("rows", len(pixels), len(self.rows), pixels.shape[2])
        return self._by_head(torch.bmm(self.rows.expand(len(pixels), -1, -1), pixels, out=out))

    def along_cols(self, rows: Float[Tensor, "heads cols inner"]) -> Float[Tensor, "heads cols_out inner"]:
        """Takes the means along the columns, if there are any."""
        if self.cols is None:
            return rows
        return torch.bmm(self.cols, rows, out=self.space.get("cols", *self.cols.shape[:2], rows.shape[2]))

    def together(self, means: Float[Tensor, "heads cols_out inner"]) -> Float[Tensor, "pixels inputs"]:
        """Copies means, the heads of a pixel side by side."""
        apart = means.view(self.heads, -1, self.channels)
        out = self.space.get("together", apart.shape[1], self.heads, self.channels)
        return out.copy_(apart.transpose(0, 1)).flatten(1)

    def cols_backward(self, upstream: Tensor, means: Tensor, into: Tensor | None) -> Float[Tensor, "heads cols inner"]:
        """Backpropagates through `along_cols`, adding the weights' gradient to `into`."""
        if self.cols_back is None:
            return upstream
        if into is not None:
            for head in range(self.heads):  # half as long as one product of all heads
                into[head] += torch.mm(upstream[head], means[head].mT)
        inner = upstream.shape[2] // self.queries[0]
        back = self.space.get("back", means.shape[1], len(self.rows), inner)
        return torch.bmm(self.cols_back, upstream, out=self._by_head(back))

    def rows_backward(self, upstream: Tensor, pixels: Tensor, into: Tensor | None) -> Float[Tensor, "cols rows inner"]:
        """Backpropagates through `along_rows`, adding the weights' gradient to `into`."""
        rows = upstream.transpose(0, 1).reshape(len(pixels), len(self.rows), -1)
        if into is not None:
            into += torch.bmm(rows, pixels.mT).sum(0, dtype=into.dtype).view(into.shape)
        back = self.space.get("pixels back", *pixels.shape)
        return torch.bmm(self.rows_back.expand(len(pixels), -1, -1), rows, out=back)

    def _by_head(self, rows: Float[Tensor, "cols stacked inner"]) -> Float[Tensor, "heads cols means"]:
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)


class _Bfloat16(torch.autograd.Function):
    """Attends along each axis, then applies all heads' matrices at once."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        means, matrix = _Means(weights, pixels.shape[1], pixels), _side_by_side(maps, pixels.dtype)
        y = pixels.new_empty(len(pixels), *means.queries, len(matrix))
        with torch.autocast("cpu", enabled=False):
            for images in chunks(len(pixels), means.images):
                mixed = means.together(means.along_cols(means.along_rows(means.lay_out(pixels[images], "pixels"))))
                out = torch.mm(mixed, matrix.mT, out=means.space.get("outputs", len(mixed), len(matrix)))
                means.restore(out.view(*_cols_and_rows(means.queries), -1), y[images].movedim(-1, 1))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            compute = partial(_as_products, pixels.dtype)
            return tuple(backward_to_differentiate(compute, (pixels, maps, *weights), needs, gradient))
        means, matrix = _Means(weights, pixels.shape[1], pixels), _side_by_side(maps, pixels.dtype)
        dx = torch.empty_like(pixels) if needs[0] else None
        dmatrix = torch.zeros(matrix.shape) if needs[1] else None
        dweights = [
            torch.zeros(weight.shape) if need else None for weight, need in zip(weights, needs[2:], strict=True)
        ]
        drows, dcols = [*dweights, None][:2]
        with torch.autocast("cpu", enabled=False):
            for images in chunks(len(pixels), means.images):
                laid_out = means.lay_out(pixels[images], "pixels")
                by_rows = means.along_rows(laid_out)
                by_both = means.along_cols(by_rows)
                mixed = means.together(by_both)
                dy = means.lay_out(gradient[images].movedim(-1, 1), "outputs").view(-1, len(matrix))
                if dmatrix is not None:
                    dmatrix += torch.mm(dy.mT, mixed)
                if dx is None and not any(needs[2:]):
                    continue
                dmixed = torch.mm(dy, matrix, out=mixed).view(-1, means.heads, means.channels)
                by_both.view(means.heads, -1, means.channels).copy_(dmixed.transpose(0, 1))
                back = means.rows_backward(means.cols_backward(by_both, by_rows, dcols), laid_out, drows)
                if dx is not None:
                    means.restore(back, dx[images])
        dmaps = None if dmatrix is None else dmatrix.unflatten(1, (len(maps), -1)).transpose(0, 1).to(maps.dtype)
        return dx, dmaps, *(d if d is None else d.to(w.dtype) for d, w in zip(dweights, weights, strict=True))


def _cols_and_rows(queries: Sequence[int]) -> tuple[int, int]:
    rows, *cols = queries
    return (*cols, 1)[0], rows


def _side_by_side(maps: Tensor, dtype: torch.dtype) -> Float[Tensor, "outputs inputs"]:
    return maps.to(dtype).transpose(0, 1).flatten(1)


def _as_products(dtype: torch.dtype, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_Bfloat16` does, in operations that torch can differentiate."""
    y = attention_as_products([weight.to(dtype) for weight in weights], pixels, maps.to(dtype), groups=1)
    return y.movedim(1, -1)
