"""Hard heads: each looks at one fixed displacement, so attention is a convolution and is computed as one.

With A_h[q, k] = 1 where k = q + Δ_h and 0 elsewhere, y[q] = Σ_h W_h x[q + Δ_h] (`docs/explanation/theory.md` §3): the
heads are the taps of a kernel, and W_h is its weight at the tap Δ_h.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from convattn.functional.reference import dilate, pad_keys
from convattn.functional.torch_modes import needs_own_operations, product_dtype, without_autocast
from convattn.grid import Axis, Geometry

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}

_BLOCK = 16
"""Channels that oneDNN takes at a time: 8 with AVX2, 16 with AVX-512. The fault needs fewer than a block."""


def take_every(
    x: Shaped[Tensor, "batch channels *spatial"], steps: Sequence[int]
) -> Shaped[Tensor, "batch channels *taken"]:
    """Takes every n-th pixel along each axis, from the first on.

    Args:
        x: Images.
        steps: n of each axis.

    Returns:
        A view of the images.

    Example:
        >>> take_every(torch.arange(5.0).view(1, 1, 5), [2]).tolist()
        [[[0.0, 2.0, 4.0]]]
    """
    return x[(..., *(slice(None, None, step) for step in steps))]


def convolve(
    x: Float[Tensor, "batch channels *spatial"],
    kernel: Float[Tensor, "outputs channels_per_group *taps"],
    bias: Float[Tensor, " outputs"] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes what `torch.nn.functional.conv1d`, `conv2d` or `conv3d` does, with correct gradients."""
    if _is_narrow_in_bfloat16(x, kernel.shape[2:], x.shape[2:], stride, dilation):
        with without_autocast(x.device):
            wide = x.float(), kernel.float(), None if bias is None else bias.float()
            return convolve(*wide, stride, padding, dilation, groups).bfloat16()
    if torch.is_grad_enabled() and _meets_the_fault(kernel, stride, padding):
        x, stride = take_every(x, stride), (1,) * len(stride)
    return _CONVOLUTIONS[len(stride)](x, kernel, bias, stride, padding, dilation, groups)


