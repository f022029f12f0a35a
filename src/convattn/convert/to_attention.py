"""The theorem: every convolution is relative self-attention with one head per tap."""

from dataclasses import asdict

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.certificate import Certificate
from convattn.convert.promise import (
    Promise,
    attention_rounding,
    certify_layer,
    lowest_sharpness,
    off_centre_mass,
    smallest_image,
    underflows,
    weight_of,
)
from convattn.convert.surgery import keep_random_state
from convattn.convert.taps import (
    ATTENTION_LAYERS,
    AnyConvolution,
    Taps,
    read_taps,
    tap_by_tap,
    term_by_term,
)
from convattn.encodings import Encoding, Quadratic, Shift
from convattn.encodings.quadratic import root_of_sharpness
from convattn.layers import Content, FactoredValues, MergedValues, RelativeAttention


def conv_to_attention(
    conv: AnyConvolution,
    *,
    sharpness: float | None = None,
    head_width: int | None = None,
    content: bool | Content = False,
    impl: str = "auto",
) -> tuple[RelativeAttention, Certificate]:
    """Makes the self-attention layer that computes a convolution.

    The layer has one head per tap. Head t attends to the pixel at displacement Δ_t = d·t from the query, and its value
    matrix is that of the tap, W_h = W[t]. Without `sharpness` the heads are hard (`Shift`): each attends to exactly one
    pixel, the layer runs as the convolution, and only the values are trained. With `sharpness` the heads are Gaussians
    (`Quadratic`) whose centres and sharpness are trained too; a sharpness of about 5 is good for training.

    With `content` each head also gets scores that depend on the input (`gate="tanh"`). A gate keeps them out
    at first, so the function is the same, and can open in training. Queries and keys see all channels, even if the
    convolution has groups.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1; `docs/explanation/theory.md` §3.

    Args:
        conv: nn.Conv1d/2d/3d or nn.ConvTranspose1d/2d/3d with any arguments; it is not changed.
        sharpness: α > 0 of every head in 1/pixel²; None makes hard heads, with no attention off the taps.
        head_width: D_h ≥ 1; each tap's matrix is reduced to this rank (in each group) by a truncated singular value
            decomposition. None keeps the full matrices.
        content: True adds gated content–content scores; a `Content` chooses other terms.
        impl: How the layer computes; "separable" computes the softmax even of hard heads.

    Returns:
        The layer, with the convolution's dtype, device and mode (encodings in at least float32), and the certificate.

    Raises:
        UnsupportedModelError: The module is of another class, or its weights are not finite real numbers. A
            `NormalisedConv` is attention already: keep the layer that it was made from.
        ArgumentError: `sharpness`, `head_width` or `content` is out of range, or `impl` does not fit them.
            UnknownNameError if `impl` is unknown.

    Example:
        >>> from torch import nn
        >>> layer, certificate = conv_to_attention(nn.Conv2d(3, 5, kernel_size=3, padding=1))
        >>> certificate.exact, certificate.passed, layer.num_heads
        (True, True, 9)
    """
    taps = read_taps(conv)
    with keep_random_state(conv):
        layer = _make_layer(taps, _encoding(taps, sharpness), head_width, content, impl)
        # A new one, because the layer's dtype may be too narrow for centres
        layer.encoding = _encoding(taps, sharpness)
    layer.train(conv.training)
    discarded = _truncate(taps, layer.values) if isinstance(layer.values, FactoredValues) else ()
    leak = _leak(layer)
    per_unit = _bound(taps, layer, leak)
    return layer, certify_attention(conv, layer, leak=leak, per_unit=per_unit, discarded=discarded)


def certify_attention(
    conv: nn.Module,
    layer: RelativeAttention,
    *,
    leak: float,
    per_unit: Float[Tensor, " outputs"],
    discarded: tuple[tuple[float, ...], ...] = (),
) -> Certificate:
    """Compares a convolution with the layer made from it."""
    taps = read_taps(conv)
    promise = Promise(
        conv=conv,
        layer=layer,
        exact=leak == 0 and not any(discarded),
        leak=leak,
        per_unit=per_unit,
        rounding=attention_rounding(layer),
        discarded=discarded,
        in_other_orders=lambda x: [tap_by_tap(taps, x), term_by_term(taps, x)],
    )
    least = smallest_image(layer.geometry)
    return certify_layer(promise, [size + 3 + axis for axis, size in enumerate(least)])


