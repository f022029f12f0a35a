"""From attention to convolution: exact for hard heads, else up to borders and distant attention."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from einops import reduce
from torch import nn

from convattn.convert.certificate import Certificate, Promise, certify_convolution
from convattn.convert.classes import ATTENTION_LAYERS, AnyConvolution
from convattn.convert.kernel_choice import choose_kernel, choose_sizes, make_convolution, padding_modes
from convattn.convert.surgery import keep_random_state
from convattn.convert.taps import require_numbers
from convattn.errors import ArgumentError, ConversionError, UnsupportedModelError, lacks_memory, must_be
from convattn.grid import PerAxis, axis_lists
from convattn.layers import FactoredValues, MergedValues, RelativeAttention

_MOST = 1 << 28
"""Numbers of a kernel, which takes 2 GiB in float64."""


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
        ConversionError: Its scores depend on content, its gate is open, no torch convolution has its geometry, or there
            is not enough memory to compare the two.
        ArgumentError: An argument is out of range, or `spatial` is needed. UnknownNameError for an unknown mode.

    Example:
        >>> from convattn.convert import conv_to_attention
        >>> conv = nn.Conv2d(3, 5, kernel_size=3, padding=1)
        >>> again, certificate = attention_to_conv(conv_to_attention(conv)[0])
        >>> again, certificate.exact, torch.equal(again.weight, conv.weight)
        (Conv2d(3, 5, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)), True, True)
    """
    layer = _require_convertible(layer)
    content_share = _closed_gate(layer)
    dtype = next(layer.values.parameters()).dtype
    taps = None if kernel_size is None else axis_lists("kernel_size", kernel_size, layer.dims, least=1)
    if taps is not None and prod(taps) * layer.in_channels * layer.out_channels > _MOST:
        raise ArgumentError(must_be("kernel_size", f"one whose kernel has at most {_MOST:,} numbers", taps))
    if mass is None:
        mass = torch.finfo(dtype).eps
    else:
        require_mass(mass)
    modes = padding_modes(layer.geometry, padding_mode)
    sizes = choose_sizes(layer, mass, spatial)
    with _memory_to_compare(layer), torch.no_grad(), keep_random_state(layer):
        maps = copy.deepcopy(layer.values).double().maps()
        choice = choose_kernel(layer, sizes, maps, taps, mass, modes)
        conv = make_convolution(layer, choice)
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


@contextmanager
def _memory_to_compare(layer: RelativeAttention) -> Iterator[None]:
    """Turns a lack of memory into a ConversionError: torch unfolds large kernels of volumes, pixel by pixel."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: there is not enough memory to compare it with the convolution that"
            " holds its attention; give a kernel_size, a larger mass or a smaller spatial size"
        ) from error


def require_mass(mass: float) -> None:
    """Raises ArgumentError unless `mass` is a number in (0, 1)."""
    if isinstance(mass, bool) or not (isinstance(mass, int | float) and 0 < mass < 1):
        raise ArgumentError(must_be("mass", "a share in (0, 1)", mass))


def _require_convertible(layer: nn.Module) -> RelativeAttention:
    """Returns the layer if it can become a convolution.

    Raises UnsupportedModelError for other modules, hooks, and parameters that are not finite real numbers, and
    ConversionError for scores that depend on content.
    """
    kind = type(layer).__name__
    if not isinstance(layer, RelativeAttention) or type(layer) not in ATTENTION_LAYERS:
        known = ", ".join(known.__name__ for known in ATTENTION_LAYERS)
        raise UnsupportedModelError(f"cannot convert {kind} to a convolution: supported layers are {known}")
    if type(layer.values) not in (MergedValues, FactoredValues):
        raise UnsupportedModelError(
            f"cannot convert {kind}: its values must be MergedValues or FactoredValues, but are"
            f" {type(layer.values).__name__}"
        )
    if layer.content is not None and layer.gate is None:
        raise ConversionError(f"cannot convert {kind}: its scores depend on content, those of a convolution do not")
    for name, module in layer.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            where = f" at {name}" if name else ""
            raise UnsupportedModelError(
                f"cannot convert {kind}: it has forward hooks{where} (pruning adds some); make them permanent or remove"
                " them first"
            )
    for name, number in layer.named_parameters():
        require_numbers(kind, name, number)
    return layer


def _closed_gate(layer: RelativeAttention) -> float:
    """Returns the share of attention that a layer's gate gives to content; 0 without a gate.

    It is max_h 1 − σ(λ_h) or max_h |tanh(g_h)|. A share above eps of the weights' dtype raises ConversionError.
    """
    if layer.gate is None:
        return 0.0
    gate = layer.gate.detach().double()
    shares = torch.tanh(gate).abs() if layer.gate_kind == "tanh" else torch.sigmoid(-gate)
    share, head = shares.max(0)
    allowed = torch.finfo(next(layer.values.parameters()).dtype).eps
    if share.item() > allowed:
        raise ConversionError(
            f"cannot convert {type(layer).__name__}: its gate is open: head {head.item()} gives"
            f" {share.item():.3g} of its attention to content, and only up to {allowed:.3g} counts as rounding"
        )
    return share.item()
