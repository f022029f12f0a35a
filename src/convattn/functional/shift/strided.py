"""Convolutions of torch, which avoid two faults of oneDNN, seen with torch 2.15.

In narrow strided ones of one pixel, it writes past its memory: on a processor with AVX2, the gradient of their weights
is wrong, or the program crashes or hangs, if images lie channels-last:
https://github.com/uxlfoundation/oneDNN/issues/6035.

In transposed ones in bfloat16, on a processor with AMX, outputs that no tap reaches are 0 instead of the bias.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from convattn.functional.reference import dilate

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}

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
    if torch.is_grad_enabled() and _meets_the_fault(kernel, stride, padding):
        y = dilate(compute(x, kernel, groups=groups), stride)
        y = functional.pad(y, [pixels for more in reversed(extra) for pixels in (0, more)])
    elif bias is not None and _leaves_gaps(kernel, stride, padding, extra, dilation):
        y = compute(x, kernel, None, stride, padding, extra, groups, dilation)
    else:
        return compute(x, kernel, bias, stride, padding, extra, groups, dilation)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * len(stride))


def _leaves_gaps(
    kernel: Tensor, stride: Sequence[int], padding: Sequence[int], extra: Sequence[int], dilation: Sequence[int]
) -> bool:
    """Tells whether no tap of a transposed convolution reaches some outputs."""
    spans = [step * (taps - 1) + 1 for step, taps in zip(dilation, kernel.shape[2:], strict=True)]
    between = any(step > span for step, span in zip(stride, spans, strict=True))
    return between or any(more > pixels for more, pixels in zip(extra, padding, strict=True))


def _meets_the_fault(kernel: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Tells whether a convolution is narrow, strided and of one pixel, without padding."""
    return max(stride) > 1 and kernel.shape[1] < _BLOCK and set(kernel.shape[2:]) == {1} and not any(padding)
