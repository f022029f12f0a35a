"""A peer: the same function by the fused attention of torch."""

from collections.abc import Sequence
from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.functional import displacement_scores, pad_keys
from convattn.grid import Axis
from convattn.layers import RelativeAttention

_QUERY_WIDTH = 16
"""Width of the queries, all zero, where scores do not depend on content; fused kernels want at least 16."""


@final
class DenseBiasAttention(nn.Module):
    """The function of an attention layer by `scaled_dot_product_attention`, with a bias for every query and key.

    The bias is made from the encoding in every call, as in the layer itself. Without content, queries and keys are
    zero; with it they are the layer's own. All heads see the same pixels; the heads' matrices follow.

    Attributes:
        layer: The layer whose parameters it uses; without groups, gate, dropout and projected positions.
    """

    def __init__(self, layer: RelativeAttention) -> None:
        """Takes over the parameters of a layer."""
        super().__init__()
        self.layer = layer

    def forward(
        self, x: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch outputs rows cols"]:
        """Returns what the layer returns, but for rounding."""
        axes, values = _axes_and_values(self.layer, x)
        if self.layer.content is None:
            query, key = (_zeros(values, size) for size in (_count(axes), values.shape[-2]))
            bias = _bias(self.layer, axes, values)[None]
        else:
            query, key, bias = self._content(x, axes)
        mixed = functional.scaled_dot_product_attention(
            query, key, values, attn_mask=bias.to(values.dtype)
        )
        return _combine(self.layer, mixed, axes)

    def _content(self, x: Tensor, axes: Sequence[Axis]) -> tuple[Tensor, Tensor, Tensor]:
        """Makes queries, keys and the bias q·r_δ / √width of a layer of which every pixel is query and key."""
        content = self.layer.content
        assert content is not None
        assert content.position is None
        assert content.content_bias is None
        pixels = rearrange(x, "batch channels rows cols -> batch (rows cols) channels")
        query, key = (
            rearrange(
                part(pixels),
                "batch pixels (heads width) -> batch heads pixels width",
                heads=content.num_heads,
            )
            for part in (content.query, content.key)
        )
        features = self.layer.encoding.features(_displacements(axes, query))
        bias = einsum(
            query,
            features,
            "batch heads queries width, queries keys width -> batch heads queries keys",
        ) / (query.shape[-1] ** 0.5)
        return query, key, bias


def _axes_and_values(layer: RelativeAttention, x: Tensor) -> tuple[Sequence[Axis], Tensor]:
    """Returns queries and keys along each axis, and the pixels as every head's values."""
    pixels = rearrange(
        pad_keys(x, layer.geometry), "batch channels rows cols -> batch 1 (rows cols) channels"
    )
    return layer.geometry.axes(x.shape[2:]), pixels.expand(-1, layer.num_heads, -1, -1)


def _count(axes: Sequence[Axis]) -> int:
    rows, cols = axes
    return len(rows.queries) * len(cols.queries)


def _zeros(values: Tensor, count: int) -> Tensor:
    return values.new_zeros(1, 1, 1, _QUERY_WIDTH).expand(*values.shape[:2], count, -1)


def _bias(
    layer: RelativeAttention, axes: Sequence[Axis], like: Tensor
) -> Float[Tensor, "heads queries keys"]:
    dtype = torch.promote_types(like.dtype, torch.float32)
    return displacement_scores(layer.encoding.table(axes, dtype, like.device), axes)


def _displacements(axes: Sequence[Axis], like: Tensor) -> Float[Tensor, "queries keys dims"]:
    """Returns key − query for all pixels of a grid of which every pixel is both."""
    grids = torch.meshgrid(
        *(torch.arange(axis.keys, device=like.device) for axis in axes), indexing="ij"
    )
    pixels = torch.stack(grids, dim=-1).flatten(0, -2).to(like.dtype)
    return pixels[None] - pixels[:, None]


def _combine(layer: RelativeAttention, mixed: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Applies the heads' matrices and adds the bias: y = b + Σ_h W_h mixed_h."""
    y = einsum(
        mixed,
        layer.values.maps(),
        "batch heads queries channels, heads outputs channels -> batch outputs queries",
    ).unflatten(-1, [len(axis.queries) for axis in axes])
    return y if layer.bias is None else y + layer.bias[:, None, None]
