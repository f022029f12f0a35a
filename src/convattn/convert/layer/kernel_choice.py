"""The convolution that replaces an attention layer: the image sizes it is made for, its window, kernel and padding."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.convert.certificate.trial import draw_images, smallest_image, softmax_copy
from convattn.convert.classes import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, AnyConvolution
from convattn.convert.layer.attention_map import AttentionMap, map_attention, unit_steps
from convattn.convert.layer.hard_heads import find_hard_heads, fixed_heads
from convattn.convert.layer.windows import Window, box_window, own_window, sized_windows
from convattn.encodings import LearnedAxial, LearnedTable
from convattn.errors import ArgumentError, ConversionError, UnknownNameError, must_be
from convattn.grid import PADDING_MODES, Geometry, PerAxis, axis_lists
from convattn.layers import RelativeAttention

_MOST = 1 << 18
_LONGEST = 1 << 10
"""Limits of the search: displacements of a grid, and keys along an axis."""


class KernelChoice(NamedTuple):
    """A kernel in float64, its window, how the image is padded, and the attention that the kernel misses."""

    kernel: Float[Tensor, "outputs channels *taps"]
    window: Window
    padding_mode: str
    errors: Float[Tensor, "heads *queries"]
    leak: float
    any_size: bool


def choose_sizes(layer: RelativeAttention, mass: float, spatial: PerAxis | None) -> tuple[int, ...]:
    """Chooses the sizes of the images for which a kernel is computed and measured; those of the user if given.

    For tables: the sizes that just use the whole table. For hard heads: sizes at which each head's displacement leads
    to a key. For others: growing sizes until the heads use only half of the displacements; if they use more than half
    of any grid, ArgumentError asks the user for sizes.
    """
    geometry = layer.geometry
    if spatial is not None:
        sizes = axis_lists("spatial", spatial, layer.dims, least=1)
        layer.encoding.require_axes(unit_steps(geometry, sizes))
        return sizes
    if isinstance(layer.encoding, LearnedAxial | LearnedTable):
        pads, steps = (sum(pair) for pair in geometry.padding), geometry.input_dilation
        held = zip(layer.encoding.extent, pads, steps, strict=True)
        return tuple(max(1, (extent - pad - 1) // step + 1) for extent, pad, step in held)
    weight = next(layer.values.parameters())
    least, extra, own = smallest_image(geometry), 4, own_window(geometry)
    heads = fixed_heads(layer.encoding, weight.dtype)
    while True:
        sizes = tuple(size + extra + axis for axis, size in enumerate(least))
        axes = unit_steps(geometry, sizes)
        many = heads is None and math.prod(2 * axis.keys for axis in axes) > _MOST
        if extra > 4 and (many or max(sizes) > _LONGEST):
            expectation = (
                "given, because the heads do not fall off with distance, so that the kernel depends on the image's size"
            )
            raise ArgumentError(must_be("spatial", expectation, spatial))
        if heads is not None:
            shown = heads.seen(axes)
        else:
            attention = map_attention(layer.encoding, axes, weight.device)
            shown = (own is not None and attention.left_out(own) <= mass) or attention.falls_off(mass)
        if shown:
            return sizes
        extra += extra // 2


def padding_modes(geometry: Geometry, asked: str | None) -> tuple[str, ...]:
    """Returns the padding modes to try; a layer that pads has only its own."""
    if asked is not None and asked not in PADDING_MODES:
        raise UnknownNameError("padding_mode", asked, PADDING_MODES)
    if geometry.keeps_grid:
        return ("zeros", "replicate") if asked is None else (asked,)
    if asked not in (None, geometry.padding_mode):
        raise ArgumentError(must_be("padding_mode", f"None or the layer's own {geometry.padding_mode!r}", asked))
    return (geometry.padding_mode,)


def choose_kernel(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    maps: Float[Tensor, "heads outputs channels"],
    taps: tuple[int, ...] | None,
    mass: float,
    modes: Sequence[str],
) -> KernelChoice:
    """Returns the kernel of one padding mode: one for any image size, or else the closest to the layer.

    Closeness is measured on random pixels of mean 1 and deviation 1.
    """
    choices = [_kernel_for(layer, sizes, maps, taps, mass, mode) for mode in modes]
    for choice in choices:
        if choice.any_size or len(choices) == 1:
            return choice
    exact, x = softmax_copy(layer, torch.float64), 1 + draw_images(layer, sizes, torch.float64)
    expected = exact(x)
    return min(choices, key=lambda choice: (make_convolution(exact, choice)(x) - expected).square().mean().item())


def _kernel_for(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    maps: Float[Tensor, "heads outputs channels"],
    taps: tuple[int, ...] | None,
    mass: float,
    mode: str,
) -> KernelChoice:
    """Returns the kernel of hard heads if all are hard and a window holds them, else that of the attention itself."""
    geometry, axes = layer.geometry, unit_steps(layer.geometry, sizes)
    hard = find_hard_heads(layer, axes, mode)
    window = None if hard is None else hard.window(geometry, taps)
    if hard is not None and window is not None:
        mode = _paddable_mode(window, geometry, mode, sizes)
        errors = maps.new_full((len(maps), 1), 2 * hard.leak)
        return KernelChoice(hard.kernel(window, maps), window, mode, errors, hard.leak, hard.any_size)
    attention = map_attention(layer.encoding, axes, next(layer.parameters()).device)
    window = _window(attention, geometry, taps, mass)
    mode = _paddable_mode(window, geometry, mode, sizes)
    zeros = mode == "zeros" and all(pixels >= 0 for pair in geometry.padding for pixels in pair)
    errors = attention.errors(window, geometry, zeros=zeros)
    return KernelChoice(attention.kernel(window, maps), window, mode, errors, attention.leak(window), any_size=False)


def _window(attention: AttentionMap, geometry: Geometry, taps: tuple[int, ...] | None, mass: float) -> Window:
    """Chooses the window for heads that are not hard."""
    if taps is not None:
        windows = sized_windows(geometry, taps)
        if not windows:
            expectation = (
                "one with which a torch convolution gives the layer's output size (odd instead of even, or even instead"
                " of odd)"
            )
            raise ArgumentError(must_be("kernel_size", expectation, taps))
        return min(windows, key=attention.left_out)
    own = own_window(geometry)
    if own is not None and attention.left_out(own) <= mass:
        return own
    window = box_window(geometry, *attention.trimmed(mass))
    if window is None:
        raise ConversionError(f"cannot convert: no torch convolution has this geometry: {geometry}")
    return window


def _paddable_mode(window: Window, geometry: Geometry, mode: str, sizes: Sequence[int]) -> str:
    """Returns the padding mode, the layer's own if no tap needs another; raises if torch cannot pad such images so."""
    if window.within(geometry):
        mode = geometry.padding_mode
    slack = {"reflect": 1, "circular": 0}.get(mode)
    if slack is None or window.padding == "same":
        return mode
    for axis, (pixels, size) in enumerate(zip(window.padding, sizes, strict=True)):
        if pixels > size - slack:
            raise ConversionError(
                f"cannot convert: {mode} padding of {pixels} along axis {axis} needs images of at least"
                f" {pixels + slack} pixels, but spatial is {tuple(sizes)}; give a smaller kernel_size"
            )
    return mode


