"""Heads that attend as before beside those that became convolutions."""

from collections.abc import Sequence
from math import isqrt
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.adapters.native import linear
from convattn.adapters.replacement.readers import ReadAttention


@final
class ContentHeads(nn.Module):
    """Heads that attend by content as before: softmax(s q kᵀ) v, with the query and key rows of these heads only."""

    def __init__(self, layer: ReadAttention, heads: Sequence[int]) -> None:
        """Takes over some heads of a layer."""
        super().__init__()
        rows = head_rows(heads, layer.head_width)
        self.query, self.key = some_rows(layer.query, rows), some_rows(layer.key, rows)
        self.query_norm, self.key_norm = layer.query_norm, layer.key_norm
        self.heads, self.dropout, self.scale = len(heads), layer.dropout, layer.scale

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        values: Float[Tensor, "batch heads tokens head_width"],
        present: Bool[Tensor, "batch tokens"] | None,
    ) -> Float[Tensor, "batch heads tokens head_width"]:
        """Attends to the tokens that are present."""
        query = self.query_norm(split_heads(self.query(tokens), self.heads))
        key = self.key_norm(split_heads(self.key(tokens), self.heads))
        mask = None if present is None else present[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(query, key, values, mask, dropout, scale=self.scale)


@final
class GatedHeads(nn.Module):
    """Gated heads that attend as before: ((1 − σ(λ)) softmax(s q kᵀ) + σ(λ) softmax(p)) v.

    The score of position is p = w · (columns, rows, columns² + rows²) + b, of the displacement from query to key on a
    square of √tokens rows, whatever the grid of patches: timm's layer is not told its rows and columns either.
    Source: d'Ascoli et al. 2021 (ConViT), equations 6 and 7.
    """

    def __init__(self, layer: ReadAttention, heads: Sequence[int]) -> None:
        """Takes over some heads of a layer."""
        super().__init__()
        assert layer.gated is not None
        assert layer.scale is not None
        rows, position, gates = head_rows(heads, layer.head_width), layer.gated.position, layer.gated.gates
        self.query, self.key = some_rows(layer.query, rows), some_rows(layer.key, rows)
        self.position = some_rows(position, torch.tensor(list(heads)))
        self.gates = nn.Parameter(gates.detach()[list(heads)].clone(), requires_grad=gates.requires_grad)
        self.heads, self.dropout, self.scale = len(heads), layer.dropout, layer.scale

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        values: Float[Tensor, "batch heads tokens head_width"],
        present: Bool[Tensor, "batch tokens"] | None,
    ) -> Float[Tensor, "batch heads tokens head_width"]:
        """Attends to the positions, all of which are present."""
        assert present is None
        query, key = (split_heads(part(tokens), self.heads) for part in (self.query, self.key))
        content = torch.matmul(query, key.mT * self.scale).softmax(-1)
        shifts = _shifts(isqrt(tokens.shape[1]), self.gates)
        position = rearrange(self.position(shifts), "query key heads -> heads query key")
        gates = self.gates.sigmoid()[:, None, None]
        weights = (1 - gates) * content + gates * position.softmax(-1)
        return torch.matmul(functional.dropout(weights, self.dropout, self.training), values)


def _shifts(side: int, like: Tensor) -> Float[Tensor, "positions positions 3"]:
    """Returns columns, rows and squared length of the displacement from each position of a square to each other."""
    steps = torch.arange(side, dtype=like.dtype, device=like.device)
    row, col = torch.cartesian_prod(steps, steps).unbind(1)
    down, right = row[None, :] - row[:, None], col[None, :] - col[:, None]
    return torch.stack([right, down, right**2 + down**2], dim=-1)


def head_rows(heads: Sequence[int], width: int) -> Tensor:
    """Returns the rows of some heads."""
    return (torch.tensor(list(heads))[:, None] * width + torch.arange(width)).flatten()


def some_rows(whole: nn.Linear, rows: Tensor) -> nn.Linear:
    """Copies some rows of a linear map."""
    return linear(whole.weight[rows], None if whole.bias is None else whole.bias[rows], like=whole)


def split_heads(tokens: Float[Tensor, "batch tokens inner"], heads: int) -> Float[Tensor, "batch heads tokens width"]:
    """Splits the channels into heads, which stand one after the other."""
    return rearrange(tokens, "batch tokens (heads width) -> batch heads tokens width", heads=heads)
