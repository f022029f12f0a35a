"""Convolutions of torch with right results and gradients: what goes wrong in its CPU backend is computed another way.

Known are three faults of oneDNN: strided convolutions in bfloat16 of which taps see no pixel err or crash (AMX);
gradients of narrow, strided convolutions of one pixel are wrong; transposed ones add no bias where no tap reaches.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.reference import add_bias, dilate
from convattn.functional.torch_modes import product_dtype, without_autocast

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}

_BLOCK = 16
"""Channels that oneDNN takes at a time: 8 with AVX2, 16 with AVX-512. Gradients are wrong with less than a block."""


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
    if _errs_in_bfloat16(x, kernel, x.shape[2:], stride, dilation):
        return _widened(convolve, x, kernel, bias, stride, padding, dilation, groups)
    if torch.is_grad_enabled() and _has_wrong_gradients(kernel, stride, padding):
        x = x[(..., *(slice(None, None, step) for step in stride))]
        stride = (1,) * len(stride)
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
    gaps = _leaves_gaps(kernel, stride, padding, extra, dilation)
    outputs = []
    for axis, pixels in enumerate(x.shape[2:]):
        span = dilation[axis] * (kernel.shape[2 + axis] - 1) + 1
        outputs.append(stride[axis] * (pixels - 1) - 2 * padding[axis] + span + extra[axis])
    if gaps and len(stride) == 3:
        outputs = [0, 0, 0]  # volumes with gaps err, however large
    if _errs_in_bfloat16(x, kernel, outputs, stride, dilation):
        return _widened(
            convolve_transposed, x, kernel, bias, stride, padding, extra, groups, dilation
        )
    if torch.is_grad_enabled() and _has_wrong_gradients(kernel, stride, padding):
        y = dilate(compute(x, kernel, groups=groups), stride)
        y = functional.pad(y, [pixels for more in reversed(extra) for pixels in (0, more)])
    elif bias is not None and gaps:
        y = compute(x, kernel, None, stride, padding, extra, groups, dilation)
    else:
        return compute(x, kernel, bias, stride, padding, extra, groups, dilation)
    return add_bias(y, bias)


def _widened(
    compute: Callable[..., Tensor],
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    *arguments: object,
) -> Tensor:
    """Computes in float32, and rounds the result to bfloat16."""
    with without_autocast(x.device):
        wide_bias = None if bias is None else bias.float()
        return compute(x.float(), kernel.float(), wide_bias, *arguments).bfloat16()


def _errs_in_bfloat16(
    x: Tensor,
    kernel: Tensor,
    pixels: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Tells whether taps of a strided convolution in bfloat16 may see no pixel: oneDNN's AMX then errs or crashes."""
    if max(stride) == 1 or x.device.type != "cpu" or product_dtype(x) != torch.bfloat16:
        return False
    along = zip(pixels, kernel.shape[2:], stride, dilation, strict=False)
    return any(n <= spread * (taps - 1) + step for n, taps, step, spread in along)


def _leaves_gaps(
    kernel: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    extra: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Tells whether no tap of a transposed convolution reaches some outputs."""
    along = zip(kernel.shape[2:], stride, padding, extra, dilation, strict=True)
    return any(
        step > spread * (taps - 1) + 1 or more > pixels
        for taps, step, pixels, more, spread in along
    )


def _has_wrong_gradients(kernel: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Tells whether a convolution is narrow, strided and of one pixel, without padding."""
    narrow = kernel.shape[1] < _BLOCK
    return max(stride) > 1 and narrow and set(kernel.shape[2:]) == {1} and not any(padding)
