"""Long sequences whose queries look at few keys: these are found from scores, and most are computed by convolution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.path import CallSizes, Cost, KeyPath
from convattn.functional.quotient import weighted_sums
from convattn.functional.reference import HeadMaps, combine_heads, normal_weights
from convattn.functional.torch_modes import at_least_float32, product_dtype, without_autocast
from convattn.grid import Axis

MOST_TAPS = 14
"""Taps of a convolution at a time: from 15 taps on, oneDNN takes the gradients two to eight times as slowly (measured
at 16 channels, 65,536 pixels, one core)."""

_NEGLIGIBLE = 1 / 64
"""Share of the rounding of the keys' dtype below which attention is left out."""

_SLOW_MEANS = 6.0
"""How many times longer an operation takes in means of each channel than in a convolution of all: 4 to 8 times (16 and
64 channels, 21 to 401 displacements, one and four heads, forward and with gradients, one core)."""

_SHARED = 3 / 4
"""Heads share a band if it has at most this share of the displacements of their separate bands."""


class Band(NamedTuple):
    """Heads that look at displacements near each other."""

    heads: tuple[int, ...]
    low: int  # lowest displacement that matters to one of them
    high: int  # highest such displacement
    # Number of first queries with displacements before the first key, and of keys they need
    before: tuple[int, int]
    after: tuple[int, int]  # the same at the end: of last queries, and of last keys

    @property
    def taps(self) -> int:
        """Number of displacements."""
        return self.high - self.low + 1

    def is_kernel(self, channels: int, matrix: int) -> bool:
        """Tells whether one convolution of all heads, W_h of `matrix` numbers each, is faster than means, then W_h."""
        means = _SLOW_MEANS * self.taps * channels + matrix
        return self.taps * matrix <= len(self.heads) * means


class Bands(NamedTuple):
    """Attention along one axis without the keys that do not matter."""

    scores: Float[Tensor, "heads displacements"]
    parts: tuple[Band, ...]  # each head is in one of them
    leak: float  # largest share ε of attention that is left out, over heads and queries

    @property
    def widest(self) -> int:
        """Displacements of the widest band."""
        return max(band.taps for band in self.parts)


def find_bands(
    table: Float[Tensor, "heads displacements"],
    axis: Axis,
    dtype: torch.dtype,
) -> Bands | None:
    """Finds the displacements that matter to each head, and the keys that its queries near the ends need.

    Args:
        table: Scores of all displacements of `axis`, from the lowest to the highest, in the dtype of the softmax.
        axis: Queries and keys.
        dtype: Dtype of the keys.

    Returns:
        The bands; None if a head needs more than half of the keys, or has no finite largest score at some query.

    Example:
        >>> axis = Axis(range(64), 64)
        >>> bands = find_bands(-3.0 * (axis.displacements()[None] - 5.0) ** 2, axis, torch.float32)
        >>> None if bands is None else bands.parts
        (Band(heads=(0,), low=3, high=7, before=(0, 0), after=(7, 5)),)
    """
    scores = table.detach()
    leak = torch.finfo(dtype).eps * _NEGLIGIBLE
    fall = math.log(axis.keys / leak)
    highest = scores.amax(-1, keepdim=True)
    if not highest.isfinite().all():
        return None
    matters = (scores >= highest - fall).byte()
    lows = (axis.lowest + matters.argmax(-1)).tolist()
    highs = (axis.highest - matters.flip(-1).argmax(-1)).tolist()
    parts = []
    for heads, low, high in _together(lows, highs):
        if high - low + 1 > axis.keys // 2:
            return None
        seen = scores[list(heads)]
        before = _border(seen, axis, low, high, fall)
        after = _border(seen.flip(-1), axis.mirrored, -high, -low, fall)
        if before is None or after is None:
            return None
        parts.append(Band(heads, low, high, before, after))
    return Bands(table, tuple(parts), leak)


def _together(lows: Sequence[int], highs: Sequence[int]) -> list[tuple[tuple[int, ...], int, int]]:
    """Groups heads whose displacements are few or mostly the same; returns heads, lowest and highest displacement."""
    groups: list[tuple[tuple[int, ...], int, int]] = []
    for head in sorted(range(len(lows)), key=lambda head: (lows[head], highs[head])):
        alone = highs[head] - lows[head] + 1
        for number, (heads, low, high) in enumerate(groups):
            lowest = min(low, lows[head])
            highest = max(high, highs[head])
            apart = high - low + 1 + alone
            if highest - lowest + 1 <= max(MOST_TAPS, _SHARED * apart):
                groups[number] = ((*heads, head), lowest, highest)
                break
        else:
            groups.append(((head,), lows[head], highs[head]))
    return groups


