"""Means under kernels that move with the query: a correlation divided by the correlation of ones.

    mean_h[q] = Σ_δ g_h(δ) m[q + δ] x[q + δ] / Σ_δ g_h(δ) m[q + δ]

over the displacements δ of a box with q + δ on the grid of keys; m is 1 where a key is present and 0 where it is
masked. With g = exp s this is attention by displacement (`docs/explanation/theory.md` §4). The correlations are
depthwise convolutions of torch; the layout in which they are handed to it, so that they are fast, is chosen here alone.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.convolution import convolve
from convattn.functional.torch_modes import at_least_float32, needs_own_operations
from convattn.grid import Axis

_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
_STAY = Axis(range(1), 1)  # what an axis is like along which nothing is mixed

_SMALL = 8
"""How many times as many pixels as taps make a kernel small: its padding is then a small part of the work."""


def kernels_of_scores(
    scores: Sequence[Float[Tensor, "heads *taps"]],
) -> list[Float[Tensor, "heads *taps"]]:
    """Returns g = exp(s − max s) per head: a mean is a quotient, so the factor cancels, and no g is infinite.

    Args:
        scores: Scores of displacements, one table of all axes or one per axis if they are a sum over axes.

    Returns:
        As many kernels, of largest tap 1, in at least float32.
    """
    kernels = []
    for table in scores:
        wide = table.to(at_least_float32(table.dtype))
        highest = wide.detach().amax(tuple(range(1, wide.ndim)), keepdim=True)
        kernels.append((wide - highest).exp())
    return kernels


def kernel_means(
    x: Float[Tensor, "batch heads_or_one channels *keys"],
    kernels: Sequence[Float[Tensor, "heads *taps"]],
    lows: Sequence[int],
    axes: Sequence[Axis],
) -> Float[Tensor, "batch heads channels *queries"]:
    """Takes the means of pixels under each head's kernel.

    Args:
        x: Pixels, for each head or one set for all heads.
        kernels: g ≥ 0: one kernel of all axes, or one per axis if it is a product over axes.
        lows: Displacement of the first tap along each axis, in pixels.
        axes: Queries and keys along each axis.

    Returns:
        The means, in the wider of the dtypes of pixels and kernels; 0 where no weight is left.

    Example:
        >>> x, kernel = torch.tensor([3.0, 5.0, 10.0, 0.0]), torch.ones(1, 3)
        >>> kernel_means(x.view(1, 1, 1, 4), [kernel], [-1], [Axis(range(4), 4)]).flatten().tolist()
        [4.0, 6.0, 5.0, 5.0]
    """
    divisors = _kernel_divisors(kernels, lows, axes)
    return weighted_sums(x, kernels, lows, axes) / divisors[:, :, None]


def weighted_sums(
    x: Float[Tensor, "batch heads_or_one channels *keys"],
    kernels: Sequence[Float[Tensor, "heads *taps"]],
    lows: Sequence[int],
    axes: Sequence[Axis],
) -> Float[Tensor, "batch heads channels *queries"]:
    """Returns Σ_δ g_h(δ) x[q + δ]; the arguments are those of `kernel_means`."""
    heads = len(kernels[0])
    channels = x.shape[2]
    images = x.to(torch.promote_types(x.dtype, kernels[0].dtype)).flatten(1, 2)
    steps = _steps(kernels, lows, axes)
    images = _laid_out(images, steps)
    if x.shape[1] == heads:
        sums = _correlate(images, steps)
    else:
        by_head = []
        for head in range(heads):
            own = [step._replace(kernel=step.kernel[head : head + 1]) for step in steps]
            by_head.append(_correlate(images, own))
        sums = torch.cat(by_head, dim=1)
    sums = sums.view(sums.shape[: 2 + len(axes)])
    return sums.unflatten(1, (heads, channels))


def _kernel_divisors(
    kernels: Sequence[Float[Tensor, "heads *taps"]],
    lows: Sequence[int],
    axes: Sequence[Axis],
) -> Float[Tensor, "one heads *queries"]:
    """Returns Σ_δ g_h(δ) over the keys that each query sees, 1 where that is 0; arguments as of `kernel_means`."""
    heads = len(kernels[0])
    # a product over axes has the same sums along an axis at every place of the others
    sums = kernels[0].new_ones(())
    for step in _steps(kernels, lows, axes):
        ones = step.kernel.new_ones(1, heads, *(axis.keys for axis in step.axes))
        sums = sums * _correlate(_laid_out(ones, [step]), [step])
    sums = sums.view(sums.shape[: 2 + len(axes)])
    return sums.masked_fill(sums == 0, 1)


class _Step(NamedTuple):
    """One correlation of planes or volumes."""

    kernel: Float[Tensor, "heads *taps"]
    lows: Sequence[int]
    axes: Sequence[Axis]


def _steps(kernels: Sequence[Tensor], lows: Sequence[int], axes: Sequence[Axis]) -> list[_Step]:
    """Returns the correlations that follow one another; a line is a plane of one column, which is faster in torch."""
    if len(axes) == 1:
        return [_Step(kernels[0][..., None], [*lows, 0], [*axes, _STAY])]
    if len(kernels) == 1:
        return [_Step(kernels[0], lows, axes)]
    steps = []
    for number, kernel in enumerate(kernels):
        shape = [1] * len(axes)
        own_lows = [0] * len(axes)
        own_axes = [_STAY] * len(axes)
        shape[number], own_lows[number], own_axes[number] = -1, lows[number], axes[number]
        steps.append(_Step(kernel.view(len(kernel), *shape), own_lows, own_axes))
    return steps


def _laid_out(images: Tensor, steps: Sequence[_Step]) -> Tensor:
    """Puts images into the layout of memory in which torch correlates channel by channel fast."""
    if images.ndim == 3:
        images = images[..., None]
    # torch.vmap has layouts of its own
    if _pads_before(images, steps) or needs_own_operations(images):
        return images
    return images.contiguous(memory_format=_CHANNELS_LAST[images.ndim - 2])


def _pads_before(images: Tensor, steps: Sequence[_Step]) -> bool:
    """Tells whether images keep torch's default layout, and are padded before the convolution."""
    # In that layout gradients are slow, and so is a convolution that pads more than six columns itself. Otherwise small
    # kernels of all axes are 2 to 10 times as fast as channels-last, but not kernels along one axis.
    taps = prod(steps[0].kernel.shape[1:])
    pixels = prod(images.shape[2:])
    small = len(steps) == 1 and taps * _SMALL <= pixels
    return small and not torch.is_grad_enabled()


def _correlate(
    images: Float[Tensor, "batch heads_channels *keys"], steps: Sequence[_Step]
) -> Float[Tensor, "batch heads_channels *queries"]:
    """Correlates each channel with its head's kernel, g_h ⋆ x, with zeros around."""
    pads_before = _pads_before(images, steps)
    for kernel, lows, axes in steps:
        inside = []
        around = []
        stride = []
        for axis, low, taps in zip(axes, lows, kernel.shape[1:], strict=True):
            before = -axis.queries[0] - low
            after = axis.queries[-1] + low + taps - axis.keys
            both = 0 if pads_before else max(0, min(before, after))
            inside.append(both)
            around = [before - both, after - both, *around]
            stride.append(axis.queries.step)
        if any(around):
            images = functional.pad(images, around)
        channels = images.shape[1] // len(kernel)
        depthwise = kernel[:, None, None].to(images.dtype)
        depthwise = depthwise.expand(-1, channels, *depthwise.shape[2:]).flatten(0, 1)
        images = convolve(
            images, depthwise, None, stride, inside, (1,) * len(stride), images.shape[1]
        )
    return images
