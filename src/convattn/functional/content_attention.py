"""Attention with content scores, some images at a time, keeping nothing of size images × heads × queries × keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from convattn.functional.content import gated_weights
from convattn.functional.keys import query_pixels
from convattn.functional.reference import attention_weights, displacement_scores
from convattn.functional.values import combine_heads
from convattn.grid import Axis

__all__ = ["ContentMaps", "PositionTables", "content_attention"]

_BYTES = 1 << 25
"""Bytes of scores, queries and keys made at a time."""


@dataclass(frozen=True)
class ContentMaps:
    """The linear maps from pixels to queries and keys, all heads in one matrix.

    Attributes:
        query: W_q, (heads · width, channels).
        key: W_k, (heads · width, channels).
        query_bias: (heads · width,), or None.
        key_bias: (heads · width,), or None.
        content_bias: u, (heads, width), or None.
    """

    query: Float[Tensor, "heads_width channels"]
    key: Float[Tensor, "heads_width channels"]
    query_bias: Float[Tensor, " heads_width"] | None = None
    key_bias: Float[Tensor, " heads_width"] | None = None
    content_bias: Float[Tensor, "heads width"] | None = None

    def project(
        self, keys: Float[Tensor, "images channels *spatial"], axes: Sequence[Axis], heads: int
    ) -> tuple[Float[Tensor, "images heads queries width"], Float[Tensor, "images heads keys width"]]:
        """Makes queries and keys from key images.

        Args:
            keys: Key images.
            axes: Queries and keys along each axis.
            heads: Number of heads.

        Returns:
            Queries without the content bias, and keys.
        """
        pattern = "images pixels (heads width) -> images heads pixels width"
        at_queries = functional.linear(_pixels(query_pixels(keys, axes)), self.query, self.query_bias)
        at_keys = functional.linear(_pixels(keys), self.key, self.key_bias)
        return rearrange(at_queries, pattern, heads=heads), rearrange(at_keys, pattern, heads=heads)


@dataclass(frozen=True)
class PositionTables:
    """What the scores take from displacements, as tables that run from the lowest to the highest displacement.

    Scores and features that are sums over axes come as one table per axis; others as one table of all displacements,
    which is one table over all axes at once.

    Attributes:
        scores: s_h, one (heads, displacements of the axis) per axis, or a single (heads, *displacements).
        features: Ŵr_δ (heads, displacements, width), or r_δ shared by all heads (1, displacements, width): one per
            axis, or a single one over all displacements, flattened; empty without content–position scores.
    """

    scores: Sequence[Float[Tensor, "heads *_"]]
    features: Sequence[Float[Tensor, "heads_or_one _ width"]] = ()


def content_attention(
    keys: Float[Tensor, "images channels *spatial"],
    axes: Sequence[Axis],
    content: ContentMaps,
    position: PositionTables,
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    *,
    gate: Float[Tensor, " heads"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "images outputs *queries"]:
    """Computes softmax attention whose scores depend on the input, `s = ((q + u)·k + q·Ŵr_δ)/√width + s_h(δ)`.

    Images are taken as many at a time as fit a budget of memory. Each part is computed again in the backward pass, so
    that between the passes nothing of the scores, the queries or the keys is held. Features are never made for every
    query and key: a query meets each displacement's features along one axis, and a product with the keys'
    coordinates adds the axes up.

    Source: Dai et al. 2019 (Transformer-XL), §3.3; the gate is d'Ascoli et al. 2021 (ConViT), eq. 6.

    Args:
        keys: Key images.
        axes: Queries and keys along each axis.
        content: Maps to queries and keys.
        position: Tables of displacements.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks, dividing channels and outputs.
        gate: λ per head: the position scores then make a distribution of their own, mixed in with the share σ(λ).
        dropout: Probability in [0, 1) with which an attention weight is set to zero, drawn for each image.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    work = _Work(axes, content, position, maps, groups, gate, dropout)
    with torch.autocast(keys.device.type, enabled=False):
        shared = work.shared_scores()
    if gate is not None and shared is not None:
        shared = attention_weights(shared)
    step = max(1, _BYTES // work.bytes_per_image(keys))
    parts = []
    for part in keys.split(step):
        if torch.is_grad_enabled():
            y = checkpoint(work.attend, part, shared, use_reentrant=False, preserve_rng_state=dropout > 0)
        else:
            y = work.attend(part, shared)
        assert isinstance(y, Tensor)
        parts.append(y)
    y = torch.cat(parts) if len(parts) > 1 else parts[0]
    return y.unflatten(-1, [len(axis.queries) for axis in axes])


@dataclass(frozen=True)
class _Work:
    """One call's arguments, apart from the images."""

    axes: Sequence[Axis]
    content: ContentMaps
    position: PositionTables
    maps: Tensor
    groups: int
    gate: Tensor | None
    dropout: float

    @property
    def by_axis(self) -> bool:
        """Whether position scores join the product of queries and keys, axis by axis."""
        return self.gate is None and len(self.position.scores) == len(self.axes)

    def bytes_per_image(self, keys: Tensor) -> int:
        """Estimates the memory that one image takes: scores and weights, queries, keys and mixed pixels."""
        heads, width = len(self.maps), len(self.content.query)
        queries, pixels = prod(len(axis.queries) for axis in self.axes), prod(keys.shape[2:])
        numbers = 2 * heads * queries * pixels + width * (queries + pixels) + heads * queries * keys.shape[1]
        if self.position.features and len(self.position.features) < len(self.axes):
            numbers += heads * queries * self.position.features[0].shape[1]
        return max(1, numbers * max(4, keys.element_size()))

    def shared_scores(self) -> Float[Tensor, "heads queries keys"] | None:
        """Looks up the position scores of every query and key, where they do not join the product."""
        if self.by_axis:
            return None
        table = self.position.scores[0]
        for scores in self.position.scores[1:]:
            table = table[..., None] + scores.view(len(scores), *(1,) * (table.ndim - 1), -1)
        return displacement_scores(table, self.axes)

    def attend(self, keys: Tensor, shared: Tensor | None) -> Float[Tensor, "images outputs queries"]:
        """Attends in some of the images."""
        query, key = self.content.project(keys, self.axes, len(self.maps))
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key = query.to(wide), key.to(wide)
        with torch.autocast(keys.device.type, enabled=False):
            weights = self._weights(query, key, shared)
        weights = functional.dropout(weights, self.dropout, training=self.dropout > 0).to(keys.dtype)
        mixed = torch.matmul(weights.flatten(1, 2), _pixels(keys)).unflatten(1, weights.shape[1:3])
        return self._combine(mixed)

    def _weights(self, query: Tensor, key: Tensor, shared: Tensor | None) -> Float[Tensor, "images heads queries keys"]:
        scale, bias = query.shape[-1] ** -0.5, self.content.content_bias
        before, after = (scale, 1.0) if self.by_axis else (1.0, scale)  # tables of scores are not to be scaled
        left = (query if bias is None else query + bias.to(query.dtype)[:, None]) * before
        whole, per_axis = self._position_terms(query * before)
        if per_axis:
            coordinates = self._coordinates(key).expand(*key.shape[:2], -1, -1)
            left, key = torch.cat([left, *per_axis], dim=-1), torch.cat([key, coordinates], dim=-1)
        scores = left @ key.mT
        if whole is not None:
            scores = scores + whole
        scores = scores * after
        if shared is None:
            return attention_weights(scores)
        if self.gate is None:
            return attention_weights(scores + shared)
        return gated_weights(attention_weights(scores), shared, self.gate)

    def _position_terms(self, query: Tensor) -> tuple[Tensor | None, list[Float[Tensor, "images heads queries _"]]]:
        """Scores the displacements: for every query and key at once, or for each axis (query × key coordinate)."""
        features, scores = self.position.features, self.position.scores
        if features and len(features) < len(self.axes):
            seen = query @ features[0].mT
            index = _flat_index(self.axes, query.device).expand(*query.shape[:2], -1, -1)
            terms, whole = [], seen.gather(-1, index)
        else:
            terms, whole = [self._along(axis, query, table) for axis, table in enumerate(features)], None
        if self.by_axis:
            sizes = [len(axis.queries) for axis in self.axes]
            looked_up = [scores[n][:, axis.index(query.device)] for n, axis in enumerate(self.axes)]
            for number, table in enumerate(looked_up):
                shape = [size if n == number else 1 for n, size in enumerate(sizes)]
                spread = table.view(len(table), *shape, -1).expand(-1, *sizes, -1).flatten(1, -2)
                if features and whole is None:
                    terms[number] = terms[number] + spread
                else:
                    terms.append(spread.expand(len(query), -1, -1, -1))
        return whole, terms

    def _along(self, number: int, query: Tensor, table: Tensor) -> Float[Tensor, "images heads queries _"]:
        """Multiplies each query with the features of the displacements to the keys' coordinates along one axis."""
        windows = table[:, self.axes[number].index(query.device)].expand(query.shape[1], -1, -1, -1)
        sizes = [len(axis.queries) for axis in self.axes]
        before, after = prod(sizes[:number]), prod(sizes[number + 1 :])
        split = query.unflatten(2, (before, sizes[number], after))
        terms = einsum(
            split, windows, "images heads before q after width, heads q k width -> images heads before q after k"
        )
        return terms.flatten(2, 4)

    def _coordinates(self, key: Tensor) -> Float[Tensor, "keys coordinates"]:
        """Marks each key's coordinates: a one per axis."""
        sizes = [axis.keys for axis in self.axes]
        grids = torch.meshgrid(*(torch.arange(size, device=key.device) for size in sizes), indexing="ij")
        hot = [functional.one_hot(grid.flatten(), size) for grid, size in zip(grids, sizes, strict=True)]
        return torch.cat(hot, dim=-1).to(key.dtype)

    def _combine(self, mixed: Float[Tensor, "images heads queries channels"]) -> Float[Tensor, "images out queries"]:
        if self.groups > 1:
            return combine_heads(mixed.mT, self.maps, self.groups)
        flat = rearrange(mixed, "images heads queries channels -> images queries (heads channels)")
        maps = rearrange(self.maps, "heads outputs channels -> outputs (heads channels)")
        return functional.linear(flat, maps).mT


def _pixels(x: Float[Tensor, "images channels *spatial"]) -> Float[Tensor, "images pixels channels"]:
    return rearrange(x, "images channels ... -> images (...) channels")


def _flat_index(axes: Sequence[Axis], device: torch.device) -> Int[Tensor, "queries keys"]:
    """Returns, for each query and key, where their displacement stands among all displacements, flattened."""
    index = torch.zeros(1, 1, dtype=torch.long, device=device)
    for axis in axes:
        along = rearrange(axis.index(device), "queries keys -> 1 queries 1 keys")
        index = index[:, None, :, None] * len(axis.displacements()) + along
        index = index.flatten(2).flatten(0, 1)
    return index
