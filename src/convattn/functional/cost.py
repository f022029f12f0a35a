"""The cost of each way to compute an attention layer, in operations and memory, from sizes alone.

Heads are assumed to see many pixels; those that see few leave out keys and take fewer operations.

A multiplication and an addition count as two operations. Bytes are working memory beyond input, output and parameters.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from convattn.functional.bands import Bands
from convattn.functional.content import PIECE_BYTES, score_products
from convattn.functional.fourier import quick_length
from convattn.grid import Axis, Geometry

SLOWNESS = {"transforms": 8.0, "long transforms": 20.0, "own channels": 4.0}
"""How many times longer an operation takes than in a large matrix product: in fast Fourier transforms, and if each head
mixes channels of its own. Measured on two cores (float32); only ratios of this size decide between paths. Those of
a long sequence leave the cache: 16 times with 16 channels and 28 times with 64 as long as in bands (one core)."""


class Cost(NamedTuple):
    """Operations and working memory."""

    flops: int  # floating-point operations
    bytes: int  # working memory


@dataclass(frozen=True)
class Work:
    """The sizes of one call of an attention layer."""

    batch: int
    channels: int  # D_in
    outputs: int  # D_out
    heads: int  # N_h
    groups: int  # blocks of each W_h
    inner: int  # channels that each head mixes if values come first: D_h in all groups, or D_out
    factored: bool  # whether a second matrix follows those channels
    axes: tuple[Axis, ...]
    geometry: Geometry  # how images become keys
    dtype: torch.dtype  # of the images
    device: torch.device  # of the images

    @property
    def queries(self) -> tuple[int, ...]:
        """Queries along each axis."""
        return tuple(len(axis.queries) for axis in self.axes)

    @property
    def keys(self) -> tuple[int, ...]:
        """Keys along each axis."""
        return tuple(axis.keys for axis in self.axes)

    @property
    def line(self) -> int | None:
        """Number of the only axis with several queries or keys, 0 if there is none; None for images with more."""
        several = [number for number, axis in enumerate(self.axes) if axis.keys > 1 or len(axis.queries) > 1]
        return None if len(several) > 1 else (*several, 0)[0]

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the keys."""
        return self.dtype.itemsize

    @property
    def softmax_dtype(self) -> torch.dtype:
        """Dtype of scores and softmax: at least float32."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def pairs(self) -> int:
        """Queries times keys."""
        return math.prod(self.queries) * math.prod(self.keys)

    @property
    def maps(self) -> int:
        """Operations of all W_h at all queries."""
        per_query = self.heads * self.channels * self.outputs // self.groups
        return 2 * self.batch * math.prod(self.queries) * per_query

    def mixing(self, channels: int, *, by_axis: bool) -> int:
        """Counts the operations of weighted means, along one axis after the other or over all pairs at once."""
        each = 2 * self.batch * self.heads * channels
        if not by_axis:
            return each * self.pairs
        total = 0
        for axis in range(len(self.keys)):
            total += math.prod(self.queries[: axis + 1]) * math.prod(self.keys[axis:])
        return each * total

    def weights(self, *, by_axis: bool) -> int:
        """Counts the attention weights of all heads."""
        along = sum(q * k for q, k in zip(self.queries, self.keys, strict=True)) if by_axis else self.pairs
        return self.heads * along

    def weights_first(self, *, by_axis: bool) -> Cost:
        """Returns the cost of weighted means of all channels, then W_h."""
        piece = min(1 << 21, self.batch * self.channels * math.prod(self.queries) * self.itemsize)
        weights = self.weights(by_axis=by_axis)
        flops = 5 * weights + self.mixing(self.channels, by_axis=by_axis) + self.maps
        return Cost(flops, weights * (4 + self.itemsize) + 3 * piece)

    def values_first(self, *, by_axis: bool) -> Cost:
        """Returns the cost of each head's own channels, then weighted means of those."""
        weights, per_key = self.weights(by_axis=by_axis), self.heads * self.inner * self.channels // self.groups
        flops = 5 * weights + 2 * self.batch * math.prod(self.keys) * per_key + self.mixing(self.inner, by_axis=by_axis)
        if self.factored:
            per_query = self.heads * self.inner * self.outputs // self.groups
            flops += 2 * self.batch * math.prod(self.queries) * per_query
        own = self.batch * self.heads * self.inner * (math.prod(self.keys) + math.prod(self.queries))
        return Cost(flops, weights * (4 + self.itemsize) + own * self.itemsize)

    def order(self, *, by_axis: bool) -> str:
        """Returns which order is estimated to be faster: "weights" or "values" first."""
        work = self if isinstance(self.batch, int) else replace(self, batch=1)  # an export's symbol, not to be pinned
        first, other = work.weights_first(by_axis=by_axis), work.values_first(by_axis=by_axis)
        return "values" if other.flops * SLOWNESS["own channels"] < first.flops else "weights"

    def bands(self, bands: Bands) -> Cost:
        """Returns the cost of convolutions and means of the keys that matter, for images that are lines."""
        assert self.line is not None
        queries, step = math.prod(self.queries), self.axes[self.line].queries.step
        matrix = self.channels * self.outputs // self.groups
        flops = working = 0
        for band in bands.parts:
            heads, block, ends = len(band.heads), band.block(step), (band.before, band.after)
            inside = queries - sum(count for count, _ in ends)
            if band.is_kernel(self.channels, matrix, step):
                flops += 2 * self.batch * inside * band.taps * matrix + 2 * heads * band.taps * matrix
                numbers = self.batch * inside * (step * self.channels + 2 * self.outputs)
            else:
                seen = self.channels * (step * (block - 1) + band.taps)
                flops += 2 * self.batch * inside * heads * (seen + matrix)
                numbers = self.batch * inside * (seen // block + heads * 2 * self.channels + self.outputs)
            for count, keys in ends:
                flops += heads * count * (5 * keys + 2 * self.batch * (keys * self.channels + matrix))
                numbers += heads * count * (2 * keys + self.batch * self.channels)
            working = max(working, numbers)
        return Cost(flops, working * self.itemsize + 5 * bands.scores.nbytes // 4)

    def transforms(self) -> Cost:
        """Returns the cost of transforms of the images, products with the heads' filters, and transforms back."""
        lengths = [quick_length(2 * k - 1) for k in self.keys]
        size, pairs = math.prod(lengths), self.batch * (self.channels + 1) // 2
        one = 5 * size * max(1, round(math.log2(size)))
        flops = one * pairs * (self.heads + 1) + 6 * size * pairs * self.heads
        working = 16 * size * self.heads + 3 * (5 << 19) + self.heads * math.prod(self.queries) * 8
        return Cost(flops, working)

    def fourier(self) -> Cost:
        """Returns the cost of the Fourier path: transforms, then W_h."""
        flops, working = self.transforms()
        return Cost(flops + self.maps, working)

    def shift(self, taps: int) -> Cost:
        """Returns the cost of a convolution with so many taps."""
        kernel = taps * self.channels * self.outputs // self.groups
        return Cost(2 * self.batch * math.prod(self.queries) * kernel, kernel * self.itemsize)

    def reference(self) -> Cost:
        """Returns the cost of explicit weights and explicit means of all heads."""
        flops, _ = self.weights_first(by_axis=False)
        means = self.batch * self.heads * self.channels * math.prod(self.queries)
        return Cost(flops, self.weights(by_axis=False) * (8 + self.itemsize) + 2 * means * self.itemsize)

    def content(self, key_width: int, displacements: int) -> Cost:
        """Returns the cost of content scores, some images or rows at a time, with features of so many displacements."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        apart, folded = score_products(self.batch, self.channels, queries, keys, key_width)
        width = self.channels if folded < apart else key_width
        row = queries // next((count for count in self.queries if count > 1), 1)
        at_once = min(queries, max(row, PIECE_BYTES // (8 * self.heads * keys)))
        working = 12 * self.heads * at_once * keys + self.heads * (queries + keys) * width * self.itemsize
        return Cost(self._with_content(min(apart, folded), width, displacements), working)

    def explicit_content(self, key_width: int, *, features: bool) -> Cost:
        """Returns the cost of content scores with the weights of all images, and features for every query and key."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        apart, _ = score_products(self.batch, self.channels, queries, keys, key_width)
        flops = self._with_content(apart, key_width, keys if features else 0)
        numbers = self.batch * (3 * self.weights(by_axis=False) + self.heads * (queries + keys) * key_width)
        numbers += self.heads * self.pairs * key_width if features else 0
        return Cost(flops, numbers * max(4, self.itemsize))

    def flex(self, key_width: int, displacements: int, *, fused: bool) -> Cost:
        """Returns the cost of FlexAttention: products of queries with features of displacements, then all pairs."""
        queries, keys = math.prod(self.queries), math.prod(self.keys)
        apart, _ = score_products(self.batch, self.channels, queries, keys, key_width)
        weights = 0 if fused else self.batch * self.weights(by_axis=False) * 12
        numbers = queries * (key_width + self.channels) + keys * key_width
        tables = queries * displacements * max(4, self.itemsize)
        working = weights + self.batch * self.heads * (numbers * self.itemsize + tables)
        return Cost(self._with_content(apart, key_width, displacements), working)

    def _with_content(self, products: int, width: int, displacements: int) -> int:
        """Counts the operations of content attention; `products` are the multiplications per head for its scores."""
        position = self.batch * math.prod(self.queries) * displacements * width
        weights = 5 * self.batch * self.weights(by_axis=False)
        return 2 * self.heads * (products + position) + weights + self.mixing(self.channels, by_axis=False) + self.maps
