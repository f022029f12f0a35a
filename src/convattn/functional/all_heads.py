"""Attention of all heads together, in large products: on a CPU in bfloat16."""

from collections.abc import Sequence
from functools import partial
from math import gcd, prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.functional.reference import attend_by_axis
from convattn.functional.torch_modes import (
    at_least_float32,
    backward_to_differentiate,
    needs_own_operations,
    product_dtype,
)
from convattn.functional.workspace import Workspace, chunks, piece_bytes

_ALIGNED = 32
"""Images times channels is a multiple of this: other products take up to three times as long (oneDNN, AMX)."""


def attention_of_all_heads(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels"],
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `separable_attention` along one or two axes on a CPU, with gradients in the dtypes given."""
    return _AllHeads.apply(keys.to(product_dtype(keys)), maps, *weights).movedim(-1, 1)


class _AllHeads(torch.autograd.Function):
    """Attends along each axis, then applies all heads' matrices at once."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, maps, *weights)
        means = _Planes(weights, pixels.shape[1], pixels)
        matrix = _side_by_side(maps, pixels.dtype)
        rows, *cols = means.queries
        y = pixels.new_empty(len(pixels), rows, *cols, len(matrix))
        with torch.autocast("cpu", enabled=False):
            for images in chunks(len(pixels), means.images):
                by_rows = means.along_rows(means.lay_out(pixels[images], "pixels"))
                mixed = means.together(means.along_cols(by_rows))
                out = means.space.get("outputs", len(mixed), len(matrix))
                outputs = torch.mm(mixed, matrix.mT, out=out).view(*cols or [1], rows, -1)
                means.restore(outputs, y[images].movedim(-1, 1))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, *weights = ctx.saved_tensors
        needs_pixels, needs_maps, *needs_weights = ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            compute = partial(_by_axis, pixels.dtype)
            inputs = (pixels, maps, *weights)
            return tuple(backward_to_differentiate(compute, inputs, ctx.needs_input_grad, gradient))
        means = _Planes(weights, pixels.shape[1], pixels)
        matrix = _side_by_side(maps, pixels.dtype)
        wide = at_least_float32(pixels.dtype)
        by_pixels = torch.empty_like(pixels) if needs_pixels else None
        by_matrix = torch.zeros_like(matrix, dtype=wide) if needs_maps else None
        by_weights = []
        for weight, needed in zip(weights, needs_weights, strict=True):
            by_weights.append(torch.zeros_like(weight, dtype=wide) if needed else None)
        by_row_weights, by_col_weights = [*by_weights, None][:2]
        with torch.autocast("cpu", enabled=False):
            for images in chunks(len(pixels), means.images):
                laid_out = means.lay_out(pixels[images], "pixels")
                by_rows = means.along_rows(laid_out)
                by_both = means.along_cols(by_rows)
                mixed = means.together(by_both)
                upstream = means.lay_out(gradient[images].movedim(-1, 1), "outputs")
                upstream = upstream.view(-1, len(matrix))
                if by_matrix is not None:
                    by_matrix += torch.mm(upstream.mT, mixed)
                if by_pixels is None and not any(needs_weights):
                    continue
                by_mixed = means.apart(torch.mm(upstream, matrix, out=mixed), into=by_both)
                back = means.cols_backward(by_mixed, by_rows, by_col_weights)
                back = means.rows_backward(back, laid_out, by_row_weights)
                if by_pixels is not None:
                    means.restore(back, by_pixels[images])
        by_maps = None
        if by_matrix is not None:
            by_maps = by_matrix.unflatten(1, (len(maps), -1)).transpose(0, 1).to(maps.dtype)
        narrow = []
        for by_weight, weight in zip(by_weights, weights, strict=True):
            narrow.append(None if by_weight is None else by_weight.to(weight.dtype))
        return by_pixels, by_maps, *narrow


def _by_axis(dtype: torch.dtype, pixels: Tensor, maps: Tensor, *weights: Tensor) -> Tensor:
    """Computes what `_AllHeads` does, in operations that torch can differentiate."""
    narrow = [weight.to(dtype) for weight in weights]
    return attend_by_axis(narrow, pixels, maps.to(dtype)).movedim(1, -1)


def _side_by_side(maps: Tensor, dtype: torch.dtype) -> Float[Tensor, "outputs inputs"]:
    return maps.to(dtype).transpose(0, 1).flatten(1)


class _Planes:
    """Means of all heads for some images at a time, in memory that each part of the batch uses again.

    A single axis counts as the rows of one column.
    """

    def __init__(self, weights: Sequence[Tensor], channels: int, like: Tensor) -> None:
        rows, *cols = (weight.to(like.dtype) for weight in weights)
        self.heads, self.channels = len(rows), channels
        self.queries = [weight.shape[1] for weight in weights]
        self.rows = rows.flatten(0, 1)
        self.cols = cols[0] if cols else None
        # Products with transposed views take up to twice as long.
        self.rows_back = self.rows.mT.contiguous()
        self.cols_back = None if self.cols is None else self.cols.mT.contiguous()
        pixels = max(prod(self.queries), prod(weight.shape[2] for weight in weights))
        numbers = pixels * self.heads * channels
        fitting = piece_bytes(like.device) // max(1, numbers * like.element_size())
        aligned = _ALIGNED // gcd(_ALIGNED, channels)
        self.images = max(1, fitting // aligned) * aligned
        self.space = Workspace(like)

    def lay_out(
        self, x: Float[Tensor, "images channels *spatial"], name: str
    ) -> Float[Tensor, "cols rows inner"]:
        """Copies pixels, columns first, images and channels last."""
        plane = x[..., None] if self.cols is None else x
        pixels = plane.permute(3, 2, 0, 1)
        return self.space.get(name, *pixels.shape).copy_(pixels).flatten(2)

    def restore(
        self,
        pixels: Float[Tensor, "cols rows inner"],
        into: Float[Tensor, "images channels *spatial"],
    ) -> None:
        """Undoes `lay_out`."""
        plane = pixels.unflatten(2, into.shape[:2]).permute(2, 3, 1, 0)
        into.copy_(plane[..., 0] if self.cols is None else plane)

    def along_rows(
        self, pixels: Float[Tensor, "cols rows inner"]
    ) -> Float[Tensor, "heads cols means"]:
        """Takes the means along the rows."""
        out = self.space.get("rows", len(pixels), len(self.rows), pixels.shape[2])
        return self._by_head(torch.bmm(self.rows.expand(len(pixels), -1, -1), pixels, out=out))

    def along_cols(
        self, rows: Float[Tensor, "heads cols inner"]
    ) -> Float[Tensor, "heads cols_out inner"]:
        """Takes the means along the columns, if there are any."""
        if self.cols is None:
            return rows
        out = self.space.get("cols", *self.cols.shape[:2], rows.shape[2])
        return torch.bmm(self.cols, rows, out=out)

    def together(
        self, means: Float[Tensor, "heads cols_out inner"]
    ) -> Float[Tensor, "pixels inputs"]:
        """Copies means, the heads of a pixel side by side."""
        by_head = means.view(self.heads, -1, self.channels)
        out = self.space.get("together", by_head.shape[1], self.heads, self.channels)
        return out.copy_(by_head.transpose(0, 1)).flatten(1)

    def apart(
        self,
        together: Float[Tensor, "pixels inputs"],
        into: Float[Tensor, "heads cols_out inner"],
    ) -> Float[Tensor, "heads cols_out inner"]:
        """Undoes `together`."""
        by_pixel = together.view(-1, self.heads, self.channels)
        into.view(self.heads, -1, self.channels).copy_(by_pixel.transpose(0, 1))
        return into

    def cols_backward(
        self, upstream: Tensor, means: Tensor, into: Tensor | None
    ) -> Float[Tensor, "heads cols inner"]:
        """Backpropagates through `along_cols`, adding the weights' gradient to `into`."""
        if self.cols_back is None:
            return upstream
        if into is not None:
            for head in range(self.heads):  # half as long as one product of all heads
                into[head] += torch.mm(upstream[head], means[head].mT)
        inner = upstream.shape[2] // self.queries[0]
        back = self.space.get("back", means.shape[1], len(self.rows), inner)
        return torch.bmm(self.cols_back, upstream, out=self._by_head(back))

    def rows_backward(
        self, upstream: Tensor, pixels: Tensor, into: Tensor | None
    ) -> Float[Tensor, "cols rows inner"]:
        """Backpropagates through `along_rows`, adding the weights' gradient to `into`."""
        rows = upstream.transpose(0, 1).reshape(len(pixels), len(self.rows), -1)
        if into is not None:
            into += torch.bmm(rows, pixels.mT).sum(0, dtype=into.dtype).view(into.shape)
        back = self.space.get("pixels back", *pixels.shape)
        return torch.bmm(self.rows_back.expand(len(pixels), -1, -1), rows, out=back)

    def _by_head(
        self, rows: Float[Tensor, "cols stacked inner"]
    ) -> Float[Tensor, "heads cols means"]:
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)
