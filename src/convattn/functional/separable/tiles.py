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
"""Share of all keys below which short pieces pay for their calls."""


class Tile(NamedTuple):
    """Queries along one axis that are worked on together.

    Attributes:
        queries: Their positions in the output.
        keys: Per head, the range of keys that gets all their attention but rounding.
    """

    queries: slice
    keys: list[slice]

    @property
    def longest(self) -> int:
        """The larger of the numbers of queries and keys."""
        return max(self.queries.stop - self.queries.start, *(keys.stop - keys.start for keys in self.keys))


class Workspace:
    """Memory that is used again and again within one call."""

    def __init__(self, like: Tensor) -> None:
        """Starts empty; dtype and device will be those of `like`."""
        self._like = like
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """Returns an uninitialised tensor, in the memory that the last tensor of this name had.

        Args:
            name: What it is used for.
            *shape: Its sizes.

        Returns:
            The tensor, contiguous.
        """
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = self._like.new_empty(size)
        return held[:size].view(shape)


def axis_tiles(
    weights: Float[Tensor, "heads queries keys"], negligible: float, longest: int, *, cut_keys: bool = True
) -> list[Tile]:
    """Cuts the queries along one axis into tiles, and finds the keys that matter to each.

    Args:
        weights: Attention along the axis; rows sum to one.
        negligible: Attention that may be left out on either side, per query; 0 leaves out exact zeros only.
        longest: Queries of a tile where heads are wide, ≥ 1; where they are narrow, tiles are shorter.
        cut_keys: Whether keys may be left out.

    Returns:
        Tiles that cover all queries.
    """
    _, queries, keys = weights.shape
    if cut_keys:
        tiles = _narrow_tiles(weights, negligible, min(_SHORT, longest))
        used = sum(part.stop - part.start for tile in tiles for part in tile.keys)
        if used < WORTHWHILE * keys * sum(len(tile.keys) for tile in tiles):
            return tiles
    whole = [slice(0, keys)] * len(weights)
    return [Tile(slice(start, min(start + longest, queries)), whole) for start in range(0, queries, longest)]