def make_convolution(layer: RelativeAttention, choice: KernelChoice) -> AnyConvolution:
    """Makes the convolution with a chosen kernel."""
    window, kernel = choice.window, choice.kernel
    parameter = next(layer.values.parameters())
    options = {
        "kernel_size": window.taps,
        "padding": window.padding,
        "dilation": window.steps,
        "groups": layer.groups,
        "bias": layer.bias is not None,
        "device": parameter.device,
        "dtype": parameter.dtype,
    }
    if window.transposed:
        options |= {"stride": layer.geometry.input_dilation, "output_padding": window.output_padding}
        conv: AnyConvolution = TRANSPOSED_CONVOLUTIONS[layer.dims](layer.in_channels, layer.out_channels, **options)
        flipped = kernel.flip(list(range(2, kernel.ndim)))
        weight = rearrange(flipped, "(groups o) i ... -> (groups i) o ...", groups=layer.groups)
    else:
        options |= {"stride": layer.geometry.stride, "padding_mode": choice.padding_mode}
        conv, weight = CONVOLUTIONS[layer.dims](layer.in_channels, layer.out_channels, **options), kernel
    if not math.isfinite(weight.to(parameter.dtype).abs().max().item()):
        raise ConversionError(f"cannot convert: the kernel would not be finite in {parameter.dtype}")
    conv.weight.copy_(weight).requires_grad_(parameter.requires_grad)
    if layer.bias is not None and conv.bias is not None:
        conv.bias.copy_(layer.bias).requires_grad_(layer.bias.requires_grad)
    return conv.train(layer.training)
