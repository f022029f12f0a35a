"""Scores that depend on the images, s = ((q + u)·k + q·Ŵr_δ)/√width + s_h(δ), and a gate between both kinds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from convattn.functional.reference import (
    attention_weights,
    combine_heads,
    displacement_scores,
    join_axes,
    position_weights,
    query_pixels,
)
from convattn.functional.torch_modes import needs_own_operations, without_autocast
from convattn.grid import Axis


def content_scores(
    query: Float[Tensor, "images heads queries width"],
    key: Float[Tensor, "images heads keys width"],
    position: Float[Tensor, "heads_or_one queries keys width"] | None = None,
    content_bias: Float[Tensor, "heads width"] | None = None,
) -> Float[Tensor, "images heads queries keys"]:
    """Computes the terms of the relative score that depend on the input.

    `s = ((q + u)·k + q·r_δ) / √width`: content–content, content bias and content–position. The fourth term, the
    position bias v·r_δ, is the encoding's own score, which the caller adds (docs/explanation/theory.md §6;
    Transformer-XL, Dai et al. 2019, §3.3).

    Args:
        query: q = W_q x at the queries.
        key: k = W_k x at the keys.
        position: r_δ (projected to the heads' width, or shared by all heads); None leaves content–position out.
        content_bias: u per head; None leaves the content bias out.

    Returns:
        Scores in at least float32.
    """
    query, key = _at_least_float32(query), _at_least_float32(key)
    biased = query if content_bias is None else query + content_bias.to(query.dtype)[:, None]
    scores = einsum(
        biased,
        key,
        "images heads queries width, images heads keys width -> images heads queries keys",
    )
    if position is not None:
        position = position.to(query.dtype).expand(query.shape[1], -1, -1, -1)
        scores = scores + einsum(
            query,
            position,
            "images heads queries width, heads queries keys width -> images heads queries keys",
        )
    return scores * query.shape[-1] ** -0.5


def gated_weights(
    content: Float[Tensor, "images heads queries keys"],
    position: Float[Tensor, "heads queries keys"],
    share: Float[Tensor, " heads"],
) -> Float[Tensor, "images heads queries keys"]:
    """Mixes two attention distributions: A = (1 − s) · content + s · position.

    Args:
        content: Weights from content scores.
        position: Weights from displacement scores.
        share: s per head, the share of position; 1 leaves position alone.

    Returns:
        Weights that sum to one over the keys (d'Ascoli et al. 2021, ConViT, eq. 6); with s above 1 some are negative.
    """
    share = share.to(content.dtype)[:, None, None]
    return (1 - share) * content + share * position


def position_share(
    gate: Float[Tensor, " heads"], kind: Literal["sigmoid", "tanh"]
) -> Float[Tensor, " heads"]:
    """Computes the share of position from a gate: s = σ(λ), or s = 1 − tanh(g).

    σ reaches 1 only by rounding, where it has no gradient. 1 − tanh(g) is exactly 1 at g = 0, with the slope −1: such a
    gate can start closed on content, and open.

    Args:
        gate: λ or g per head.
        kind: Which of the two.

    Returns:
        The share, in at least float32: in (0, 1), or in (0, 2) of a tanh.

    Example:
        >>> position_share(torch.tensor([0.0, 20.0]), "tanh").tolist()
        [1.0, 0.0]
    """
    gate = _at_least_float32(gate)
    return torch.sigmoid(gate) if kind == "sigmoid" else 1 - torch.tanh(gate)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


PIECE_BYTES = 1 << 25
"""Bytes of scores, weights, queries and keys of the images or rows of queries that are computed at a time."""


@dataclass(frozen=True)
class ContentMaps:
    """The linear maps from pixels to queries and keys, all heads in one matrix."""

    query: Float[Tensor, "heads_width channels"]  # W_q
    key: Float[Tensor, "heads_width channels"]  # W_k
    query_bias: Float[Tensor, " heads_width"] | None = None
    key_bias: Float[Tensor, " heads_width"] | None = None
    content_bias: Float[Tensor, "heads width"] | None = None  # u

    def project(
        self, keys: Float[Tensor, "images channels *spatial"], axes: Sequence[Axis], heads: int
    ) -> tuple[
        Float[Tensor, "images heads queries width"], Float[Tensor, "images heads keys width"]
    ]:
        """Computes queries, without the content bias, and keys from key images.

        Args:
            keys: Key images.
            axes: Queries and keys along each axis.
            heads: Number of heads.

        Returns:
            Queries and keys.
        """
        pattern = "images pixels (heads width) -> images heads pixels width"
        query = functional.linear(
            _pixels_last(query_pixels(keys, axes)), self.query, self.query_bias
        )
        key = functional.linear(_pixels_last(keys), self.key, self.key_bias)
        return rearrange(query, pattern, heads=heads), rearrange(key, pattern, heads=heads)


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


def _pixels_last(
    images: Float[Tensor, "images channels *spatial"],
) -> Float[Tensor, "images pixels channels"]:
    """Returns images as rows of channels, one row per pixel."""
    return rearrange(images, "images channels ... -> images (...) channels")


_Along: TypeAlias = tuple[Tensor | None, Tensor | None]
"""Of one axis: features (heads or one, queries, keys, width); scores, or with a gate weights (heads, queries, keys)."""


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

    As many images are computed at a time as fit a budget of memory; of an image that does not fit, as many rows of
    queries. Scores and weights are computed again in the backward pass; queries, keys and mixed pixels are kept between
    the passes. Features are never stored for every query and key: a query is multiplied with those of each axis's
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
    with without_autocast(keys.device):
        work = _Call(axes, content, position, maps, groups, share, dropout)
        step, rows = work.images_and_rows(keys)
        whole = rows >= len(axes[work.row_axis].queries)  # else pieces look up their own rows
        shared = work.shared_by(axes) if whole and not work.by_axis else None
        along = [
            work.along_axis(number, axis, keys.device) if whole or number != work.row_axis else None
            for number, axis in enumerate(axes)
        ]
    parts = [work.attend(part, shared, along, rows) for part in keys.split(step)]
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
        """Whether position scores are sums over axes, and so the weights of a gate products."""
        return len(self.position.scores) == len(self.axes)

    @property
    def features_by_axis(self) -> bool:
        """Whether features are sums over axes."""
        return len(self.position.features) == len(self.axes)

    @property
    def row_axis(self) -> int:
        """The first axis with several queries: some of its queries, with all of the others, follow one another."""
        return next((number for number, axis in enumerate(self.axes) if len(axis.queries) > 1), 0)

    def images_and_rows(self, keys: Tensor) -> tuple[int, int]:
        """Returns how many images, and how many queries along `row_axis`, are computed at a time."""
        # Memory of a query: scores and weights, its part of queries and mixed pixels. An image's keys come on top.
        heads, width = len(self.maps), len(self.content.query)
        queries, pixels = prod(len(axis.queries) for axis in self.axes), prod(keys.shape[2:])
        numbers, rows = (
            2 * heads * pixels + width + heads * keys.shape[1],
            len(self.axes[self.row_axis].queries),
        )
        if self.features_by_axis:
            numbers += (
                heads
                * self.axes[self.row_axis].keys
                * self.position.features[0].shape[2]
                * rows
                // queries
            )
        elif self.position.features:
            numbers += heads * self.position.features[0].shape[1]
        size = max(4, keys.element_size())
        images = PIECE_BYTES // max(1, (queries * numbers + width * pixels) * size)
        return max(1, images), rows if images else max(
            1, PIECE_BYTES // max(1, queries // rows * numbers * size)
        )

    def shared_by(self, some: Sequence[Axis]) -> Float[Tensor, "heads queries keys"]:
        """Looks up the position scores of some queries along each axis and every key; of a gate weights."""
        scores = displacement_scores(self._window(self.position.scores[0], some), some)
        return scores if self.share is None else attention_weights(scores)

    def _window(self, table: Tensor, some: Sequence[Axis]) -> Float[Tensor, "heads_or_one *_"]:
        """Takes the displacements of some queries from a table of all displacements, (heads, *displacements, …)."""
        for dim, (axis, part) in enumerate(zip(self.axes, some, strict=True), start=1):
            table = table.narrow(dim, part.lowest - axis.lowest, part.highest - part.lowest + 1)
        return table

    def along_axis(self, number: int, some: Axis, device: torch.device) -> _Along:
        """Looks up features and scores of some queries and every key along one axis; of a gate weights."""
        axis = self.axes[number]
        index, seen = (
            some.index(device),
            slice(some.lowest - axis.lowest, some.highest - axis.lowest + 1),
        )
        windows = (
            self.position.features[number][:, seen][:, index] if self.features_by_axis else None
        )
        if not self.by_axis:
            return windows, None
        scores = self.position.scores[number][:, seen]
        return windows, scores[:, index] if self.share is None else position_weights(
            scores, (some,)
        )

    def attend(
        self, keys: Tensor, shared: Tensor | None, along: Sequence[_Along | None], rows: int
    ) -> Float[Tensor, "images outputs queries"]:
        """Computes attention for some of the images, so many rows of queries at a time."""
        query, key = self.content.project(keys, self.axes, len(self.maps))
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key = (
            query.contiguous().to(wide),
            key.contiguous().to(wide),
        )  # or each product copies them
        scale, bias = query.shape[-1] ** -0.5, self.content.content_bias
        unbiased = query = query * scale
        query = query if bias is None else query + (bias * scale).to(wide)[:, None]
        pixels, again = _pixels_last(keys), torch.is_grad_enabled() and not needs_own_operations()
        parts = []
        for piece in self._pieces(query, unbiased, rows):
            arguments = (key, pixels, along, shared, *piece)
            if again:
                mixed = checkpoint(
                    self._mix, *arguments, use_reentrant=False, preserve_rng_state=self.dropout > 0
                )
                assert isinstance(mixed, Tensor)
            else:
                mixed = self._mix(*arguments)
            parts.append(self._combine(mixed))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def _pieces(
        self, query: Tensor, unbiased: Tensor, rows: int
    ) -> Iterator[tuple[Tensor, Tensor, list[Axis]]]:
        """Splits what belongs to queries along `row_axis`, and adds the axes with these queries."""
        queries, keys = self.axes[self.row_axis].queries, self.axes[self.row_axis].keys
        parts = [
            Axis(queries[first : first + rows], keys) for first in range(0, len(queries), rows)
        ]
        lengths = [len(part.queries) * (query.shape[2] // len(queries)) for part in parts]
        for part, own, seen in zip(
            parts, query.split(lengths, 2), unbiased.split(lengths, 2), strict=True
        ):
            yield (
                own,
                seen,
                [part if n == self.row_axis else axis for n, axis in enumerate(self.axes)],
            )

    def _mix(
        self,
        key: Tensor,
        pixels: Tensor,
        given: Sequence[_Along | None],
        shared: Tensor | None,
        query: Tensor,
        unbiased: Tensor,
        some: Sequence[Axis],
    ) -> Float[Tensor, "images heads queries channels"]:
        """Takes the weighted means of the pixels, for some queries along each axis."""
        with without_autocast(pixels.device):
            along = [
                self.along_axis(number, some[number], key.device) if pair is None else pair
                for number, pair in enumerate(given)
            ]
            if shared is None and not self.by_axis:
                shared = self.shared_by(some)
            scores = self._scores(query, key, unbiased, along, some)
            if self.share is None:
                weights = attention_weights(scores if shared is None else scores + shared)
            else:
                position = (
                    join_axes([table for _, table in along if table is not None])
                    if shared is None
                    else shared
                )
                weights = gated_weights(attention_weights(scores), position, self.share)
        weights = functional.dropout(weights, self.dropout, training=self.dropout > 0).to(
            pixels.dtype
        )
        return torch.matmul(weights.flatten(1, 2), pixels).unflatten(1, weights.shape[1:3])

    def _scores(
        self,
        query: Tensor,
        key: Tensor,
        unbiased: Tensor,
        along: Sequence[_Along],
        some: Sequence[Axis],
    ) -> Float[Tensor, "images heads queries keys"]:
        """Adds up all terms of the scores except the shared ones."""
        # `unbiased` are the queries without the content bias; they are multiplied with the features.
        scores = query @ key.mT
        features = self.position.features
        if features and not self.features_by_axis:
            whole = features[0].unflatten(1, [axis.highest - axis.lowest + 1 for axis in self.axes])
            seen = unbiased @ self._window(whole, some).flatten(1, -2).mT
            index = _flat_index(some, seen.device).expand(*seen.shape[:2], -1, -1)
            scores = _add(scores, seen.gather(-1, index))
        by_axis, sizes = (
            scores.unflatten(-1, [axis.keys for axis in self.axes]),
            [len(axis.queries) for axis in some],
        )
        for number, (windows, table) in enumerate(along):
            term = None if windows is None else self._along(number, unbiased, windows, sizes)
            if table is not None and self.share is None:
                own = [size if n == number else 1 for n, size in enumerate(sizes)]
                spread = table.view(len(table), *own, -1).expand(-1, *sizes, -1).flatten(1, -2)
                term = spread if term is None else term + spread
            if term is not None:
                behind = (1,) * (len(self.axes) - number - 1)
                by_axis = _add(
                    by_axis, term.view(*term.shape[:-1], *(1,) * number, term.shape[-1], *behind)
                )
        return by_axis.flatten(3)

    def _along(
        self, number: int, query: Tensor, windows: Tensor, sizes: Sequence[int]
    ) -> Float[Tensor, "images heads queries _"]:
        """Multiplies each query with the features of its displacements to the keys along one axis."""
        split = query.unflatten(2, (prod(sizes[:number]), sizes[number], prod(sizes[number + 1 :])))
        pattern = (
            "images heads before q after width, heads q k width -> images heads before q after k"
        )
        return einsum(split, windows.expand(len(self.maps), -1, -1, -1), pattern).flatten(2, 4)

    def _combine(
        self, mixed: Float[Tensor, "images heads queries channels"]
    ) -> Float[Tensor, "images out queries"]:
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
