"""One filter per head over all channels of an image, by fast Fourier transforms, then the heads' matrices.

Every channel is transformed by itself, as a real image: the error of a transform is a share of its largest number, and
a number that is not finite spoils all of it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from einops import einsum
from jaxtyping import Complex, Float
from torch import Tensor

from convattn.functional.derivatives import backward_to_differentiate, needs_own_operations
from convattn.functional.reference import combine_heads
from convattn.grid import Axis

_CACHE = 5 << 19
"""Bytes of transformed channels computed at a time, so that they stay in the cache."""


def quick_length(least: int) -> int:
    """Returns the smallest even length ≥ `least` without prime factors above 5, for which transforms are fast."""
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
    """Computes y[q] = Σ_h W_h f_h[q] Σ_k g_h[k − q] x[k]; `kernels` hold g_h[δ] at δ modulo the length."""
    # Derivatives above the first, and those of torch's function transforms, take the memory of all filtered images.
    if needs_own_operations(pixels, maps, kernels, factors):
        return _at_once(axes, groups, pixels, maps, kernels, factors)
    return _Filter.apply(pixels, maps, kernels, factors, tuple(axes), groups)


class _Transforms:
    """Transforms of channels and kernels.

    A real transform keeps half of the last axis. That axis comes first here, so that the numbers of one inverse
    transform lie side by side in memory, which is faster.
    """

    def __init__(self, kernels: Tensor, axes: Sequence[Axis]) -> None:
        self.lengths, self.dims = kernels.shape[1:], tuple(range(-len(axes), 0))
        self.queries = [slice(axis.queries.start, axis.queries.stop, axis.queries.step) for axis in axes]
        self.keys = [slice(axis.keys) for axis in axes]
        self.kernels = self.of_keys(kernels)

    def of_keys(self, channels: Tensor) -> Complex[Tensor, "..."]:
        """Transforms channels at the keys' positions."""
        transform = torch.fft.rfftn(channels.double(), self.lengths, self.dims)
        return transform.movedim(-1, self.dims[0]).contiguous()

    def of_queries(self, values: Tensor) -> Complex[Tensor, "..."]:
        """Transforms values at the queries' positions."""
        spread = values.new_zeros(*values.shape[: self.dims[0]], *self.lengths)
        spread[(..., *self.queries)] = values
        return self.of_keys(spread)

    def at_queries(self, transform: Tensor) -> Float[Tensor, "..."]:
        """Transforms back, to the queries' positions."""
        return self.back(transform, self.queries)

    def back(self, transform: Tensor, wanted: Sequence[slice]) -> Float[Tensor, "..."]:
        """Transforms back, to the wanted positions along each axis."""
        *others, last = wanted
        if others:
            transform = torch.fft.ifftn(transform, dim=self.dims[1:])[(..., *others)].movedim(self.dims[0], -1)
        return torch.fft.irfft(transform.contiguous(), self.lengths[-1])[..., last]


def _at_once(
    axes: Sequence[Axis], groups: int, pixels: Tensor, maps: Tensor, kernels: Tensor, factors: Tensor
) -> Tensor:
    """Filters all channels by all kernels at once, so that torch can differentiate further."""
    transforms = _Transforms(kernels, axes)
    filtered = transforms.at_queries(transforms.of_keys(pixels)[:, None] * transforms.kernels.conj()[:, None])
    return combine_heads((filtered * factors[:, None]).to(pixels.dtype), maps, groups)


def _channel_chunks(blocks: Tensor, lengths: torch.Size) -> Iterator[tuple[int, slice, slice]]:
    """Yields one image, and some groups with all their channels or some channels of one group."""
    batch, groups, channels = blocks.shape[:3]
    most = max(2, _CACHE // (8 * lengths.numel()))
    for image in range(batch):
        for group in range(0, groups, max(1, most // channels)):
            for channel in range(0, channels, most):
                yield image, slice(group, group + max(1, most // channels)), slice(channel, channel + most)


class _Filter(torch.autograd.Function):
    """Filtering by transforms; nothing of size heads × N is kept for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, pixels: Tensor, maps: Tensor, kernels: Tensor, factors: Tensor, axes: tuple[Axis, ...], groups: int
    ) -> Tensor:
        ctx.save_for_backward(pixels, maps, kernels, factors)
        ctx.axes, ctx.groups = axes, groups
        transforms, sizes = _Transforms(kernels, axes), factors.shape[1:]
        x, blocks = pixels.unflatten(1, (groups, -1)), maps.unflatten(1, (groups, -1))
        y = pixels.new_zeros(len(pixels), groups, maps.shape[1] // groups, sizes.numel())
        for image, some, channels in _channel_chunks(x, transforms.lengths):
            keys = transforms.of_keys(x[image, some, channels])
            mixed = pixels.new_empty(len(maps), *keys.shape[:2], *sizes)
            for head, kernel in enumerate(transforms.kernels.conj()):
                torch.mul(transforms.at_queries(keys * kernel), factors[head], out=mixed[head])
            y[image, some] += einsum(blocks[:, some, :, channels], mixed.flatten(3), _FORWARD)
        return y.view(len(pixels), maps.shape[1], *sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pixels, maps, kernels, factors = ctx.saved_tensors
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            compute, inputs = partial(_at_once, ctx.axes, ctx.groups), (pixels, maps, kernels, factors)
            return *backward_to_differentiate(compute, inputs, ctx.needs_input_grad[:4], gradient), None, None
        groups, transforms, sizes = ctx.groups, _Transforms(kernels, ctx.axes), factors.shape[1:]
        by_pixels, by_maps, by_factors = torch.empty_like(pixels), torch.zeros_like(maps), torch.zeros_like(factors)
        by_kernels = torch.zeros_like(transforms.kernels)
        x, by_x = (images.unflatten(1, (groups, -1)) for images in (pixels, by_pixels))
        blocks, by_blocks = maps.unflatten(1, (groups, -1)), by_maps.unflatten(1, (groups, -1))
        upstream = gradient.reshape(len(pixels), groups, maps.shape[1] // groups, sizes.numel())
        for image, some, channels in _channel_chunks(x, transforms.lengths):
            keys, by_y = transforms.of_keys(x[image, some, channels]), upstream[image, some]
            by_keys, mixed = torch.zeros_like(keys), pixels.new_empty(len(maps), *keys.shape[:2], *sizes)
            by_mixed = einsum(blocks[:, some, :, channels], by_y, _BY_MIXED).view_as(mixed)
            for head, kernel in enumerate(transforms.kernels):
                means, by_means = transforms.at_queries(keys * kernel.conj()), by_mixed[head].double()
                torch.mul(means, factors[head], out=mixed[head])
                by_factors[head] += (means * by_means).sum((0, 1))
                spread = transforms.of_queries(by_means * factors[head])
                by_kernels[head] += (spread.conj() * keys).sum((0, 1))
                by_keys += spread.mul_(kernel)
            by_blocks[:, some, :, channels] += einsum(by_y, mixed.flatten(3), _BY_MAPS)
            by_x[image, some, channels] = transforms.back(by_keys, transforms.keys)
        every = [slice(None)] * len(transforms.lengths)
        return by_pixels, by_maps, transforms.back(by_kernels, every), by_factors, None, None


_FORWARD = "heads groups outputs channels, heads groups channels queries -> groups outputs queries"
_BY_MIXED = "heads groups outputs channels, groups outputs queries -> heads groups channels queries"
_BY_MAPS = "groups outputs queries, heads groups channels queries -> heads groups outputs channels"
