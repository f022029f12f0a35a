"""From attention to convolution: exact for hard heads, else up to borders and distant attention."""

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from convattn.convert.attention_map import AttentionMap
from convattn.convert.certificate import Certificate, require_share
from convattn.convert.hard_heads import (
    find_hard_heads,
    find_window,
    fixed_heads,
    own_window,
    unit_steps,
)
from convattn.convert.layer_check import (
    STEPS,
    Promise,
    certify_layer,
    draw_images,
    largest,
    rounding_bound,
    smallest_image,
    softmax_copy,
)
from convattn.convert.normalised import normalise
from convattn.convert.surgery import first_change
from convattn.convert.taps import (
    ATTENTION_LAYERS,
    CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    AnyConvolution,
    convolution,
    summed_otherwise,
    why_not_numbers,
)
from convattn.errors import (
    ArgumentError,
    ConversionError,
    UnsupportedModelError,
    lacks_memory,
    must_be,
    require,
    require_name,
)
from convattn.grid import Geometry, PerAxis, Window, axis_lists, least_pixels
from convattn.layers import FactoredValues, MergedValues, NormalisedConv, RelativeAttention
from convattn.random_numbers import keep_random_state

_MOST_NUMBERS = 1 << 28
"""Numbers of a kernel, which takes 2 GiB in float64."""

_MOST_DISPLACEMENTS = 1 << 18
_LONGEST = 1 << 10
"""Limits of the search for an image size: displacements of a grid, and keys along an axis."""

_BORDERS = ("plain", "auto", "exact")
"""What happens at borders: a plain convolution with padding; a normalised one where that errs; where not, an error."""

_MODES = ("zeros", "replicate")
"""How a convolution may pad where its attention does not."""


def attention_to_conv(
    layer: nn.Module,
    *,
    kernel_size: PerAxis | None = None,
    mass: float | None = None,
    spatial: PerAxis | None = None,
    borders: str = "plain",
) -> tuple[AnyConvolution | NormalisedConv, Certificate]:
    """Makes the convolution that computes an attention layer without content, as exactly as a window allows.

    The kernel is `K[δ] = Σ_h ā_h(δ) W_h`, where ā_h is the attention far from borders. Hard heads give the convolution
    back exactly, with its kernel size, stride, padding, padding mode, dilation and groups; a layer with an input
    dilation becomes a transposed convolution. Other heads lose the attention outside the window, and near borders the
    softmax differs from a convolution:
    `|y_attention − y_convolution| ≤ max|x̃| · max_{o,q} Σ_h λ_h(q) ‖W_h[o]‖₁`, where λ_h(q) is, with zeros around the
    image, the share of ā_h that is not at pixels inside the window. Where the layer itself does not pad, the
    convolution pads by zeros or replicates, whichever is closer to it on random pixels of mean 1 and deviation 1.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1, read backwards; `docs/explanation/theory.md` §5.

    Args:
        layer: RelativeAttention1d/2d/3d without content, or a gated one whose gate is closed up to rounding; it is not
            changed.
        kernel_size: Taps per axis, ≥ 1. None takes the layer's own window, or the smallest one that leaves at most
            `mass` outside. Hard heads that no window of this size holds may keep their own, smaller one.
        mass: Largest share in (0, 1) of a head's attention that may lie outside the window that is chosen. None means
            eps of the weights' dtype.
        spatial: Sizes of the images. Needed if attention does not fall off with distance, because it then depends on
            them. None takes the extent of a table, or a grid that is large enough for the heads.
        borders: "plain" makes a convolution of torch, which errs at borders unless heads are hard or see zeros around.
            "exact" makes a `NormalisedConv` where that errs: `y = b + Σ_h W_h (g_h ⋆ x) / (g_h ⋆ 1)` with g_h = exp s_h
            in a box that leaves at most `mass` / 4 of any query's attention outside. "auto" does so where the dtype
            allows it. Both choose the window themselves.

    Returns:
        nn.Conv1d/2d/3d or nn.ConvTranspose1d/2d/3d, or a `NormalisedConv`, with the layer's dtype, device and mode, and
        the certificate. A transposed convolution of stride 1 comes back as a plain convolution.

    Raises:
        UnsupportedModelError: The layer is of another class, has hooks, its numbers are not finite, or scores depend on
            content.
        ConversionError: Its gate is open, no torch convolution has its geometry, there is not enough memory to compare
            the two, or with "exact" a head looks too far beyond the image.
        ArgumentError: An argument is out of range, or `spatial` is needed. UnknownNameError for unknown `borders`.

    Example:
        >>> from convattn.convert import conv_to_attention
        >>> conv = nn.Conv2d(3, 5, kernel_size=3, padding=1)
        >>> again, certificate = attention_to_conv(conv_to_attention(conv)[0])
        >>> again, certificate.exact, torch.equal(again.weight, conv.weight)
        (Conv2d(3, 5, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)), True, True)
    """
    layer = _require_convertible(layer)
    content_share = _closed_gate(layer)
    taps = None
    if kernel_size is not None:
        taps = axis_lists("kernel_size", kernel_size, layer.dims, least=1)
        numbers = math.prod(taps) * (layer.in_channels // layer.groups) * layer.out_channels
        expectation = f"one whose kernel has at most {_MOST_NUMBERS:,} numbers"
        require(numbers <= _MOST_NUMBERS, "kernel_size", expectation, taps)
    require_options(kernel_size, mass, borders)
    eps = torch.finfo(layer.like.dtype).eps
    mass = mass or eps
    modes = _MODES if layer.geometry.keeps_grid else (layer.geometry.padding_mode,)
    sizes = choose_sizes(layer, mass, spatial)
    try:
        with torch.no_grad(), keep_random_state(layer):
            maps = copy.deepcopy(layer.values).double().maps()
            rows = reduce(maps.abs(), "heads outputs channels -> heads outputs", "sum")
            choices = []
            for mode in modes:
                with nullcontext() if borders == "plain" else suppress(ConversionError):
                    choices.append(choose_kernel(layer, sizes, maps, taps, mass, mode))
            promise: Promise | None = None
            is_exact = any(choice.errors.max().item() <= eps for choice in choices)
            if borders != "plain" and not is_exact:
                # what is missed counts twice
                with suppress(ConversionError) if borders == "auto" and choices else nullcontext():
                    promise = normalise(layer, sizes, mass / 4, rows, content_share)
            if promise is None:
                choice = closest_kernel(layer, sizes, choices)
                promise = promise_kernel(layer, choice, rows, content_share)
            return promise.conv, certify_layer(promise, sizes)
    except (RuntimeError, MemoryError) as error:  # torch unfolds large kernels, pixel by pixel
        if not lacks_memory(error):
            raise
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: there is not enough memory to compare it with the convolution that"
            " holds its attention; give a kernel_size, a larger mass or a smaller spatial size"
        ) from error