def convolve_transposed(
    x: Float[Tensor, "batch channels *spatial"],
    kernel: Float[Tensor, "channels outputs_per_group *taps"],
    bias: Float[Tensor, " outputs"] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    extra: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes `torch.nn.functional.conv_transpose1d`, 2d or 3d with output padding `extra`, with correct gradients."""
    compute = _TRANSPOSED[len(stride)]
    sizes = zip(x.shape[2:], kernel.shape[2:], stride, padding, extra, dilation, strict=True)
    made = [
        step * (n - 1) - 2 * pad + d * (taps - 1) + 1 + more
        for n, taps, step, pad, more, d in sizes
    ]
    unwritten = len(stride) == 3 and _leaves_gaps(kernel, stride, padding, extra, dilation)
    if _is_narrow_in_bfloat16(x, kernel.shape[2:], [0] if unwritten else made, stride, dilation):
        with without_autocast(x.device):
            wide = x.float(), kernel.float(), None if bias is None else bias.float()
            return convolve_transposed(*wide, stride, padding, extra, groups, dilation).bfloat16()
    if torch.is_grad_enabled() and _meets_the_fault(kernel, stride, padding):
        y = dilate(compute(x, kernel, groups=groups), stride)
        y = functional.pad(y, [pixels for more in reversed(extra) for pixels in (0, more)])
    elif bias is not None and _leaves_gaps(kernel, stride, padding, extra, dilation):
        y = compute(x, kernel, None, stride, padding, extra, groups, dilation)
    else:
        return compute(x, kernel, bias, stride, padding, extra, groups, dilation)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * len(stride))


def _is_narrow_in_bfloat16(x: Tensor, taps: Sequence[int], *sizes: Sequence[int]) -> bool:
    """Tells whether taps of a strided convolution in bfloat16 may see no pixel: oneDNN's AMX then errs or crashes."""
    pixels, stride, dilation = sizes
    if max(stride) == 1 or x.device.type != "cpu" or product_dtype(x) != torch.bfloat16:
        return False
    return any(
        n <= d * (k - 1) + step
        for n, k, step, d in zip(pixels, taps, stride, dilation, strict=False)
    )


def _leaves_gaps(
    kernel: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    extra: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Tells whether no tap of a transposed convolution reaches some outputs."""
    spans = [step * (taps - 1) + 1 for step, taps in zip(dilation, kernel.shape[2:], strict=True)]
    between = any(step > span for step, span in zip(stride, spans, strict=True))
    return between or any(more > pixels for more, pixels in zip(extra, padding, strict=True))


def _meets_the_fault(kernel: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Tells whether a convolution is narrow, strided and of one pixel, without padding."""
    return (
        max(stride) > 1
        and kernel.shape[1] < _BLOCK
        and set(kernel.shape[2:]) == {1}
        and not any(padding)
    )


class WindowConvolution(NamedTuple):
    """A layer whose heads are the taps of its window, as a convolution for images of any size."""

    displacements: tuple[tuple[int, ...], ...]  # the taps, row by row
    smallest: int  # least number of pixels of an image along each axis
    taps: tuple[int, ...]  # size of the kernel along each axis
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def kernel(self, maps: Tensor) -> Float[Tensor, "outputs channels_per_group *taps"]:
        """Arranges W_h, (heads, outputs, channels // groups), as the convolution's kernel; a view if stored so."""
        return _as_kernel(maps, self.taps)

    def convolve(self, x: Tensor, kernel: Tensor, groups: int, bias: Tensor | None) -> Tensor:
        """Computes the layer.

        Args:
            x: Images.
            kernel: (outputs, channels // groups, *taps).
            groups: Number of blocks.
            bias: Added to the output, or None.

        Returns:
            (batch, outputs, *queries).
        """
        return convolve(x, kernel, bias, self.stride, self.padding, self.dilation, groups)


def window_convolution(geometry: Geometry) -> WindowConvolution | None:
    """Finds the convolution that computes one head per tap, from the geometry alone.

    Args:
        geometry: The window, its steps and the padding.

    Returns:
        The convolution; None if torch's convolutions cannot pad so by themselves.
    """
    own = geometry.keeps_grid or (
        geometry.padding_mode == "zeros" and set(geometry.input_dilation) == {1}
    )
    if not own or any(before != after or before < 0 for before, after in geometry.padding):
        return None
    padding = tuple(before for before, _ in geometry.padding)
    sizes = zip(geometry.kernel_size, geometry.dilation, padding, strict=True)
    smallest = max(1, *(step * (taps - 1) + 1 - 2 * pad for taps, step, pad in sizes))
    taps = tuple(displacement for _, displacement in geometry.taps())
    return WindowConvolution(
        taps, smallest, geometry.kernel_size, geometry.stride, padding, geometry.dilation
    )


class Shifts(NamedTuple):
    """Where hard heads look."""

    # Displacement of each head. Where it leads out of the image, the head looks at the nearest key.
    offsets: tuple[tuple[int, ...], ...]
    leak: float  # largest share of attention, over heads and queries, that is not at that key

    @property
    def window(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The kernel that holds all heads: (first displacement, taps, dilation) per axis."""
        first, taps, steps = [], [], []
        for along in zip(*self.offsets, strict=True):
            low, high = min(along), max(along)
            step = math.gcd(*(offset - low for offset in along)) or 1
            first.append(low)
            taps.append((high - low) // step + 1)
            steps.append(step)
        return tuple(first), tuple(taps), tuple(steps)


def shift_attention(
    shifts: Shifts,
    axes: Sequence[Axis],
    geometry: Geometry,
    x: Float[Tensor, "batch channels *spatial"],
    maps: Float[Tensor, "heads outputs channels_per_group"],
    groups: int = 1,
    bias: Float[Tensor, " outputs"] | None = None,
    *,
    unmoved: Sequence[Tensor] = (),
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes attention with hard heads as one convolution.

    Where the images are spread out it is a transposed one if that has such arguments, so that the zeros between the
    pixels are not made.

    Args:
        shifts: Where the heads look.
        axes: Queries and keys along each axis of the padded images.
        geometry: How the images are padded.
        x: Images, before padding.
        maps: W_h; with groups its block-diagonal.
        groups: Number of blocks.
        bias: Added to the output.
        unmoved: Scores of heads that learn; they get a gradient of zero.

    Returns:
        Output channels at each query. Gradients with respect to `x`, `maps` and `bias` are exact.
    """
    if unmoved and not needs_own_operations(maps, *unmoved):
        maps = _NoGradient.apply(maps, *unmoved)
    first, taps, dilation = window = shifts.window
    maps = _by_tap(maps, shifts.offsets, window)
    start = [axis.queries[0] + low for axis, low in zip(axes, first, strict=True)]
    spans = [(n - 1) * step + 1 for n, step in zip(taps, dilation, strict=True)]
    spread = _spread_arguments(geometry, axes, start, spans, dilation)
    if spread is not None:
        padding, extra = spread
        kernel = _transposed(maps, groups, taps)
        return convolve_transposed(
            x, kernel, bias, geometry.input_dilation, padding, extra, groups, dilation
        )
    padding = _own_padding(geometry, axes, start, spans)
    if padding is None:
        stop = [
            axis.queries[-1] + low + span
            for axis, low, span in zip(axes, first, spans, strict=True)
        ]
        x, padding = _window(pad_keys(x, geometry), axes, start, stop), (0,) * len(axes)
    stride = tuple(axis.queries.step for axis in axes)
    return convolve(x, _as_kernel(maps, taps), bias, stride, padding, dilation, groups)


def _as_kernel(
    maps: Tensor, taps: tuple[int, ...]
) -> Float[Tensor, "outputs channels_per_group *taps"]:
    """Arranges the matrices of taps as the kernel of a convolution."""
    return maps.movedim(0, -1).unflatten(-1, taps)


def _transposed(
    maps: Tensor, groups: int, taps: tuple[int, ...]
) -> Float[Tensor, "inputs outputs_per_group *taps"]:
    """Arranges the matrices of taps as the kernel of a transposed convolution."""
    kernel = rearrange(
        maps.flip(0), "taps (groups outputs) inputs -> (groups inputs) outputs taps", groups=groups
    )
    return kernel.unflatten(-1, taps)


def _by_tap(
    maps: Tensor, offsets: Sequence[tuple[int, ...]], window: tuple[tuple[int, ...], ...]
) -> Float[Tensor, "taps outputs channels"]:
    """Adds up the matrices of heads at the same tap; those of a tap without a head are zero."""
    first, taps, dilation = window
    positions = []
    for offset in offsets:
        position = 0
        for value, low, step, size in zip(offset, first, dilation, taps, strict=True):
            position = position * size + (value - low) // step
        positions.append(position)
    count = math.prod(taps)
    if positions == list(range(count)):
        return maps
    index = torch.tensor(positions, device=maps.device)
    return maps.new_zeros(count, *maps.shape[1:]).index_add(0, index, maps)


def _spread_arguments(
    geometry: Geometry,
    axes: Sequence[Axis],
    start: Sequence[int],
    spans: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns padding and output padding of the transposed convolution; None if there is no such convolution."""
    if set(geometry.input_dilation) == {1} or geometry.padding_mode != "zeros":
        return None
    padding, extra = [], []
    steps = zip(
        geometry.padding, geometry.input_dilation, axes, start, spans, dilation, strict=True
    )
    for (before, after), step, axis, low, span, spread in steps:
        pad = low + span - 1 - before
        more = len(axis.queries) - (axis.keys - before - after + span - 1 - 2 * pad)
        inside = low >= 0 and axis.queries[-1] - axis.queries[0] + low + span <= axis.keys
        if axis.queries.step != 1 or not inside or pad < 0 or not 0 <= more < max(step, spread):
            return None
        padding.append(pad)
        extra.append(more)
    return tuple(padding), tuple(extra)


def _own_padding(
    geometry: Geometry, axes: Sequence[Axis], start: Sequence[int], spans: Sequence[int]
) -> tuple[int, ...] | None:
    """Returns the padding with which a convolution meets the window, or None if it cannot pad so."""
    if set(geometry.input_dilation) != {1} or (
        geometry.padding_mode != "zeros" and not geometry.keeps_grid
    ):
        return None
    padding = []
    for (before, after), axis, low, span in zip(geometry.padding, axes, start, spans, strict=True):
        step, pad = axis.queries.step, before - low
        high = axis.queries[-1] - axis.queries[0] + low + span
        outputs = (axis.keys - before - after + 2 * pad - span) // step + 1
        if (
            low < 0
            or high > axis.keys
            or pad < 0
            or high > axis.keys - after + pad
            or outputs != len(axis.queries)
        ):
            return None
        padding.append(pad)
    return tuple(padding)


def _window(
    keys: Tensor, axes: Sequence[Axis], start: Sequence[int], stop: Sequence[int]
) -> Tensor:
    """Cuts out the keys under the kernel; beyond the border the nearest key is repeated."""
    margins = [
        (max(0, -low), max(0, high - axis.keys))
        for low, high, axis in zip(start, stop, axes, strict=True)
    ]
    for dim, (low, high, axis) in enumerate(zip(start, stop, axes, strict=True), start=2):
        inside = slice(min(max(0, low), axis.keys - 1), max(1, min(high, axis.keys)))
        keys = keys[(slice(None),) * dim + (inside,)]
    if not any(sum(pair) for pair in margins):
        return keys
    return functional.pad(
        keys, [pixels for pair in reversed(margins) for pixels in pair], mode="replicate"
    )


class _NoGradient(torch.autograd.Function):
    """Passes on the matrices of hard heads, and gives the heads' scores a gradient of zero.

    The output cannot be passed instead: later code may change it in place, which torch forbids for the result of a
    custom function.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, *scores: Tensor) -> Tensor:
        ctx.save_for_backward(*scores)
        return maps.view_as(maps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return gradient, *(torch.zeros_like(table) for table in ctx.saved_tensors)
