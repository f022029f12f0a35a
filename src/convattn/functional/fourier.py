"""Scores that are any function of the displacement, by fast Fourier transforms: O(N log N) instead of O(N²).

With g_h(δ) = exp s_h(δ), attention is a quotient of two correlations, A_h x = (g_h ⋆ x) / (g_h ⋆ 1)
(`docs/explanation/theory.md` §4). The error of a transform is a share of the largest g_h, so the quotient loses digits
at queries whose keys all lie in the tail of g_h: at the border, if a head looks out of the image. Therefore transforms
are computed in float64, and the means at queries that are weak nevertheless are computed by the definition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import inf, log, log2, prod
from typing import ClassVar, NamedTuple, final

import torch
from einops import einsum
from jaxtyping import Bool, Complex, Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.path import CallSizes, Cost, KeyPath
from convattn.functional.reference import (
    HeadMaps,
    combine_heads,
    displacement_places,
    normal_weights,
    query_slices,
)
from convattn.functional.torch_modes import (
    KEPT_BYTES,
    at_least_float32,
    computed_again,
    fitting,
    is_accelerator,
    needs_own_operations,
    product_dtype,
    without_autocast,
)
from convattn.grid import Axis

_CHANNEL_BYTES = 5 << 20
"""Bytes of channels and their transforms by all heads computed at a time on a CPU, so that they stay in the cache."""


def quick_length(least: int) -> int:
    """Returns the smallest even length ≥ `least` without prime factors above 5, for which transforms are fast."""
    least = int(least)  # of a trace a tensor, which `+=` changes in place
    length = least + least % 2 if least > 1 else 2
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 2


def filter_images(
    pixels: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    kernels: Float[Tensor, "heads *lengths"],
    factors: Float[Tensor, "heads *queries"],
    axes: Sequence[Axis],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes y[q] = Σ_h W_h f_h[q] Σ_k g_h[k − q] x[k]; `kernels` hold g_h[δ] at δ modulo the length.

    Some channels of all heads are transformed together; again for the gradient if all means are many numbers.
    """
    lengths = kernels.shape[1:]
    compute = partial(_filtered, axes, lengths)
    images = pixels.unflatten(1, (groups, -1))
    # channels before heads, so that those of some channels lie side by side
    matrices = maps.unflatten(1, (groups, -1)).movedim(0, -1).contiguous()
    conjugates = _of_keys(kernels, lengths).conj().resolve_conj()
    if needs_own_operations(pixels, maps, kernels, factors):
        y = compute(images, matrices, conjugates, factors)
    else:
        # autograd keeps means in float64 and float32, and transforms of the images
        each = 12 * factors.numel() + 16 * conjugates[0].numel()
        if pixels.shape[:2].numel() * each > KEPT_BYTES:
            compute = computed_again(compute)
        at_once, in_groups, in_channels = _sizes_at_a_time(images, len(maps), lengths)
        by_image = []
        for some in images.split(at_once):
            by_group = []
            split = zip(some.split(in_groups, 1), matrices.split(in_groups), strict=True)
            for own, blocks in split:
                parts = zip(own.split(in_channels, 2), blocks.split(in_channels, 2), strict=True)
                sums = (compute(x, weights, conjugates, factors) for x, weights in parts)
                by_group.append(reduce(torch.add, sums))
            by_image.append(torch.cat(by_group, dim=1))
        y = torch.cat(by_image)
    return y.flatten(1, 2).unflatten(2, factors.shape[1:])


def _filtered(
    axes: Sequence[Axis],
    lengths: Sequence[int],
    x: Float[Tensor, "images groups channels *spatial"],
    maps: Float[Tensor, "groups outputs channels heads"],
    conjugates: Complex[Tensor, "heads *frequencies"],
    factors: Float[Tensor, "heads *queries"],
) -> Float[Tensor, "images groups outputs queries"]:
    keys = _of_keys(x[:, :, :, None], lengths)
    means = _at_queries(keys * conjugates, lengths, axes)
    means = (means * factors).to(x.dtype).flatten(4)
    return maps.flatten(2) @ means.flatten(2, 3)


def _of_keys(channels: Tensor, lengths: Sequence[int]) -> Complex[Tensor, "..."]:
    """Transforms channels at the keys' positions.

    A real transform keeps half of the last axis. That axis comes first here, so that the numbers of one inverse
    transform lie side by side in memory, which is faster.
    """
    dims = tuple(range(-len(lengths), 0))
    transform = torch.fft.rfftn(channels.double(), lengths, dims)
    return transform.movedim(-1, dims[0]).contiguous()


def _at_queries(
    transform: Tensor,
    lengths: Sequence[int],
    axes: Sequence[Axis],
) -> Float[Tensor, "..."]:
    """Transforms back, to the queries' positions."""
    *others, last = query_slices(axes)
    if others:
        dims = tuple(range(1 - len(axes), 0))
        halfway = torch.fft.ifftn(transform, dim=dims)[(..., *others)]
        transform = halfway.movedim(-len(axes), -1)
    return torch.fft.irfft(transform.contiguous(), lengths[-1])[..., last]