def _border(scores: Tensor, axis: Axis, low: int, high: int, fall: float) -> tuple[int, int] | None:
    """Counts the first queries that lack the displacement `low`, and the first keys that matter to them."""
    queries = range(axis.queries.start, min(-low, axis.queries.stop), axis.queries.step)
    if not queries:
        return 0, 0
    positions = queries[-1] - queries[0] + 1
    # Index of the displacement from the last of them to key 0
    first = axis.queries[-1] - queries[-1]
    seen = scores[:, first : first + positions - 1 + axis.keys]
    least = _window_max(seen, positions, axis.keys)[:, :: queries.step] - fall
    if not least.isfinite().all():
        return None
    keys = high - low + 1
    while keys <= axis.keys // 2:
        others = _window_max(seen[:, keys:], positions, axis.keys - keys)[:, :: queries.step]
        if (others < least).all():
            return len(queries), keys
        keys *= 2
    return None


def _window_max(
    values: Float[Tensor, "heads values"],
    windows: int,
    width: int,
) -> Float[Tensor, "heads windows"]:
    """Returns the largest value of each window of `width` neighbours, in O(values)."""
    if windows > width:
        parts = []
        for start in range(0, windows, width):
            count = min(width, windows - start)
            part = values[:, start : start + count + width - 1]
            parts.append(_window_max(part, count, width))
        return torch.cat(parts, dim=-1)
    in_all = values[:, windows - 1 : width].amax(-1, keepdim=True)
    ahead = values[:, : windows - 1].flip(-1).cummax(-1).values.flip(-1)
    behind = values[:, width:].cummax(-1).values
    ahead = functional.pad(ahead, (0, 1), value=-math.inf)
    behind = functional.pad(behind, (1, 0), value=-math.inf)
    return torch.maximum(torch.maximum(ahead, behind), in_all)


