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

from convattn.functional.content.folding import ContentMaps, PositionTables, fold, pixels_last, score_products
from convattn.functional.content.scores import gated_weights
from convattn.functional.derivatives import needs_own_operations
from convattn.functional.reference import attention_weights, combine_heads, displacement_scores, query_pixels
from convattn.grid import Axis

_BYTES = 1 << 25
"""Bytes of scores, queries and keys in memory at a time."""


def content_attention(
    keys: Float[Tensor, "images channels *spatial"],
    axes: Sequence[Axis],
    content: ContentMaps,
    position: PositionTables,
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    *,
    share: Float[Tensor, " heads"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "images outputs *queries"]:
    """Computes softmax attention whose scores depend on the input, `s = ((q + u)·k + q·Ŵr_δ)/√width + s_h(δ)`.

    As many images are computed at a time as fit a budget of memory. Scores and weights are computed again in the
    backward pass; queries, keys and mixed pixels are kept between the passes. For wide heads, W_q and W_k are folded
    into one matrix. Features are never stored for every query and key: a query is multiplied with those of each axis's
    displacements, and the axes are added up.

    Source: Dai et al. 2019 (Transformer-XL), §3.3; the gate is d'Ascoli et al. 2021 (ConViT), eq. 6.

    Args:
        keys: Key images.
        axes: Queries and keys along each axis.
        content: Maps to queries and keys.
        position: Tables of displacements.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks, dividing channels and outputs.
        share: Share of position per head, as in `gated_weights`: its scores then make a distribution of their own. None
            adds the scores.
        dropout: Probability in [0, 1) with which an attention weight is set to zero, drawn for each image.

    Returns:
        Output channels at each query, in the dtype of `keys`.
    """
    with torch.autocast(keys.device.type, enabled=False):
        queries, pixels = prod(len(axis.queries) for axis in axes), prod(axis.keys for axis in axes)
        width = len(content.query) // len(maps)
        apart, folded = score_products(keys.shape[0], keys.shape[1], queries, pixels, width)
        if folded < apart:
            content, position = fold(content, position, len(maps), keys.dtype)
        work = _Call(axes, content, position, maps, groups, share, dropout)
        shared, along = work.shared_scores(), work.along_axes(keys.device)
    if share is not None and shared is not None:
        shared = attention_weights(shared)
    step = max(1, _BYTES // work.bytes_per_image(keys))
    parts = [work.attend(part, shared, along) for part in keys.split(step)]
    y = torch.cat(parts) if len(parts) > 1 else parts[0]
    return y.unflatten(-1, [len(axis.queries) for axis in axes])


@dataclass(frozen=True)
class _Call:
    """The arguments of one call, except the images."""

    axes: Sequence[Axis]
    content: ContentMaps
    position: PositionTables
    maps: Tensor
    groups: int
    share: Tensor | None
    dropout: float

    @property
    def by_axis(self) -> bool:
        """Whether position scores are added axis by axis."""
        return self.share is None and len(self.position.scores) == len(self.axes)

    def bytes_per_image(self, keys: Tensor) -> int:
        """Estimates the memory that one image takes: scores and weights, queries, keys and mixed pixels."""
        heads, width = len(self.maps), len(self.content.query)
        queries, pixels = prod(len(axis.queries) for axis in self.axes), prod(keys.shape[2:])
        numbers = 2 * heads * queries * pixels + width * (queries + pixels) + heads * queries * keys.shape[1]
        if self.position.features and len(self.position.features) < len(self.axes):
            numbers += heads * queries * self.position.features[0].shape[1]
        return max(1, numbers * max(4, keys.element_size()))

    def shared_scores(self) -> Float[Tensor, "heads queries keys"] | None:
        """Looks up the position scores of every query and key, unless they are added axis by axis."""
        if self.by_axis:
            return None
        table = self.position.scores[0]
        for scores in self.position.scores[1:]:
            table = table[..., None] + scores.view(len(scores), *(1,) * (table.ndim - 1), -1)
        return displacement_scores(table, self.axes)

    def along_axes(self, device: torch.device) -> list[tuple[Tensor | None, Tensor | None]]:
        """Looks up, per axis, features (heads or one, queries, keys, width) and scores (heads, queries, keys)."""
        index = [axis.index(device) for axis in self.axes]
        features = self.position.features if len(self.position.features) == len(self.axes) else ()
        scores = self.position.scores if self.by_axis else ()
        return [
            (features[n][:, places] if features else None, scores[n][:, places] if scores else None)
            for n, places in enumerate(index)
        ]

    def attend(
        self, keys: Tensor, shared: Tensor | None, along: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> Float[Tensor, "images outputs queries"]:
        """Computes attention for some of the images."""
        query, key = self.content.project(keys, self.axes, len(self.maps))
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key = query.contiguous().to(wide), key.contiguous().to(wide)  # or each product copies them
        if self.content.key is None:
            at_queries = pixels_last(query_pixels(keys, self.axes))
            ones = at_queries.new_ones(()).expand(*at_queries.shape[:2], 1)
            seeing = torch.cat([at_queries, ones], dim=-1)[:, None].to(wide)
        else:
            scale, bias = query.shape[-1] ** -0.5, self.content.content_bias
            seeing = query = query * scale
            query = query if bias is None else query + (bias * scale).to(wide)[:, None]
        arguments = (query, key, seeing, pixels_last(keys), shared, along)
        if torch.is_grad_enabled() and not needs_own_operations():
            mixed = checkpoint(self._mix, *arguments, use_reentrant=False, preserve_rng_state=self.dropout > 0)
            assert isinstance(mixed, Tensor)
        else:
            mixed = self._mix(*arguments)
        return self._combine(mixed)

    def _mix(
        self,
        query: Tensor,
        key: Tensor,
        seeing: Tensor,
        pixels: Tensor,
        shared: Tensor | None,
        along: Sequence[tuple[Tensor | None, Tensor | None]],
    ) -> Float[Tensor, "images heads queries channels"]:
        """Takes the weighted means of the pixels."""
        with torch.autocast(pixels.device.type, enabled=False):
            scores = self._scores(query, key, seeing, along)
            if self.share is not None and shared is not None:
                weights = gated_weights(attention_weights(scores), shared, self.share)
            else:
                weights = attention_weights(scores if shared is None else scores + shared)
        weights = functional.dropout(weights, self.dropout, training=self.dropout > 0).to(pixels.dtype)
        return torch.matmul(weights.flatten(1, 2), pixels).unflatten(1, weights.shape[1:3])

    def _scores(
        self, query: Tensor, key: Tensor, seeing: Tensor, along: Sequence[tuple[Tensor | None, Tensor | None]]
    ) -> Float[Tensor, "images heads queries keys"]:
        """Adds up all terms of the scores except the shared ones."""
        # `seeing` is multiplied with the features: the queries, or the pixels, which are the same for all heads.
        if key.shape[1] == 1:  # the keys are those of all heads
            scores = (query.flatten(1, 2) @ key[:, 0].mT).unflatten(1, query.shape[1:3])
        else:
            scores = query @ key.mT
        features = self.position.features
        if features and len(features) < len(self.axes):
            seen = seeing @ features[0].mT
            index = _flat_index(self.axes, seen.device).expand(*seen.shape[:2], -1, -1)
            scores = _add(scores, seen.gather(-1, index))
        by_axis = scores.unflatten(-1, [axis.keys for axis in self.axes])
        for number, (windows, table) in enumerate(along):
            term = None if windows is None else self._along(number, seeing, windows)
            if table is not None:
                sizes = [len(axis.queries) if n == number else 1 for n, axis in enumerate(self.axes)]
                spread = table.view(len(table), *sizes, -1).expand(-1, *(len(axis.queries) for axis in self.axes), -1)
                spread = spread.flatten(1, -2)
                term = spread if term is None else term + spread
            if term is not None:
                behind = (1,) * (len(self.axes) - number - 1)
                by_axis = _add(by_axis, term.view(*term.shape[:-1], *(1,) * number, term.shape[-1], *behind))
        return by_axis.flatten(3)

    def _along(self, number: int, query: Tensor, windows: Tensor) -> Float[Tensor, "images heads queries _"]:
        """Multiplies each query with the features of its displacements to the keys along one axis."""
        sizes = [len(axis.queries) for axis in self.axes]
        split = query.unflatten(2, (prod(sizes[:number]), sizes[number], prod(sizes[number + 1 :])))
        split, heads = (split[:, 0], "") if query.shape[1] == 1 else (split, "heads ")
        pattern = f"images {heads}before q after width, heads q k width -> images heads before q after k"
        return einsum(split, windows.expand(len(self.maps), -1, -1, -1), pattern).flatten(2, 4)

    def _combine(self, mixed: Float[Tensor, "images heads queries channels"]) -> Float[Tensor, "images out queries"]:
        if self.groups > 1:
            return combine_heads(mixed.mT, self.maps, self.groups)
        flat = rearrange(mixed, "images heads queries channels -> images queries (heads channels)")
        maps = rearrange(self.maps, "heads outputs channels -> outputs (heads channels)")
        return functional.linear(flat, maps).mT


def _add(scores: Tensor, term: Tensor) -> Float[Tensor, "..."]:
    """Adds a term to scores, in place unless torch must see it or would copy all scores for the gradient of a view."""
    apart = needs_own_operations(scores, term) or (torch.is_grad_enabled() and scores._is_view())
    return scores + term if apart else scores.add_(term)


def _flat_index(axes: Sequence[Axis], device: torch.device) -> Int[Tensor, "queries keys"]:
    """Returns the place of each query and key's displacement in a flattened table of all displacements."""
    index = torch.zeros(1, 1, dtype=torch.long, device=device)
    for axis in axes:
        along = rearrange(axis.index(device), "queries keys -> 1 queries 1 keys")
        index = index[:, None, :, None] * len(axis.displacements()) + along
        index = index.flatten(2).flatten(0, 1)
    return index
