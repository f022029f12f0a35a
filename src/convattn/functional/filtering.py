"""One filter per head over all channels of an image, by fast Fourier transforms, then the heads' matrices.

Filters are real, so two channels travel as the real and the imaginary part of one complex image.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from convattn.grid import Axis

__all__ = ["filter_images", "quick_length"]

_CACHE = 5 << 19
"""Bytes of transformed channels worked on at a time, so that they stay in the cache."""


def quick_length(least: int) -> int:
    """Returns the smallest even length without prime factors above 5, which transforms are quick at.

    Args:
        least: Smallest length allowed.

    Returns:
        The length.

    Example:
        >>> [quick_length(n) for n in (1, 31, 127, 447)]
        [2, 32, 128, 450]
    """
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
    """Computes y[q] = Σ_h W_h f_h[q] Σ_k g_h[k − q] x[k].

    Args:
        pixels: x.
        maps: W_h; with groups its block-diagonal.
        kernels: g_h in float64, displacement δ at index δ modulo the length.
        factors: f_h in float64.
        axes: Queries and keys along each axis.
        groups: Number of blocks.

    Returns:
        Output channels at each query. Gradients are of first order only.
    """
    return _Filter.apply(pixels, maps, kernels, factors, tuple(axes), groups)


class _Transforms:
    """Transforms of images and kernels, for some channels of one image at a time."""

    def __init__(self, kernels: Tensor, axes: Sequence[Axis]) -> None:
        self.lengths, self.dims = kernels.shape[1:], tuple(range(1, kernels.ndim))
        steps = (slice(axis.queries.start, axis.queries.stop, axis.queries.step) for axis in axes)
        self.queries = (slice(None), *steps)
        self.keys = (slice(None), *(slice(axis.keys) for axis in axes))
        self.kernels = torch.fft.fftn(kernels, dim=self.dims)

    def of_keys(self, channels: Tensor) -> Complex[Tensor, "pairs *lengths"]:
        """Transforms channels that stand at the keys, two as one."""
        return torch.fft.fftn(_paired(channels), self.lengths, self.dims)

    def of_queries(self, pairs: Tensor) -> Complex[Tensor, "pairs *lengths"]:
        """Transforms values that stand at the queries."""
        spread = pairs.new_zeros(len(pairs), *self.lengths)
        spread[self.queries] = pairs
        return torch.fft.fftn(spread, dim=self.dims)

    def at_queries(self, transform: Tensor) -> Complex[Tensor, "pairs *queries"]:
        """Transforms back, to the queries' positions."""
        return torch.fft.ifftn(transform, dim=self.dims)[self.queries]

    def at_keys(self, transform: Tensor) -> Complex[Tensor, "pairs *keys"]:
        """Transforms back, to the keys' positions."""
        return torch.fft.ifftn(transform, dim=self.dims)[self.keys]