def _leak(layer: RelativeAttention) -> float:
    """Bounds the share of attention that a head gives to pixels off its tap."""
    alpha = lowest_sharpness(layer)
    if alpha is None or underflows(alpha, weight_of(layer).dtype):
        return 0.0
    return min(1.0, off_centre_mass(alpha, layer.dims))


def _bound(taps: Taps, layer: RelativeAttention, leak: float) -> Float[Tensor, " outputs"]:
    """Bounds the error of each output channel for inputs of absolute value ≤ 1.

    A head gives at most `leak` too little to its own pixel and at most `leak` to others. Besides, a limited width and
    rounding of the product of its two matrices discard a part of the tap's own matrix.
    """
    with torch.no_grad():
        maps = layer.values.maps().double()
    error = 2 * leak * _row_sums(maps)
    if layer.head_width is not None:
        error = error + _row_sums(taps.maps.double() - maps)
    return error


def _row_sums(maps: Float[Tensor, "heads outputs channels"]) -> Float[Tensor, " outputs"]:
    return reduce(maps.abs(), "heads outputs channels -> outputs", "sum")


def _encoding(taps: Taps, sharpness: float | None) -> Encoding:
    """Makes the heads: hard ones, or Gaussians in at least float32, in which every centre can be held."""
    heads = len(taps.displacements)
    dims = len(taps.geometry.kernel_size)
    if sharpness is None:
        return Shift(heads, dims, displacements=taps.displacements)
    dtype = torch.promote_types(taps.maps.dtype, torch.float32)
    encoding = Quadratic(heads, dims).to(device=taps.maps.device, dtype=dtype)
    with torch.no_grad():
        encoding.centres.copy_(torch.tensor(taps.displacements, dtype=dtype))
        encoding.root_sharpness.fill_(root_of_sharpness(sharpness, dtype))
    return encoding


def _make_layer(
    taps: Taps, encoding: Encoding, head_width: int | None, content: bool | Content, impl: str
) -> RelativeAttention:
    """Makes the layer, and copies the taps' matrices unless the heads are narrow."""
    heads, outputs, _ = taps.maps.shape
    kind = ATTENTION_LAYERS[len(taps.geometry.kernel_size) - 1]
    layer = kind(
        taps.inputs,
        outputs,
        num_heads=heads,
        encoding=encoding,
        head_width=head_width,
        content=content,
        gate="tanh" if content else None,
        groups=taps.groups,
        bias=taps.bias is not None,
        impl=impl,
        device=taps.maps.device,
        dtype=taps.maps.dtype,
        **asdict(taps.geometry),
    )
    with torch.no_grad():
        if isinstance(layer.values, MergedValues):
            layer.values.weight.copy_(layer.values.held(taps.maps))
        if layer.bias is not None and taps.bias is not None:
            layer.bias.copy_(taps.bias)
    return layer


def _truncate(taps: Taps, values: FactoredValues) -> tuple[tuple[float, ...], ...]:
    """Sets narrow heads to the best approximations of the taps; returns the discarded singular values per head."""
    blocks: Float[Tensor, "taps groups outputs channels"] = rearrange(
        taps.maps.double(), "taps (groups o) i -> taps groups o i", groups=taps.groups
    )
    left, scale, right = torch.linalg.svd(blocks, full_matrices=False)
    rank = min(values.head_width, scale.shape[-1])
    root = scale[..., :rank].sqrt()
    with torch.no_grad():
        for parameter in (values.value, values.output):
            parameter.zero_()
        value = rearrange(
            values.value, "taps (groups width) i -> taps groups width i", groups=taps.groups
        )
        value[:, :, :rank] = root[..., None] * right[..., :rank, :]
        output = rearrange(
            values.output, "taps (groups o) width -> taps groups o width", groups=taps.groups
        )
        output[..., :rank] = left[..., :rank] * root[..., None, :]
    discarded = scale[..., rank:].flatten(1).sort(descending=True).values
    if not discarded.shape[-1]:
        return ()
    return tuple(tuple(row) for row in discarded.tolist())