def _sizes_at_a_time(
    images: Float[Tensor, "batch groups channels *spatial"],
    heads: int,
    lengths: torch.Size,
) -> tuple[int, int, int]:
    """Returns how many images, groups with all their channels, and channels of one group are transformed at a time."""
    groups, channels = images.shape[1:3]
    one = 24 * (1 + heads) * lengths.numel()  # real and transformed numbers of every head
    at_once = 1
    most = max(2, _CHANNEL_BYTES // one)
    if is_accelerator(images.device):
        most = fitting(images.device, one)
        at_once = max(1, most // (groups * channels))
    return at_once, max(1, most // channels), most


_NOISE = 8
"""Largest error of a correlation by transforms, in units of eps · ‖g‖₂ for x ~ N(0, 1): 2 to 8 at N = 16² to 128²."""

_NEGLIGIBLE = 1 / 64
"""Share of the rounding of the keys' dtype below which an error is tolerated."""

_WEIGHTS = 1 << 22
"""Attention weights of weak queries in memory at a time; with more, they are computed again for the gradient."""


class Filters(NamedTuple):
    """The scores as the Fourier path needs them; independent of the images."""

    scores: Float[Tensor, "heads *displacements"]
    # g_h in float64, displacement δ at index δ modulo the length
    kernels: Float[Tensor, "heads *lengths"]
    reciprocals: Float[Tensor, "heads *queries"]  # 1 / (g_h ⋆ 1) at each query, 0 if it is weak
    weak: Bool[Tensor, "heads *queries"]  # queries at which the quotient would lose digits


def fourier_filters(
    table: Float[Tensor, "heads *displacements"],
    axes: Sequence[Axis],
    dtype: torch.dtype = torch.float32,
) -> Filters:
    """Prepares transforms for a table of scores.

    Args:
        table: Scores of all displacements of `axes`, from the lowest to the highest along each axis.
        axes: Queries and keys along each axis.
        dtype: Dtype of the keys. In float64 every query is weak: there are no wider numbers to transform in.

    Returns:
        The filters; gradients flow back to `table`.
    """
    highest = table.detach().double().amax(tuple(range(1, table.ndim)), keepdim=True)
    negligible = torch.finfo(at_least_float32(dtype)).eps * _NEGLIGIBLE
    with torch.no_grad():
        least = (_NOISE * torch.finfo(torch.float64).eps / negligible) ** 2
        surveys = []
        for scores, top in zip(table, highest, strict=True):
            surveys.append(_survey(_exponential(scores, top), axes, least))
        totals, weak, *margins = map(torch.stack, zip(*surveys, strict=True))
        cut = _reach(margins, totals.masked_fill(weak, torch.inf), negligible)
    exponentials = _exponential(table[(slice(None), *cut)], highest)
    kernels = _place(exponentials, axes, _lengths(axes, cut), [part.start for part in cut])
    totals = _count(kernels, axes).masked_fill(weak, 1)
    return Filters(table, kernels, totals.reciprocal().masked_fill(weak, 0), weak)


def _exponential(scores: Tensor, highest: Tensor) -> Float[Tensor, "..."]:
    """Returns exp(s − max s) in float64, with zero where its square would be subnormal in the dtype of the scores.

    Where such weights are all that a query sees, it is weak.
    """
    least = log(torch.finfo(scores.dtype).tiny) / 2
    return functional.threshold(scores.double() - highest, least, -inf).exp()


def fourier_attention(
    filters: Filters,
    axes: Sequence[Axis],
    keys: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes softmax attention with scores that are any function of the displacement.

    Args:
        filters: What `fourier_filters` made for the same axes and dtype.
        axes: Queries and keys along each axis.
        keys: Key images.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.

    Returns:
        Output channels at each query, in the dtype of products with `keys`; heads are summed in at least float32.
    """
    keys = keys.to(product_dtype(keys))
    maps = maps.to(product_dtype(maps))
    wide = at_least_float32(keys.dtype)
    with without_autocast(keys.device):
        pixels = keys.to(wide)
        matrices = maps.to(wide)
        y = filter_images(pixels, matrices, filters.kernels, filters.reciprocals, axes, groups)
        sizes = y.shape[2:]
        y = y.flatten(2)
        at_once = max(1, _WEIGHTS // prod([axis.keys for axis in axes]))
        for head, weak in enumerate(filters.weak.flatten(1)):
            queries = weak.nonzero()[:, 0]
            if not len(queries):
                continue
            scores = filters.scores[head]
            parts = queries.split(at_once)
            again = len(parts) > 1 and not needs_own_operations(pixels, scores)
            exact = []
            for some in parts:
                compute = partial(_attend, axes, some)
                if again:
                    compute = computed_again(compute)
                exact.append(compute(scores, pixels))
            means = torch.cat(exact, dim=2)[:, None]
            y = y.index_add(2, queries, combine_heads(means, matrices[head, None], groups))
    return y.unflatten(2, sizes).to(keys.dtype)


def _attend(
    axes: Sequence[Axis],
    queries: Tensor,
    scores: Tensor,
    pixels: Tensor,
) -> Float[Tensor, "batch channels queries"]:
    """Takes one head's means at some queries, by the definition."""
    own = scores.flatten()[displacement_places(axes, queries, scores.device)]
    weights = normal_weights(own).to(pixels.dtype)
    pattern = "queries keys, batch channels keys -> batch channels queries"
    return einsum(weights, pixels.flatten(2), pattern)


def _place(
    part: Tensor,
    axes: Sequence[Axis],
    lengths: Sequence[int],
    starts: Sequence[int],
) -> Float[Tensor, "heads *lengths"]:
    """Moves displacement δ to index δ modulo the length, with zeros elsewhere; `part` begins at the starts."""
    first = []
    room = []
    for axis, length, size, start in zip(axes, lengths, part.shape[1:], starts, strict=True):
        first.append(axis.lowest + start)
        room = [0, length - size, *room]
    return torch.roll(functional.pad(part, room), first, tuple(range(1, part.ndim)))


def _count(kernels: Tensor, axes: Sequence[Axis]) -> Float[Tensor, "heads *queries"]:
    """Sums each kernel over the keys, at every query: g_h ⋆ 1."""
    lengths = kernels.shape[1:]
    dims = tuple(range(1, kernels.ndim))
    ones = kernels.new_ones(1, *(axis.keys for axis in axes))
    product = torch.fft.rfftn(ones, lengths, dims) * torch.fft.rfftn(kernels, dim=dims).conj()
    return torch.fft.irfftn(product, lengths, dims)[(..., *query_slices(axes))]


def _survey(
    exponential: Float[Tensor, "*displacements"],
    axes: Sequence[Axis],
    least: float,
) -> tuple[Tensor, ...]:
    """Returns one head's sum over the keys at each query, whether it is weak there, and its sums along each axis."""
    lengths = [quick_length(size) for size in exponential.shape]
    starts = [0] * len(axes)
    both = torch.stack([exponential, exponential**2])
    total, energy = _count(_place(both, axes, lengths, starts), axes)
    margins = []
    for axis in range(len(axes)):
        others = tuple(dim for dim in range(len(axes)) if dim != axis)
        margins.append(exponential.sum(others) if others else exponential)
    return total, energy < least * both[1].sum(), *margins


def _reach(margins: Sequence[Tensor], totals: Tensor, negligible: float) -> list[slice]:
    """Finds, along each axis, the displacements that matter to any head at any query that is not weak."""
    least = totals.flatten(1).amin(1).clamp(max=torch.finfo(totals.dtype).max)
    cut = []
    for margin in margins:
        share = margin / least[:, None] / (2 * len(margins))
        from_start = int((share.cumsum(-1) > negligible).sum(-1).max())
        from_last = share.flip(-1).cumsum(-1)
        from_end = int((from_last > negligible).sum(-1).max())
        start = margin.shape[1] - from_start
        stop = from_end
        cut.append(slice(start, stop) if start < stop else slice(0, 1))
    return cut


def _lengths(axes: Sequence[Axis], cut: Sequence[slice]) -> list[int]:
    """Returns lengths at which no key and query meet at a wrong displacement."""
    lengths = []
    for axis, part in zip(axes, cut, strict=True):
        before = axis.highest - axis.lowest - part.start
        most = max(before, part.stop - 1, axis.keys - 1)
        lengths.append(quick_length(most + 1))
    return lengths


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FourierPath(KeyPath):
    """Fast Fourier transforms."""

    name: ClassVar[str] = "fourier"

    filters: Filters

    def cost(self) -> Cost:
        """Counts transforms, then W_h."""
        flops, memory = transform_cost(self.sizes)
        return Cost(flops + self.sizes.maps, memory)

    def outputs(self, keys: Tensor, maps: HeadMaps) -> Tensor:
        """Filters the images."""
        return fourier_attention(self.filters, self.sizes.axes, keys, maps.whole(), maps.groups)


def padded_pixels(sizes: CallSizes) -> int:
    """Returns how many numbers a transform of one channel has."""
    return prod([quick_length(2 * axis.keys - 1) for axis in sizes.axes])


def transform_cost(sizes: CallSizes) -> Cost:
    """Returns the cost of transforms of the images, products with the heads' filters, and transforms back."""
    size = padded_pixels(sizes)
    pairs = sizes.batch * (sizes.channels + 1) // 2
    one = 5 * size * max(1, round(log2(size)))
    flops = one * pairs * (sizes.heads + 1) + 6 * size * pairs * sizes.heads
    memory = 16 * size * sizes.heads + _CHANNEL_BYTES + sizes.heads * sizes.queries * 8
    return Cost(flops, memory)