def tiles_of_all_axes(
    weights: Sequence[Float[Tensor, "heads _ _"]], negligible: float, pixels: int
) -> tuple[list[tuple[Tile, ...]], int]:
    """Cuts the grid of queries into tiles of about so many pixels, and tells how many images go together.

    Args:
        weights: Attention along each axis.
        negligible: As for `axis_tiles`.
        pixels: Pixels, of queries or keys, that are worked on at a time.

    Returns:
        A tile per axis, for each tile of the grid; and the number of images, ≥ 1.
    """
    others = [  # the third of three axes keeps its keys, so that what lies behind the second axis is one block
        axis_tiles(weight, negligible, weight.shape[1], cut_keys=number < 2)
        for number, weight in enumerate(weights[1:], start=1)
    ]
    per_row = prod(max(tile.longest for tile in tiles) for tiles in others)
    first = axis_tiles(weights[0], negligible, max(pixels // max(1, per_row), _SHORT))
    largest = per_row * max(tile.longest for tile in first)
    return list(product(first, *others)), max(1, pixels // max(1, largest))


def mix(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    tile: Sequence[Tile],
    head: int,
    pixels: Float[Tensor, "images *spatial channels"],
    workspace: Workspace,
) -> list[Tensor]:
    """Takes weighted means along one axis after the other.

    Args:
        weights: For each axis, (heads, queries, keys).
        tile: Queries along each axis.
        head: The head.
        pixels: Key images.
        workspace: Memory for all but the first of the results.

    Returns:
        The pixels before, between and after, each as (all axes before, keys along the axis, all behind); the last as
        (pixels, channels).
    """
    stage = _region(pixels, tile, head).flatten(2)
    stages = [stage]
    for number, (weight, part) in enumerate(zip(weights, tile, strict=True)):
        rows = weight[head, part.queries, part.keys[head]]
        shape = (stage.shape[0], rows.shape[0], stage.shape[2])
        mixed = torch.bmm(rows.expand(stage.shape[0], -1, -1), stage, out=workspace.get(f"mixed {number}", *shape))
        if number + 1 < len(weights):
            behind = tile[number + 1].keys[head]
            stage = mixed.view(shape[0] * shape[1], behind.stop - behind.start, -1)
        else:
            stage = mixed.view(-1, pixels.shape[-1])
        stages.append(stage)
    return stages


def mix_backward(
    weights: Sequence[Float[Tensor, "heads _ _"]],
    tile: Sequence[Tile],
    head: int,
    stages: Sequence[Tensor],
    gradient: Float[Tensor, "pixels channels"],
    *,
    pixels_gradient: Float[Tensor, "images *spatial channels"] | None,
    weight_gradients: Sequence[Float[Tensor, "heads _ _"] | None],
    workspace: Workspace,
) -> None:
    """Carries the gradient of the last result of `mix` back to the pixels and the weights.

    Args:
        weights: As given to `mix`.
        tile: As given to `mix`.
        head: As given to `mix`.
        stages: What it returned.
        gradient: Gradient with respect to the last of them; its rows may lie apart.
        pixels_gradient: Where to add the gradient with respect to the pixels; None leaves it out.
        weight_gradients: Where to add that with respect to the weights of each axis; None leaves it out.
        workspace: Memory; none of the stages may lie in what this function uses.
    """
    for number in reversed(range(len(weights))):
        part, stage = tile[number], stages[number]
        rows = weights[number][head, part.queries, part.keys[head]]
        upstream = gradient.view(stage.shape[0], rows.shape[0], stage.shape[2])
        into = weight_gradients[number]
        if into is not None:
            into[head, part.queries, part.keys[head]] += _summed_products(upstream, stage, workspace)
        back = rows.mT.expand(stage.shape[0], -1, -1)
        if not number and pixels_gradient is None:
            return
        if number:
            gradient = torch.bmm(back, upstream, out=workspace.get(f"back {number}", *stage.shape))
        else:
            assert pixels_gradient is not None
            region = _region(pixels_gradient, tile, head)
            region.view(stage.shape).baddbmm_(back, upstream)


def _summed_products(
    upstream: Float[Tensor, "before queries behind"], stage: Float[Tensor, "before keys behind"], workspace: Workspace
) -> Float[Tensor, "queries keys"]:
    """Multiplies queries with keys and sums over all else, with nothing larger than the factors in memory."""
    before, queries, behind = upstream.shape
    keys = stage.shape[1]
    if queries * keys > (queries + keys) * behind:
        return einsum(upstream, stage, "before queries behind, before keys behind -> queries keys")
    return torch.bmm(upstream, stage.mT, out=workspace.get("products", before, queries, keys)).sum(0)


def needed_keys(
    weights: Float[Tensor, "*rows keys"], negligible: float
) -> tuple[Int[Tensor, "*rows"], Int[Tensor, "*rows"]]:
    """Returns the first key of each row that matters, and the one behind the last.

    Args:
        weights: Attention, or the most that several queries give to each key.
        negligible: Attention that may be left out on either side.

    Returns:
        Both; where nothing matters the second is not above the first.
    """
    first = (weights.cumsum(-1) <= negligible).sum(-1)
    return first, weights.shape[-1] - (weights.flip(-1).cumsum(-1) <= negligible).sum(-1)


def _narrow_tiles(weights: Tensor, negligible: float, length: int) -> list[Tile]:
    queries, keys = weights.shape[1:]
    starts = range(0, queries, length)
    most = torch.stack([weights[:, start : start + length].amax(1) for start in starts])
    first, last = needed_keys(most, negligible)
    tiles = []
    for start, lows, highs in zip(starts, first.tolist(), last.tolist(), strict=True):
        firsts = [min(low, keys - 1) for low in lows]  # where a head sees zeros around the image alone, one key is left
        spans = [slice(low, max(high, low + 1)) for low, high in zip(firsts, highs, strict=True)]
        tiles.append(Tile(slice(start, min(start + length, queries)), spans))
    return tiles


def _region(pixels: Tensor, tile: Sequence[Tile], head: int) -> Tensor:
    """Returns a view of the keys that a head looks at."""
    return pixels[(slice(None), *(part.keys[head] for part in tile))]
