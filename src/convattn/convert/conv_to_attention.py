"""The theorem: every convolution is relative self-attention with one head per tap."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.convert.certificate import certify
from convattn.convert.leak import bound_per_unit, off_centre_mass, underflows
from convattn.convert.runs import keep_random_state
from convattn.convert.taps import SUPPORTED_CONVOLUTIONS, AnyConvolution, Taps, read_taps
from convattn.encodings import Quadratic
from convattn.encodings.quadratic import root_of_sharpness
from convattn.errors import ArgumentError, must_be
from convattn.grid import whole_number
from convattn.layers import (
    Content,
    FactoredValues,
    GatedRelativeAttention1d,
    GatedRelativeAttention2d,
    GatedRelativeAttention3d,
    MergedValues,
    RelativeAttention,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
)
from convattn.records import Certificate

__all__ = ["conv_to_attention"]

_LAYERS: dict[int, type[RelativeAttention]] = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}

_GATED: dict[int, type[RelativeAttention]] = {
    1: GatedRelativeAttention1d,
    2: GatedRelativeAttention2d,
    3: GatedRelativeAttention3d,
}

_HARD_ROOTS = {torch.float64: 40.0}
"""√(2α) at which e^{−α} underflows: α = 800 in float64; elsewhere softmax is in float32, and 16 gives α = 128."""


def conv_to_attention(
    conv: AnyConvolution,
    *,
    sharpness: float | None = None,
    head_width: int | None = None,
    content: bool | Content = False,
) -> tuple[RelativeAttention, Certificate]:
    """Makes the self-attention layer that computes a convolution.

    One head per tap: head t is centred on the tap, Δ_t = d·t seen from the query, with the tap's matrix as its values,
    W_h = W[t]. With heads sharp enough the layer is the convolution; it is real softmax attention all the same, with
    centres, sharpness and values to train. Heads so sharp that their softmax saturates pass no gradient to centres and
    sharpness: give a `sharpness` of about 5 to fine-tune those.

    With `content` each head has scores that depend on the input as well, behind a gate that is closed exactly, so that
    the function is the same, and can learn to open (`GatedRelativeAttention`). Queries and keys see all channels, also
    where the convolution has groups.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1; `docs/theory.md` §3.

    Args:
        conv: nn.Conv1d/2d/3d or nn.ConvTranspose1d/2d/3d with any arguments; it is not changed.
        sharpness: α > 0 of every head in 1/pixel²; None makes it so sharp that weights off the taps are exactly zero.
        head_width: D_h ≥ 1, to which each tap's matrix is reduced by a truncated singular value decomposition (in each
            group); None keeps the matrices whole.
        content: Whether the layer is gated, or which terms its content scores have; True means content–content alone.

    Returns:
        The layer, in the convolution's dtype, device and mode (the encoding in at least float32), and the certificate.

    Raises:
        UnsupportedModelError: The module is of another kind, or its weights are not finite real floating point.
        ArgumentError: `sharpness`, `head_width` or `content` is out of range.

    Example:
        >>> from torch import nn
        >>> layer, certificate = conv_to_attention(nn.Conv2d(3, 5, kernel_size=3, padding=1))
        >>> certificate.exact, certificate.passed, layer.num_heads
        (True, True, 9)
    """
    if head_width is not None:
        whole_number("head_width", head_width)
    if not isinstance(content, bool | Content):
        raise ArgumentError(must_be("content", "True, False or a Content", content))
    taps = read_taps(conv)
    with keep_random_state(conv):
        layer = _build(taps, SUPPORTED_CONVOLUTIONS[type(conv)], sharpness, head_width, content)
    layer.train(conv.training)
    discarded: tuple[tuple[float, ...], ...] = ()
    if isinstance(layer.values, FactoredValues):
        discarded = _truncate(taps, layer.values)
    with torch.no_grad():
        alpha = layer.encoding.sharpness.double().min().item()  # type: ignore[union-attr]
        kept = layer.values.maps().double()
        lost = taps.maps.double() - kept if head_width is not None else None
        leak = 0.0 if underflows(alpha, taps.maps.dtype) else min(1.0, off_centre_mass(alpha, layer.dims))
        per_unit = bound_per_unit(leak, kept, lost)
    if isinstance(layer.values, MergedValues) and leak == 0:
        layer.values.lay_out("outputs inputs heads")  # heads so hard run as a convolution
    exact = leak == 0 and not any(discarded)
    certificate = certify(conv, layer, sharpness=alpha, leak=leak, per_unit=per_unit, exact=exact, discarded=discarded)
    return layer, certificate


def _build(
    taps: Taps, dims: int, sharpness: float | None, head_width: int | None, content: bool | Content
) -> RelativeAttention:
    """Makes the layer with the taps' centres and, where heads are merged, their matrices."""
    dtype, device = taps.maps.dtype, taps.maps.device
    exact_dtype = torch.promote_types(dtype, torch.float32)
    heads, outputs, _ = taps.maps.shape
    encoding = Quadratic(heads, dims).to(device=device, dtype=exact_dtype)
    root = _HARD_ROOTS.get(dtype, 16.0) if sharpness is None else root_of_sharpness(sharpness, exact_dtype)
    geometry = taps.geometry
    gated = {"gate": "tanh", **({"content": content} if isinstance(content, Content) else {})}
    layer = (_GATED if content else _LAYERS)[dims](
        taps.inputs,
        outputs,
        heads,
        encoding,
        head_width=head_width,
        kernel_size=geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        padding_mode=geometry.padding_mode,
        dilation=geometry.dilation,
        input_dilation=geometry.input_dilation,
        groups=taps.groups,
        bias=taps.bias is not None,
        device=device,
        dtype=dtype,
        **(gated if content else {}),
    )
    encoding.to(dtype=exact_dtype)
    with torch.no_grad():
        encoding.centres.copy_(torch.tensor(taps.displacements, dtype=exact_dtype).view(heads, dims))
        encoding.root_sharpness.fill_(root)
        if head_width is None:
            layer.values.weight.copy_(taps.maps)  # type: ignore[union-attr]
        if layer.bias is not None and taps.bias is not None:
            layer.bias.copy_(taps.bias)
    return layer


def _truncate(taps: Taps, values: FactoredValues) -> tuple[tuple[float, ...], ...]:
    """Fills narrow heads with the best approximations of the taps; returns the singular values left out, per head."""
    blocks: Float[Tensor, "taps groups outputs channels"] = rearrange(
        taps.maps.double(), "taps (groups o) i -> taps groups o i", groups=taps.groups
    )
    left, scale, right = torch.linalg.svd(blocks, full_matrices=False)
    rank = min(values.head_width, scale.shape[-1])
    root = scale[..., :rank].sqrt()
    with torch.no_grad():
        for parameter in (values.value, values.output):
            parameter.zero_()
        value = rearrange(values.value, "taps (groups width) i -> taps groups width i", groups=taps.groups)
        value[:, :, :rank] = root[..., None] * right[..., :rank, :]
        output = rearrange(values.output, "taps (groups o) width -> taps groups o width", groups=taps.groups)
        output[..., :rank] = left[..., :rank] * root[..., None, :]
    rest = scale[..., rank:].flatten(1).sort(descending=True).values
    return tuple(tuple(row) for row in rest.tolist()) if rest.shape[-1] else ()
