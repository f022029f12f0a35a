"""hypothesis strategies: every kind of convolution that torch has, each with an input that fits it."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from convattn.convert.taps import (
    CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    AnyConvolution,
    TransposedConvolution,
)
from convattn.grid import PADDING_MODES

__all__ = ["convolutions", "convolutions_with_images", "images_for"]

_LARGEST_KERNEL = {1: 7, 2: 4, 3: 3}
_LARGEST_DILATION = {1: 3, 2: 3, 3: 2}
_SPARE_PIXELS = {1: (0, 1, 2, 5, 10), 2: (0, 1, 2, 4), 3: (0, 1, 2)}
"""How many pixels an image has beyond the fewest that the convolution takes."""

Draw = Callable[
    ..., Any
]  # hypothesis's own DrawFn is a protocol that cannot be checked at run time


@st.composite
def convolutions(
    draw: Draw, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
) -> AnyConvolution:
    """Draws a convolution of one to three axes, plain or transposed, with normally distributed weights.

    Kernels are even, odd and different per axis; stride, dilation, padding (an integer, one per axis, "same", "valid"),
    every padding mode, output padding, groups down to depthwise, with and without bias; weights of scale 1e-3, 1 and
    1e3.
    """
    dims, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    groups = draw(st.integers(1, 3))
    kernel_size = draw(_per_axis(dims, 1, _LARGEST_KERNEL[dims]))
    dilation = draw(_per_axis(dims, 1, _LARGEST_DILATION[dims]))
    options: dict[str, Any] = {
        "in_channels": groups * draw(st.integers(1, 3)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": kernel_size,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(dtypes)),
    }
    options |= draw(
        (_transposed_options if transposed else _plain_options)(dims, kernel_size, dilation)
    )
    conv = (TRANSPOSED_CONVOLUTIONS if transposed else CONVOLUTIONS)[dims](**options)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    scale = draw(st.sampled_from([1e-3, 1.0, 1e3]))
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return conv


@st.composite
def images_for(draw: Draw, conv: AnyConvolution) -> Tensor:
    """Draws 0 to 3 standard normal images for a convolution, from the smallest that it takes upwards."""
    fewest = [_fewest_pixels(conv, axis) for axis in range(len(conv.kernel_size))]
    spare = [draw(st.sampled_from(_SPARE_PIXELS[len(fewest)])) for _ in fewest]
    batch = draw(st.sampled_from([1, 2, 3, 0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    sizes = [least + more for least, more in zip(fewest, spare, strict=True)]
    return torch.randn(
        batch, conv.in_channels, *sizes, generator=generator, dtype=torch.float64
    ).to(conv.weight.dtype)


@st.composite
def convolutions_with_images(
    draw: Draw, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
) -> tuple[AnyConvolution, Tensor]:
    """Draws a convolution and images for it."""
    conv = draw(convolutions(dtypes))
    return conv, draw(images_for(conv))


@st.composite
def _plain_options(
    draw: Draw, dims: int, kernel_size: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[str, Any]:
    """Draws what only a plain convolution has."""
    stride = draw(st.one_of(st.just((1,) * dims), _per_axis(dims, 1, 3)))
    reach = max(d * (k - 1) for d, k in zip(dilation, kernel_size, strict=True))
    choices = [
        st.just("valid"),
        st.integers(0, min(reach, 4) + 1),
        _per_axis(dims, 0, min(reach, 4) + 1),
    ]
    if set(stride) == {1}:
        choices.append(st.just("same"))
    return {
        "stride": stride,
        "padding": draw(st.one_of(*choices)),
        "padding_mode": draw(st.sampled_from(PADDING_MODES)),
    }


@st.composite
def _transposed_options(
    draw: Draw, dims: int, kernel_size: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[str, Any]:
    """Draws what only a transposed convolution has; its padding may be wider than its kernel."""
    stride = draw(_per_axis(dims, 1, 3))
    padding = [
        draw(st.integers(0, d * (k - 1) + 1)) for d, k in zip(dilation, kernel_size, strict=True)
    ]
    output_padding = [
        draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
    ]
    return {"stride": stride, "padding": tuple(padding), "output_padding": tuple(output_padding)}


def _per_axis(dims: int, least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(least, most)] * dims)


def _fewest_pixels(conv: AnyConvolution, axis: int) -> int:
    """Returns the size along an axis below which torch refuses the image."""
    reach = conv.dilation[axis] * (conv.kernel_size[axis] - 1)
    if isinstance(conv, TransposedConvolution):
        missing = 2 * int(conv.padding[axis]) - reach - int(conv.output_padding[axis])
        return max(1, 1 - (-missing // conv.stride[axis]))
    if isinstance(conv.padding, str):
        before, total = (reach // 2, reach) if conv.padding == "same" else (0, 0)
    else:
        before, total = int(conv.padding[axis]), 2 * int(conv.padding[axis])
    wrapped = (
        {"reflect": total - before + 1, "circular": total - before}.get(conv.padding_mode, 1)
        if total
        else 1
    )
    return max(1, reach + 1 - total, wrapped)
