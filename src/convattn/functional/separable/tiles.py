"""Weighted means along the axes of an image, a tile of queries at a time, over the keys that matter to them."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

_SHORT = 32
"""Queries of a tile along an axis on which heads are narrow: enough for matrix products to run at speed, few enough for
their keys to be few."""

WORTHWHILE = 0.6
"""Share of all keys below which short tiles pay for their calls."""


class QueryTile(NamedTuple):
    """Queries along one axis that are computed together."""

    queries: slice  # positions in the output
    keys: list[slice]  # for each head, the keys that get all attention but rounding

    @property
    def longest(self) -> int:
        """The larger of the numbers of queries and keys."""
        return max(length_of(self.queries), *map(length_of, self.keys))


class Workspace:
    """Memory that is reused within one call, with the dtype and device of a given tensor."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """Returns an uninitialised, contiguous tensor in the memory that the last tensor of this name had."""
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = self._like.new_empty(size)
        return held[:size].view(shape)


def length_of(part: slice) -> int:
    """Returns the number of positions in a slice."""
    return part.stop - part.start


def chunks(length: int, size: int) -> list[slice]:
    """Cuts positions into chunks of a size; the last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def axis_tiles(
    weights: Float[Tensor, "heads queries keys"], negligible: float, longest: int, *, cut_keys: bool = True
) -> list[QueryTile]:
    """Cuts the queries along one axis into tiles: of at most `longest` queries, and fewer if heads are narrow."""
    # `negligible` is the attention that may be left out on either side, per query; 0 leaves out exact zeros only.
    _, queries, keys = weights.shape
    if cut_keys:
        tiles = _narrow_tiles(weights, negligible, min(_SHORT, longest))
        used = sum(length_of(part) for tile in tiles for part in tile.keys)
        if used < WORTHWHILE * keys * sum(len(tile.keys) for tile in tiles):
            return tiles
    return [QueryTile(part, [slice(0, keys)] * len(weights)) for part in chunks(queries, longest)]


def tiles_of_all_axes(
    weights: Sequence[Float[Tensor, "heads _ _"]], negligible: float, pixels: int
) -> tuple[list[tuple[QueryTile, ...]], int]:
    """Cuts the grid of queries into tiles of about so many pixels, and returns how many images go together (≥ 1)."""
    others = [  # the third of three axes keeps its keys, so that the axes after the second are one block of memory
        axis_tiles(weight, negligible, weight.shape[1], cut_keys=number < 2)
        for number, weight in enumerate(weights[1:], start=1)
    ]
    per_row = prod(max(tile.longest for tile in tiles) for tiles in others)
    first = axis_tiles(weights[0], negligible, max(pixels // max(1, per_row), _SHORT))
    largest = per_row * max(tile.longest for tile in first)
    return list(product(first, *others)), max(1, pixels // max(1, largest))


def mix(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    tile: Sequence[QueryTile],
    head: int,
    pixels: Float[Tensor, "images *spatial channels"],
    workspace: Workspace,
) -> list[Tensor]:
    """Takes one head's weighted means along one axis after the other; returns the pixels before, between and after."""
    # Each is (all axes before, keys along the axis, all axes after); the last is (pixels, channels).
    stage = _region(pixels, tile, head).flatten(2)
    stages = [stage]
    for number, (weight, part) in enumerate(zip(weights, tile, strict=True)):
        rows = weight[head, part.queries, part.keys[head]]
        shape = (stage.shape[0], rows.shape[0], stage.shape[2])
        mixed = torch.bmm(rows.expand(stage.shape[0], -1, -1), stage, out=workspace.get(f"mixed {number}", *shape))
        if number + 1 < len(weights):
            stage = mixed.view(shape[0] * shape[1], length_of(tile[number + 1].keys[head]), -1)
        else:
            stage = mixed.view(-1, pixels.shape[-1])
        stages.append(stage)
    return stages


def mix_backward(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    tile: Sequence[QueryTile],
    head: int,
    stages: Sequence[Tensor],
    gradient: Float[Tensor, "pixels channels"],
    *,
    pixels_gradient: Float[Tensor, "images *spatial channels"] | None,
    weight_gradients: Sequence[Float[Tensor, "heads _ _"] | None],
    workspace: Workspace,
) -> None:
    """Backpropagates from the last result of `mix`; adds the gradients that are wanted.

    The stages are those that `mix` returned. None of them may lie in memory that this function uses.
    """
    for number in reversed(range(len(weights))):
        part, stage = tile[number], stages[number]
        rows = weights[number][head, part.queries, part.keys[head]]
        upstream = gradient.view(stage.shape[0], rows.shape[0], stage.shape[2])
        into = weight_gradients[number]
        if into is not None:
            into[head, part.queries, part.keys[head]] += _summed_products(upstream, stage, workspace)
        back = rows.mT.expand(stage.shape[0], -1, -1)
        if number:
            gradient = torch.bmm(back, upstream, out=workspace.get(f"back {number}", *stage.shape))
        elif pixels_gradient is not None:
            _region(pixels_gradient, tile, head).view(stage.shape).baddbmm_(back, upstream)


def _summed_products(
    upstream: Float[Tensor, "before queries behind"], stage: Float[Tensor, "before keys behind"], workspace: Workspace
) -> Float[Tensor, "queries keys"]:
    """Multiplies queries with keys and sums over all else, with nothing larger than the factors in memory."""
    before, queries, behind = upstream.shape
    keys = stage.shape[1]
    if queries * keys > (queries + keys) * behind:
        return einsum(upstream, stage, "before queries behind, before keys behind -> queries keys")
    return torch.bmm(upstream, stage.mT, out=workspace.get("products", before, queries, keys)).sum(0)


def needed_keys(weights: Float[Tensor, "*rows keys"], negligible: float) -> Int[Tensor, "2 *rows"]:
    """Returns the first key of each row that matters and the one after the last; equal if no key matters."""
    first = (weights.cumsum(-1) <= negligible).sum(-1)
    last = weights.shape[-1] - (weights.flip(-1).cumsum(-1) <= negligible).sum(-1)
    return torch.stack([first, last.maximum(first)])


def _narrow_tiles(weights: Tensor, negligible: float, length: int) -> list[QueryTile]:
    parts, keys = chunks(weights.shape[1], length), weights.shape[2]
    most = torch.stack([weights[:, part].amax(1) for part in parts])
    tiles = []
    for part, lows, highs in zip(parts, *needed_keys(most, negligible).tolist(), strict=True):
        firsts = [min(low, keys - 1) for low in lows]  # a head that sees only the zeros around the image keeps one key
        spans = [slice(low, max(high, low + 1)) for low, high in zip(firsts, highs, strict=True)]
        tiles.append(QueryTile(part, spans))
    return tiles


def _region(pixels: Tensor, tile: Sequence[QueryTile], head: int) -> Tensor:
    """Returns a view of the keys that a head looks at."""
    return pixels[(slice(None), *(part.keys[head] for part in tile))]