def band_attention(
    bands: Bands,
    axis: Axis,
    keys: Float[Tensor, "batch channels keys"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs queries"]:
    """Computes softmax attention along one axis, y[q] = Σ_h W_h Σ_k A_h[q, k] x[k], over the keys that matter.

    Args:
        bands: What `find_bands` found on the same axis.
        axis: Queries and keys.
        keys: Key images.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of products with `keys`; sums are taken in at least float32.
        Gradients of any order flow to keys, maps and scores.
    """
    keys = keys.to(product_dtype(keys))
    maps = maps.to(product_dtype(maps))
    wide = at_least_float32(keys.dtype)
    with without_autocast(keys.device):
        pixels = keys.to(wide)
        matrices = maps.to(wide)
        parts = []
        for band in bands.parts:
            heads = torch.tensor(band.heads, device=maps.device)
            of_heads = matrices.index_select(0, heads)
            attention = _BandAttention(bands.scores.index_select(0, heads), axis, pixels)
            parts.append(attention.attend(band, of_heads, groups))
        return sum(parts[1:], parts[0]).to(keys.dtype)


class _BandAttention(NamedTuple):
    """Heads of one band on one axis."""

    scores: Float[Tensor, "heads displacements"]
    axis: Axis
    keys: Float[Tensor, "batch channels keys"]

    def attend(
        self,
        band: Band,
        maps: Tensor,
        groups: int,
    ) -> Float[Tensor, "batch outputs queries"]:
        """Attends at both ends and between them."""
        (first, head), (last, tail) = band.before, band.after
        queries = self.axis.queries
        keys = self.axis.keys
        inside = len(queries) - last
        parts = []
        if first:
            means = self._end_means(queries[:first], range(head))
            parts.append(combine_heads(means, maps, groups))
        if inside > first:
            parts.append(self._inside(band, queries[first:inside], maps, groups))
        if last:
            means = self._end_means(queries[inside:], range(keys - tail, keys))
            parts.append(combine_heads(means, maps, groups))
        return torch.cat(parts, dim=-1)

    def _end_means(
        self, queries: range, nearest: range
    ) -> Float[Tensor, "batch heads channels queries"]:
        """Takes the means of the keys nearest to an end, for the queries near that end."""
        first = nearest[0] - queries[-1] - self.axis.lowest
        seen = self.scores[:, first : first + queries[-1] - queries[0] + len(nearest)]
        by_query = seen.unfold(-1, len(nearest), self.axis.queries.step).flip(1)
        weights = normal_weights(by_query).to(self.keys.dtype)
        pixels = self.keys[..., nearest.start : nearest.stop]
        pattern = "heads queries keys, batch channels keys -> batch heads channels queries"
        return einsum(weights, pixels, pattern)

    def _inside(
        self,
        band: Band,
        queries: range,
        maps: Tensor,
        groups: int,
    ) -> Float[Tensor, "batch outputs queries"]:
        """Attends where all displacements of the band lead to a key, so that all queries have the same weights."""
        seen = self.scores[:, band.low - self.axis.lowest :][:, : band.taps]
        weights = normal_weights(seen).to(self.keys.dtype)
        keys = self.keys[..., queries[0] + band.low : queries[-1] + band.high + 1]
        step = self.axis.queries.step
        if band.is_kernel(keys.shape[1], maps[0].numel()):
            pattern = "heads taps, heads outputs channels -> outputs channels taps"
            return _convolution(keys, einsum(weights, maps, pattern), groups, step)
        count = keys.shape[-1]
        inside = Axis(range(0, count - band.taps + 1, step), count)
        means = weighted_sums(keys[:, None], [weights], [0], [inside])
        return combine_heads(means, maps, groups)


def _convolution(keys: Tensor, kernel: Tensor, groups: int, step: int) -> Tensor:
    """Convolves, some taps at a time."""
    outputs = keys.shape[-1] - kernel.shape[-1]
    parts = []
    for number, piece in enumerate(kernel.split(MOST_TAPS, dim=-1)):
        first = number * MOST_TAPS
        window = keys[..., first : first + outputs + piece.shape[-1]]
        parts.append(functional.conv1d(window, piece, stride=step, groups=groups))
    return sum(parts[1:], parts[0])


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BandPath(KeyPath):
    """The keys that matter to a long sequence: convolutions of all channels or of each."""

    name: ClassVar[str] = "separable"

    bands: Bands

    def cost(self) -> Cost:
        """Counts the bands, and keeps the memory of the largest."""
        return band_cost(self.sizes, self.bands)

    def outputs(self, keys: Tensor, maps: HeadMaps) -> Tensor:
        """Attends along the only axis."""
        assert self.sizes.line is not None
        axis = self.sizes.axes[self.sizes.line]
        return band_attention(self.bands, axis, keys.flatten(2), maps.whole(), maps.groups)


def band_cost(sizes: CallSizes, bands: Bands) -> Cost:
    """Returns the cost of convolutions and means of the keys that matter, for images that are lines."""
    flops = numbers = 0
    for band in bands.parts:
        operations, held = _cost_of_one_band(sizes, band)
        flops += operations
        numbers = max(numbers, held)
    return Cost(flops, numbers * sizes.itemsize + 5 * bands.scores.nbytes // 4)


def _cost_of_one_band(sizes: CallSizes, band: Band) -> tuple[int, int]:
    """Returns the operations of a band, and how many numbers are in memory."""
    assert sizes.line is not None
    heads = len(band.heads)
    step = sizes.axes[sizes.line].queries.step
    matrix = sizes.channels * sizes.outputs // sizes.groups
    ends = (band.before, band.after)
    inside = sizes.batch * (sizes.queries - sum(count for count, _ in ends))
    if band.is_kernel(sizes.channels, matrix):
        flops = 2 * inside * band.taps * matrix + 2 * heads * band.taps * matrix
        numbers = inside * (step * sizes.channels + 2 * sizes.outputs)
    else:
        flops = 2 * inside * heads * (band.taps * sizes.channels + matrix)
        numbers = inside * (step * sizes.channels + heads * 2 * sizes.channels + sizes.outputs)
    for count, keys in ends:
        means = 2 * sizes.batch * (keys * sizes.channels + matrix)
        flops += heads * count * (5 * keys + means)
        numbers += heads * count * (2 * keys + sizes.batch * sizes.channels)
    return flops, numbers