def require_options(kernel_size: PerAxis | None, mass: float | None, borders: str) -> None:
    """Raises unless options are known and in range, and `borders` leaves the window to choose."""
    require_share("mass", mass)
    require_name("borders", borders, _BORDERS)
    if kernel_size is not None:
        require(borders == "plain", "borders", '"plain" with a kernel_size', borders)
        require(mass is None, "mass", "None with a kernel_size, which is the window", mass)


def _require_convertible(layer: nn.Module) -> RelativeAttention:
    """Returns the layer if its class, hooks, scores and parameters let it become a convolution; raises otherwise."""
    own_class = parametrize.type_before_parametrizations(layer)
    if not isinstance(layer, RelativeAttention) or own_class not in ATTENTION_LAYERS:
        known = ", ".join(known.__name__ for known in ATTENTION_LAYERS)
        raise UnsupportedModelError(
            f"cannot convert {own_class.__name__} to a convolution: supported layers are {known}"
        )
    values = parametrize.type_before_parametrizations(layer.values)
    if values not in (MergedValues, FactoredValues):
        reason = f"its values must be MergedValues or FactoredValues, but are {values.__name__}"
    elif layer.content is not None and layer.gate is None:
        reason = "its scores depend on content, those of a convolution do not"
    else:
        reason = first_change(layer, (layer, layer.values))
    for name, numbers in layer.named_parameters():
        reason = reason or why_not_numbers(name, numbers)
    if reason is not None:
        raise UnsupportedModelError(f"cannot convert {own_class.__name__}: {reason}")
    return layer


