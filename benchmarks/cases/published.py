"""The formulation that the paper's networks were published with: scores of all pairs, a softmax, one einsum."""

from collections.abc import Sequence
from typing import final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from convattn.encodings import AxisAdditiveEncoding
from convattn.functional import pad_keys
from convattn.functional.reference import displacement_places
from convattn.grid import Axis
from convattn.layers import RelativeAttention

_QUERIES, _KEYS = "rows cols", "key_rows key_cols"


@final
class PublishedAttention(nn.Module):
    """The function of an attention layer with pixels that keep their two coordinates, as in the paper's equations.

    The scores of every query and key are made in each call, (rows, cols, heads, key rows, key cols), with content for
    every image; a softmax runs over all keys; one einsum takes the means of the pixels, and one linear map of
    heads · channels inputs follows. Scores that are sums over axes are added up from one table per axis, which takes
    less time than the product of r_δ and a vector for every pair.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, eqs. 1 to 4 and 9, for images and merged heads.

    Attributes:
        layer: The layer whose parameters it uses; without groups and gate. With content its queries and keys are the
            pixels of the image, its positions are not projected and its encoding has no score of its own.
    """

    def __init__(self, layer: RelativeAttention) -> None:
        """Takes over the parameters of a layer."""
        super().__init__()
        assert layer.groups == 1
        assert layer.gate is None
        self.layer = layer

    def forward(
        self, x: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch outputs rows cols"]:
        """Returns what the layer returns, but for rounding."""
        layer, axes = self.layer, self.layer.geometry.axes(x.shape[2:])
        pixels = rearrange(
            pad_keys(x, layer.geometry), "batch channels rows cols -> batch rows cols channels"
        )
        scores = (
            self._positions(axes, pixels) if layer.content is None else self._content(axes, pixels)
        )
        weights = scores.flatten(-2).softmax(-1).view(scores.shape).to(pixels.dtype)
        weights = functional.dropout(weights, layer.dropout, self.training)
        images = "" if layer.content is None else "batch "
        means = einsum(
            weights,
            pixels,
            f"{images}{_QUERIES} heads {_KEYS}, batch {_KEYS} channels -> batch {_QUERIES} heads channels",
        )
        values = rearrange(
            layer.values.maps(), "heads outputs channels -> outputs (heads channels)"
        )
        y = functional.linear(means.flatten(-2), values, layer.bias)
        return rearrange(y, "batch rows cols outputs -> batch outputs rows cols")

    def _positions(
        self, axes: Sequence[Axis], like: Tensor
    ) -> Float[Tensor, "rows cols heads key_rows key_cols"]:
        encoding, dtype = self.layer.encoding, torch.promote_types(like.dtype, torch.float32)
        if isinstance(encoding, AxisAdditiveEncoding):
            tables = encoding.axis_tables(axes, dtype, like.device)
            rows, cols = (
                table[:, displacement_places((axis,), device=like.device)]
                for table, axis in zip(tables, axes, strict=True)
            )
            rows = rearrange(rows, "heads rows key_rows -> rows 1 heads key_rows 1")
            return rows + rearrange(cols, "heads cols key_cols -> cols heads 1 key_cols")
        row, col = (displacement_places((axis,), device=like.device) for axis in axes)
        heads = torch.arange(self.layer.num_heads, device=like.device)[:, None, None]
        table = encoding.table(axes, dtype, like.device)
        return table[heads, row[:, None, None, :, None], col[:, None, None, :]]

    def _content(
        self, axes: Sequence[Axis], pixels: Tensor
    ) -> Float[Tensor, "batch rows cols heads key_rows key_cols"]:
        """Scores (q·k + q·r_δ) / √width, where every pixel is query and key and r_δ is a sum over axes."""
        content, encoding = self.layer.content, self.layer.encoding
        assert content is not None
        assert content.position is None
        assert content.content_bias is None
        assert isinstance(encoding, AxisAdditiveEncoding)
        assert content.uses_position
        assert all(list(axis.queries) == list(range(axis.keys)) for axis in axes)
        split, wide = "batch rows cols (heads width) -> batch rows cols heads width", torch.float32
        query, key = (
            rearrange(part(pixels), split, heads=content.num_heads).to(
                torch.promote_types(pixels.dtype, wide)
            )
            for part in (content.query, content.key)
        )
        features = encoding.axis_features(axes, query.dtype, query.device)
        rows, cols = (
            table[displacement_places((axis,), device=query.device)]
            for table, axis in zip(features, axes, strict=True)
        )
        along = "batch rows cols heads width"
        seen = einsum(
            query, rows, f"{along}, rows key_rows width -> batch rows cols heads key_rows"
        )[..., None]
        seen = (
            seen
            + einsum(
                query, cols, f"{along}, cols key_cols width -> batch rows cols heads key_cols"
            )[..., None, :]
        )
        pairs = f"{along}, batch {_KEYS} heads width -> batch rows cols heads {_KEYS}"
        return (einsum(query, key, pairs) + seen) / query.shape[-1] ** 0.5
