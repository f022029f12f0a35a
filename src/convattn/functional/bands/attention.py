"""Attention in bands: a convolution for queries that see all keys that matter, and explicit weights at the ends.

Every step is an operation that torch can differentiate any number of times.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.autocast import product_dtype, without_autocast
from convattn.functional.bands.find import MOST_TAPS, Band, Bands
from convattn.functional.reference import attention_weights, combine_heads
from convattn.grid import Axis


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
        Output channels at each query, in the dtype of `keys`; sums are taken in at least float32. Gradients of any
        order flow to keys, maps and scores.
    """
    keys, maps = keys.to(product_dtype(keys)), maps.to(product_dtype(maps))
    wide = torch.promote_types(keys.dtype, torch.float32)
    with without_autocast(keys.device):
        pixels, matrices = keys.to(wide), maps.to(wide)
        parts = [_attend(bands.scores, band, axis, pixels, matrices, groups) for band in bands.parts]
        return sum(parts[1:], parts[0]).to(keys.dtype)


def _attend(scores: Tensor, band: Band, axis: Axis, keys: Tensor, maps: Tensor, groups: int) -> Tensor:
    """Attends with the heads of one band."""
    heads = torch.tensor(band.heads, device=maps.device)
    maps, n, step = maps.index_select(0, heads), len(axis.queries), axis.queries.step
    (first, head), (last, tail) = band.before, band.after
    parts = []
    if first:
        means = _end_means(scores, heads, axis, axis.queries[:first], range(head), keys)
        parts.append(combine_heads(means, maps, groups))
    if n - first - last > 0:
        start, stop = axis.queries[first] + band.low, axis.queries[n - last - 1] + band.high + 1
        weights = attention_weights(scores[:, band.low - axis.lowest :][:, : band.taps].index_select(0, heads))
        weights, seen = weights.to(keys.dtype), keys[..., start:stop]
        if band.is_kernel(keys.shape[1], maps[0].numel(), step):
            kernel = einsum(weights, maps, "heads taps, heads outputs channels -> outputs channels taps")
            parts.append(_convolution(seen, kernel, groups, step))
        else:
            parts.append(combine_heads(_block_means(weights, seen, band.block(step), step), maps, groups))
    if last:
        means = _end_means(scores, heads, axis, axis.queries[n - last :], range(axis.keys - tail, axis.keys), keys)
        parts.append(combine_heads(means, maps, groups))
    return torch.cat(parts, dim=-1)


def _end_means(
    scores: Tensor, heads: Tensor, axis: Axis, queries: range, nearest: range, keys: Tensor
) -> Float[Tensor, "batch heads channels queries"]:
    """Takes the means of the keys nearest to an end, for the queries near that end."""
    first = nearest[0] - queries[-1] - axis.lowest
    seen = scores[:, first : first + queries[-1] - queries[0] + len(nearest)].index_select(0, heads)
    weights = attention_weights(seen.unfold(-1, len(nearest), queries.step).flip(1)).to(keys.dtype)
    pixels = keys[..., nearest.start : nearest.stop]
    return einsum(weights, pixels, "heads queries keys, batch channels keys -> batch heads channels queries")


def _convolution(keys: Tensor, kernel: Tensor, groups: int, step: int) -> Tensor:
    """Convolves, some taps at a time."""
    taps = kernel.shape[-1]
    parts = []
    for first, piece in zip(range(0, taps, MOST_TAPS), kernel.split(MOST_TAPS, dim=-1), strict=True):
        window = keys[..., first : keys.shape[-1] - taps + first + piece.shape[-1]]
        parts.append(functional.conv1d(window, piece, stride=step, groups=groups))
    return sum(parts[1:], parts[0])


def _block_means(
    weights: Float[Tensor, "heads taps"], keys: Tensor, block: int, step: int
) -> Float[Tensor, "batch heads channels queries"]:
    """Takes the means of blocks of queries, which all have the same matrix of weights."""
    heads, taps = weights.shape
    queries = (keys.shape[-1] - taps) // step + 1
    blocks, width = -(-queries // block), step * (block - 1) + taps
    rows = functional.pad(weights, (0, width + step - taps))[:, None].expand(-1, block, -1)
    matrix = rows.reshape(heads, -1)[:, : block * width].view(heads, block, width)  # each row moved on by a step
    room = step * block * (blocks - 1) + width - keys.shape[-1]
    windows = functional.pad(keys, (0, room)).unfold(-1, width, step * block)
    means = einsum(matrix, windows, "heads block keys, batch channels blocks keys -> batch heads channels blocks block")
    return rearrange(means, "batch heads channels blocks block -> batch heads channels (blocks block)")[..., :queries]
