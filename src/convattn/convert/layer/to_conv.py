"""From attention to convolution: exact for hard heads, else up to borders and distant attention."""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.certificate.layer import Promise, certify_convolution
from convattn.convert.certificate.trial import draw_images, softmax_copy
from convattn.convert.classes import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, AnyConvolution
from convattn.convert.copies import keep_random_state
from convattn.convert.layer.attention_map import AttentionMap, map_attention, unit_steps
from convattn.convert.layer.convertible import closed_gate, require_convertible
from convattn.convert.layer.hard_heads import find_hard_heads
from convattn.convert.layer.reference_size import choose_sizes
from convattn.convert.layer.windows import Window, box_window, own_window, sized_windows
from convattn.errors import ArgumentError, ConversionError, UnknownNameError, must_be
from convattn.grid import PADDING_MODES, Geometry, PerAxis, axis_lists
from convattn.layers import RelativeAttention
from convattn.records import Certificate

__all__ = ["attention_to_conv", "require_mass"]


class _Choice(NamedTuple):
    """A kernel in float64, its window, how the image is padded, and the attention that the kernel misses."""

    kernel: Float[Tensor, "outputs channels *taps"]
    window: Window
    padding_mode: str
    errors: Float[Tensor, "heads *queries"]
    leak: float
    any_size: bool


def attention_to_conv(
    layer: nn.Module,
    *,
    kernel_size: PerAxis | None = None,
    mass: float | None = None,
    spatial: PerAxis | None = None,
    padding_mode: str | None = None,
) -> tuple[AnyConvolution, Certificate]:
    """Makes the convolution that computes an attention layer without content, as exactly as a window allows.

    The kernel is `K[δ] = Σ_h ā_h(δ) W_h`, where ā_h is the attention far from borders. Hard heads give the convolution
    back exactly, with its kernel size, stride, padding, padding mode, dilation and groups; a layer with an input
    dilation becomes a transposed convolution. Other heads lose the attention outside the window, and near borders the
    softmax differs from a convolution:
    `|y_attention − y_convolution| ≤ max|x̃| · max_{o,q} Σ_h λ_h(q) ‖W_h[o]‖₁`, where λ_h(q) is, with zeros around the
    image, the share of ā_h that is not at pixels inside the window.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1, read backwards; `docs/theory.md` §5.

    Args:
        layer: RelativeAttention1d/2d/3d without content, or a gated one whose gate is closed up to rounding; it is not
            changed.
        kernel_size: Taps per axis, ≥ 1. None takes the layer's own window, or the smallest one that leaves at most
            `mass` outside.
        mass: Largest share in (0, 1) of a head's attention that may lie outside the window. None means eps of the
            weights' dtype.
        spatial: Sizes of the images. Needed if attention does not fall off with distance, because it then depends on
            them. None takes the extent of a table, or a grid that is large enough for the heads.
        padding_mode: Padding of the convolution if the layer itself does not pad: "zeros", "reflect", "replicate" or
            "circular". None takes "zeros" or "replicate", whichever is closer to the layer on random pixels of mean 1
            and deviation 1. A layer that pads keeps its own mode.

    Returns:
        nn.Conv1d/2d/3d or nn.ConvTranspose1d/2d/3d with the layer's dtype, device and mode, and the certificate. A
        transposed convolution of stride 1 comes back as a plain convolution.

    Raises:
        UnsupportedModelError: The layer is of another class, has hooks, or its numbers are not finite.
        ConversionError: Its scores depend on content, its gate is open, or no torch convolution has its geometry.
        ArgumentError: An argument is out of range, or `spatial` is needed. UnknownNameError for an unknown mode.

    Example:
        >>> from convattn.convert import conv_to_attention
        >>> conv = nn.Conv2d(3, 5, kernel_size=3, padding=1)
        >>> again, certificate = attention_to_conv(conv_to_attention(conv)[0])
        >>> again, certificate.exact, torch.equal(again.weight, conv.weight)
        (Conv2d(3, 5, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)), True, True)
    """
    layer = require_convertible(layer)
    content_share = closed_gate(layer)
    dtype = next(layer.values.parameters()).dtype
    taps = None if kernel_size is None else axis_lists("kernel_size", kernel_size, layer.dims, least=1)
    if mass is None:
        mass = torch.finfo(dtype).eps
    else:
        require_mass(mass)
    modes = _padding_modes(layer.geometry, padding_mode)
    sizes = choose_sizes(layer, mass, spatial)
    with torch.no_grad(), keep_random_state(layer):
        maps = copy.deepcopy(layer.values).double().maps()
        choice = _nearest(layer, sizes, [_choose(layer, sizes, maps, taps, mass, mode) for mode in modes])
        conv = _make_convolution(layer, choice)
        rows = reduce(maps.abs(), "heads outputs channels -> heads outputs", "sum")
        shares = choice.errors.flatten(1) + 2 * content_share
        promise = Promise(
            leak=choice.leak + content_share,
            per_unit=(shares.mT @ rows).max().item(),
            exact=shares.max().item() <= torch.finfo(dtype).eps,
            any_size=choice.any_size,
        )
    certificate = certify_convolution(layer, conv, choice.kernel, rows, sizes, promise)
    return conv, certificate


