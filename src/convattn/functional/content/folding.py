"""Maps and tables from which content scores are computed, and the folding of two maps into one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.reference import query_pixels
from convattn.grid import Axis

PIECE_BYTES = 1 << 25
"""Bytes of scores, weights, queries and keys of the images or rows of queries that are computed at a time."""


@dataclass(frozen=True)
class ContentMaps:
    """The linear maps from pixels to queries and keys, all heads in one matrix."""

    query: Float[Tensor, "heads_width channels"]  # W_q
    key: Float[Tensor, "heads_width channels"] | None  # W_k; None if the pixels are the keys of all heads
    query_bias: Float[Tensor, " heads_width"] | None = None
    key_bias: Float[Tensor, " heads_width"] | None = None
    content_bias: Float[Tensor, "heads width"] | None = None  # u

    def project(
        self, keys: Float[Tensor, "images channels *spatial"], axes: Sequence[Axis], heads: int
    ) -> tuple[Float[Tensor, "images heads queries width"], Float[Tensor, "images heads_or_one keys width"]]:
        """Computes queries, without the content bias, and keys from key images.

        Args:
            keys: Key images.
            axes: Queries and keys along each axis.
            heads: Number of heads.

        Returns:
            Queries and keys.
        """
        pattern = "images pixels (heads width) -> images heads pixels width"
        query = functional.linear(pixels_last(query_pixels(keys, axes)), self.query, self.query_bias)
        query, pixels = rearrange(query, pattern, heads=heads), pixels_last(keys)
        if self.key is None:
            return query, pixels[:, None]
        return query, rearrange(functional.linear(pixels, self.key, self.key_bias), pattern, heads=heads)


@dataclass(frozen=True)
class PositionTables:
    """What the scores take from displacements, as tables that run from the lowest to the highest displacement.

    Scores and features that are sums over axes come as one table per axis; others as one table of all displacements,
    which is one table over all axes at once.
    """

    # s_h, one (heads, displacements of the axis) per axis, or one (heads, *displacements)
    scores: Sequence[Float[Tensor, "heads *_"]]
    # Ŵr_δ (heads, displacements, width), or r_δ shared by all heads (1, displacements, width): one per axis, or a
    # single one over all displacements, flattened; empty without content–position scores
    features: Sequence[Float[Tensor, "heads_or_one _ width"]] = ()


def score_products(images: int, channels: int, queries: int, keys: int, width: int) -> tuple[int, int]:
    """Counts the multiplications per head for queries, keys and scores: with W_q and W_k apart, and folded."""
    apart = images * width * (channels * (queries + keys) + queries * keys)
    folded = channels * channels * (width + images * queries) + images * channels * queries * keys
    return apart, folded


def fold(
    content: ContentMaps, position: PositionTables, heads: int, dtype: torch.dtype
) -> tuple[ContentMaps, PositionTables]:
    """Folds W_q and W_k into one matrix, q·k = (W_kᵀ q)·x and q·r = x·(W_qᵀ r) + b·r; everything scaled by 1/√width."""
    # The pixels are then the keys, and features of pixels end in a one. The bias of the keys adds the same number to
    # all scores of a query, and the softmax cancels it: it stays in the graph with a gradient of zero.
    assert content.key is not None
    wide = torch.promote_types(dtype, torch.float32)
    query, key = (
        rearrange(matrix.to(wide), "(heads width) channels -> heads width channels", heads=heads)
        for matrix in (content.query, content.key)
    )
    query = query * query.shape[1] ** -0.5
    bias = query.new_zeros(heads, query.shape[1])
    if content.query_bias is not None:
        bias = content.query_bias.to(wide).view(heads, -1) * query.shape[1] ** -0.5
    features = [
        torch.cat([table.to(wide) @ query, table.to(wide) @ bias[..., None]], dim=-1) for table in position.features
    ]
    if content.content_bias is not None:
        bias = bias + content.content_bias.to(wide) * query.shape[1] ** -0.5
    folded = einsum(bias, key, "heads width, heads width channels -> heads channels").flatten()
    if content.key_bias is not None:
        folded = folded + 0 * content.key_bias.to(wide).sum()
    matrix = einsum(key, query, "heads width channels, heads width inputs -> heads channels inputs").flatten(0, 1)
    maps = ContentMaps(matrix.to(dtype), None, folded.to(dtype))
    return maps, PositionTables(position.scores, features)


def pixels_last(images: Float[Tensor, "images channels *spatial"]) -> Float[Tensor, "images pixels channels"]:
    """Returns images as rows of channels, one row per pixel."""
    return rearrange(images, "images channels ... -> images (...) channels")