def _closed_gate(layer: RelativeAttention) -> float:
    """Returns content's share of attention, max_h 1 − σ(λ_h) or |tanh(g_h)|; raises where it is above rounding."""
    if layer.gate is None:
        return 0.0
    gate = layer.gate.detach().double()
    closing = 0
    shares = torch.tanh(gate).abs()
    if layer.gate_kind != "tanh":
        closing = 40
        shares = torch.sigmoid(-gate)
    share = shares.max().item()
    if share > torch.finfo(layer.like.dtype).eps:
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: its gate is open, and lets content take more attention than"
            f" rounding does; layer.gate.data.fill_({closing}) drops content"
        )
    return share


# --- Sizes and padding ------------------------------------------------------------------------------------------------


def choose_sizes(layer: RelativeAttention, mass: float, spatial: PerAxis | None) -> tuple[int, ...]:
    """Chooses the sizes of the images for which a kernel is computed and measured; those of the user if given.

    Tables get the sizes that just use the whole table, hard heads sizes at which each displacement leads to a key. For
    others, sizes grow until the heads use only half of the displacements. Raises ArgumentError if they always use more.
    """
    geometry = layer.geometry
    if spatial is not None:
        sizes = axis_lists("spatial", spatial, layer.dims, least=1)
        layer.encoding.require_axes(unit_steps(geometry, sizes))
        return sizes
    if layer.encoding.extent:
        pixels = []  # of images that just use the whole table
        along = zip(layer.encoding.extent, geometry.padding, geometry.input_dilation, strict=True)
        for keys, pads, gap in along:
            pixels.append(max(1, (keys - sum(pads) - 1) // gap + 1))
        return tuple(pixels)
    heads = fixed_heads(layer)
    least = smallest_image(geometry)
    extra = 4
    while True:
        sizes = tuple(size + extra + axis for axis, size in enumerate(least))
        axes = unit_steps(geometry, sizes)
        displacements = math.prod(2 * axis.keys for axis in axes)
        many = heads is None and displacements > _MOST_DISPLACEMENTS
        if extra > 4 and (many or max(sizes) > _LONGEST):
            why = "the heads do not fall off with distance, so that the kernel depends on the image's size"
            if heads is not None:
                why = f"heads look beyond images of {_LONGEST:,} pixels along an axis"
            raise ArgumentError(must_be("spatial", f"given, because {why}", spatial))
        if heads is not None:
            enough = heads.seen(axes)
        else:
            attention = AttentionMap.of(layer, axes)
            own = own_window(geometry)
            holds = own is not None and attention.left_out(own) <= mass
            enough = holds or attention.falls_off(mass)
        if enough:
            return sizes
        extra += extra // 2


def _paddable_mode(window: Window, geometry: Geometry, mode: str, sizes: Sequence[int]) -> str:
    """Returns the padding mode, the layer's own if no tap needs another; raises if torch cannot pad such images so."""
    if window.within(geometry):
        mode = geometry.padding_mode
    if window.padding == "same":
        return mode
    for axis, (pixels, size) in enumerate(zip(window.padding, sizes, strict=True)):
        needed = least_pixels(mode, pixels)
        if size < needed:
            raise ConversionError(
                f"cannot convert: {mode} padding of {pixels} along axis {axis} needs images of at least {needed}"
                f" pixels, but spatial is {tuple(sizes)}; give a smaller kernel_size"
            )
    return mode


# --- The kernel -------------------------------------------------------------------------------------------------------


class KernelChoice(NamedTuple):
    """A kernel for an attention layer, and what it misses."""

    kernel: Float[Tensor, "outputs channels *taps"]  # In float64
    window: Window  # Where its taps are
    padding_mode: str  # How the image is padded
    # Share of the attention that the kernel misses; one column if all queries miss the same
    errors: Float[Tensor, "heads queries"]
    leak: float  # Largest share of attention outside the window
    any_size: bool  # Whether this holds for images of any size


def choose_kernel(
    layer: RelativeAttention,
    sizes: tuple[int, ...],
    maps: Float[Tensor, "heads outputs channels"],
    taps: tuple[int, ...] | None,
    mass: float,
    mode: str,
) -> KernelChoice:
    """Returns the kernel of hard heads if all are and a window holds them, else that of the attention itself."""
    geometry = layer.geometry
    axes = unit_steps(geometry, sizes)
    hard = find_hard_heads(layer, axes, mode)
    window = None if hard is None else find_window(hard, geometry, taps, mass)
    if hard is not None and window is not None and not hard.left_out(window):
        mode = _paddable_mode(window, geometry, mode, sizes)
        errors = maps.new_full((len(maps), 1), 2 * hard.leak)
        kernel = hard.kernel(window, maps)
        return KernelChoice(kernel, window, mode, errors, hard.leak, hard.any_size)
    attention = AttentionMap.of(layer, axes)
    window = find_window(attention, geometry, taps, mass)
    size = "the layer's output size (odd instead of even, or even instead of odd)"
    expectation = f"one with which a torch convolution gives {size}"
    require(window or taps is None, "kernel_size", expectation, taps)
    if window is None:
        raise ConversionError(f"cannot convert: no torch convolution has this geometry: {geometry}")
    mode = _paddable_mode(window, geometry, mode, sizes)
    crops = any(pixels < 0 for pair in geometry.padding for pixels in pair)
    errors = attention.errors(window, geometry, zeros=mode == "zeros" and not crops)
    kernel = attention.kernel(window, maps)
    leak = attention.leak(window)
    return KernelChoice(kernel, window, mode, errors.flatten(1), leak, any_size=False)


def closest_kernel(
    layer: RelativeAttention, sizes: tuple[int, ...], choices: Sequence[KernelChoice]
) -> KernelChoice:
    """Returns the first kernel for any image size, or else the closest on random pixels of mean 1 and deviation 1."""
    for choice in choices:
        if choice.any_size or len(choices) == 1:
            return choice
    exact = softmax_copy(layer, torch.float64)
    x = 1 + draw_images(layer, sizes, torch.float64)
    expected = exact(x)
    each_channel = [axis for axis in range(x.ndim) if axis != 1]
    powers = expected.square().mean(each_channel).clamp(min=torch.finfo(x.dtype).tiny)

    def error(choice: KernelChoice) -> float:
        apart = make_convolution(exact, choice)(x) - expected
        return (apart.square().mean(each_channel) / powers).mean().item()

    return min(choices, key=error)


def make_convolution(layer: RelativeAttention, choice: KernelChoice) -> AnyConvolution:
    """Makes the convolution with a chosen kernel."""
    window = choice.window
    weight = choice.kernel
    options: dict[str, Any] = {
        "padding": window.padding,
        "dilation": tuple(taps.step for taps in window.taps),
        "groups": layer.groups,
    }
    if window.output_padding is None:
        kind = CONVOLUTIONS[layer.dims]
        options |= {"stride": layer.geometry.stride, "padding_mode": choice.padding_mode}
    else:
        kind = TRANSPOSED_CONVOLUTIONS[layer.dims]
        options["stride"] = layer.geometry.input_dilation
        options["output_padding"] = window.output_padding
        flipped = weight.flip(list(range(2, weight.ndim)))
        weight = rearrange(flipped, "(groups o) i ... -> (groups i) o ...", groups=layer.groups)
    weight = weight.to(layer.like.dtype).contiguous().detach()
    if not math.isfinite(weight.abs().max().item()):
        raise ConversionError(f"cannot convert: the kernel would not be finite in {weight.dtype}")
    learns = any(own.requires_grad for own in layer.values.parameters())
    conv = convolution(kind, weight.requires_grad_(learns), copy.deepcopy(layer.bias), **options)
    return conv.train(layer.training)


def promise_kernel(
    layer: RelativeAttention,
    choice: KernelChoice,
    rows: Float[Tensor, "heads outputs"],
    content_share: float,
) -> Promise:
    """Makes the convolution with a chosen kernel, and says what it misses; `rows` are Σ_i |W_h[o, i]|."""
    conv = make_convolution(layer, choice)
    kernel = choice.kernel
    dtype = conv.weight.dtype
    errors = choice.errors + 2 * content_share
    rounded = (kernel - kernel.to(dtype).double()).abs().flatten(1).sum(1)
    rounding = partial(
        rounding_bound,
        bias=conv.bias,
        weights=kernel.abs().flatten(1).sum(1).max().item(),
        source=rows.sum(0).max().item(),
        terms=kernel[0].numel() + STEPS + len(rows) * kernel.shape[1],
        writes=kernel[0, 0].numel() + STEPS,
    )
    return Promise(
        conv=conv,
        layer=layer,
        exact=errors.max().item() <= torch.finfo(dtype).eps,
        leak=choice.leak + content_share,
        per_unit=(errors.mT @ rows).amax(0),
        rounding=rounding,
        any_size=choice.any_size,
        stored=lambda x: rounded * largest(x),
        in_other_orders=lambda x: [summed_otherwise(conv, x)],
    )