def require_mass(mass: float) -> None:
    """Raises ArgumentError unless `mass` is a number in (0, 1)."""
    if isinstance(mass, bool) or not (isinstance(mass, int | float) and 0 < mass < 1):
        raise ArgumentError(must_be("mass", "a share in (0, 1)", mass))


def _padding_modes(geometry: Geometry, asked: str | None) -> tuple[str, ...]:
    """Returns the padding modes to try; a layer that pads has only its own."""
    if asked is not None and asked not in PADDING_MODES:
        raise UnknownNameError("padding_mode", asked, PADDING_MODES)
    if geometry.keeps_grid:
        return ("zeros", "replicate") if asked is None else (asked,)
    if asked not in (None, geometry.padding_mode):
        raise ArgumentError(must_be("padding_mode", f"None or the layer's own {geometry.padding_mode!r}", asked))
    return (geometry.padding_mode,)


def _nearest(layer: RelativeAttention, sizes: tuple[int, ...], choices: Sequence[_Choice]) -> _Choice:
    """Returns a choice that holds for any size, or else the closest one on random pixels of mean 1 and deviation 1."""
    for choice in choices:
        if choice.any_size or len(choices) == 1:
            return choice
    exact, x = softmax_copy(layer, torch.float64), 1 + draw_images(layer, sizes, torch.float64)
    expected = exact(x)
    return min(choices, key=lambda choice: (_make_convolution(exact, choice)(x) - expected).square().mean().item())


def _choose(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    maps: Float[Tensor, "heads outputs channels"],
    taps: tuple[int, ...] | None,
    mass: float,
    mode: str,
) -> _Choice:
    """Chooses the kernel: that of hard heads if all are hard and a window holds them, else the attention itself."""
    geometry, axes = layer.geometry, unit_steps(layer.geometry, sizes)
    hard = find_hard_heads(layer, axes, mode)
    window = None if hard is None else hard.window(geometry, taps)
    if hard is not None and window is not None:
        if window.within(geometry):
            mode = geometry.padding_mode
        _require_paddable(window, mode, sizes)
        errors = maps.new_full((len(maps), 1), 2 * hard.leak)
        return _Choice(hard.kernel(window, maps), window, mode, errors, hard.leak, hard.any_size)
    attention = map_attention(layer.encoding, axes, next(layer.parameters()).device)
    window = _window(attention, geometry, taps, mass)
    if window.within(geometry):
        mode = geometry.padding_mode
    _require_paddable(window, mode, sizes)
    zeros = mode == "zeros" and all(pixels >= 0 for pair in geometry.padding for pixels in pair)
    errors = attention.errors(window, geometry, zeros=zeros)
    return _Choice(attention.kernel(window, maps), window, mode, errors, attention.leak(window), any_size=False)


def _window(attention: AttentionMap, geometry: Geometry, taps: tuple[int, ...] | None, mass: float) -> Window:
    """Chooses the window."""
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


def _require_paddable(window: Window, mode: str, sizes: Sequence[int]) -> None:
    """Raises if torch cannot pad images of these sizes so."""
    slack = {"reflect": 1, "circular": 0}.get(mode)
    if slack is None or window.padding == "same":
        return
    for axis, (pixels, size) in enumerate(zip(window.padding, sizes, strict=True)):
        if pixels > size - slack:
            raise ConversionError(
                f"cannot convert: {mode} padding of {pixels} along axis {axis} needs images of at least"
                f" {pixels + slack} pixels, but spatial is {tuple(sizes)}; give a smaller kernel_size"
            )


def _make_convolution(layer: RelativeAttention, choice: _Choice) -> AnyConvolution:
    """Makes the convolution."""
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