def _pieces(pixels: Tensor, groups: int, lengths: torch.Size) -> Iterator[tuple[int, slice]]:
    """Yields one image and some of its channels; with groups all of them."""
    batch, channels = pixels.shape[:2]
    step = channels if groups > 1 else max(2, _CACHE // (16 * lengths.numel()) * 2)
    for image in range(batch):
        for start in range(0, channels, step):
            yield image, slice(start, min(start + step, channels))


class _Filter(torch.autograd.Function):
    """Filters by transforms; nothing of size heads × N is kept for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, pixels: Tensor, maps: Tensor, kernels: Tensor, factors: Tensor, axes: tuple[Axis, ...], groups: int
    ) -> Tensor:
        ctx.save_for_backward(pixels, maps, kernels, factors)
        ctx.axes, ctx.groups = axes, groups
        transforms, sizes = _Transforms(kernels, axes), factors.shape[1:]
        y = pixels.new_zeros(len(pixels), groups, maps.shape[1] // groups, sizes.numel())
        blocks = rearrange(maps, "heads (groups outputs) channels -> heads groups outputs channels", groups=groups)
        for image, part in _pieces(pixels, groups, transforms.lengths):
            keys = transforms.of_keys(pixels[image, part])
            mixed = pixels.new_empty(len(maps), 2 * len(keys), *sizes)
            for head, kernel in enumerate(transforms.kernels.conj()):
                means = _unpaired(transforms.at_queries(keys * kernel))
                torch.mul(means, factors[head], out=mixed[head].unflatten(0, (-1, 2)))
            y[image] += einsum(blocks[..., _within(part, groups)], _grouped(mixed, part, groups), _FORWARD)
        return y.view(len(pixels), maps.shape[1], *sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, kernels, factors = ctx.saved_tensors
        groups, transforms, sizes = ctx.groups, _Transforms(kernels, ctx.axes), factors.shape[1:]
        by_pixels, by_maps, by_factors = torch.empty_like(pixels), torch.zeros_like(maps), torch.zeros_like(factors)
        by_kernels = torch.zeros_like(transforms.kernels)
        blocks, by_blocks = (
            rearrange(m, "heads (groups outputs) channels -> heads groups outputs channels", groups=groups)
            for m in (maps, by_maps)
        )
        upstream = gradient.reshape(len(pixels), groups, maps.shape[1] // groups, sizes.numel())
        for image, part in _pieces(pixels, groups, transforms.lengths):
            within = _within(part, groups)
            keys = transforms.of_keys(pixels[image, part])
            by_keys, mixed = torch.zeros_like(keys), pixels.new_empty(len(maps), 2 * len(keys), *sizes)
            by_mixed = einsum(blocks[..., within], upstream[image], _BY_MIXED)
            for head, kernel in enumerate(transforms.kernels):
                means = transforms.at_queries(keys * kernel.conj())
                torch.mul(_unpaired(means), factors[head], out=mixed[head].unflatten(0, (-1, 2)))
                by_means = _paired(by_mixed[head].reshape(-1, *sizes))
                by_factors[head] += (means.conj() * by_means).real.sum(0)
                spread = transforms.of_queries(by_means * factors[head])
                by_kernels[head] += (spread.conj() * keys).sum(0)
                by_keys += spread.mul_(kernel)
            by_blocks[..., within] += einsum(upstream[image], _grouped(mixed, part, groups), _BY_MAPS)
            by_pixels[image, part] = _unpaired(transforms.at_keys(by_keys)).flatten(0, 1)[: part.stop - part.start]
        return by_pixels, by_maps, torch.fft.ifftn(by_kernels, dim=transforms.dims).real, by_factors, None, None


_FORWARD = "heads groups outputs channels, heads groups channels queries -> groups outputs queries"
_BY_MIXED = "heads groups outputs channels, groups outputs queries -> heads groups channels queries"
_BY_MAPS = "groups outputs queries, heads groups channels queries -> heads groups outputs channels"


def _within(part: slice, groups: int) -> slice:
    """Channels of a piece within their group."""
    return part if groups == 1 else slice(None)


def _grouped(mixed: Tensor, part: slice, groups: int) -> Float[Tensor, "heads groups channels queries"]:
    """Reads a piece's channels group by group, without the partner of an odd one out."""
    return mixed[:, : part.stop - part.start].unflatten(1, (groups, -1)).flatten(3)


def _paired(channels: Float[Tensor, "channels *spatial"]) -> Complex[Tensor, "pairs *spatial"]:
    """Makes complex images of double precision, two channels each; an odd one out gets a partner of zeros."""
    channels = channels.double()
    if len(channels) % 2:
        channels = torch.cat([channels, torch.zeros_like(channels[:1])])
    return torch.view_as_complex(channels.unflatten(0, (-1, 2)).movedim(1, -1).contiguous())


def _unpaired(pairs: Complex[Tensor, "pairs *spatial"]) -> Float[Tensor, "pairs 2 *spatial"]:
    """Takes the two channels of each complex image apart."""
    return torch.view_as_real(pairs).movedim(-1, 1)
