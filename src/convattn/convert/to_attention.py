"""The theorem: every convolution is relative self-attention with one head per tap."""

import copy
from dataclasses import asdict

import torch
from einops import reduce
from torch import nn
from torch._prims_common import suggest_memory_format

from convattn.convert.certificate import Certificate
from convattn.convert.layer_check import Promise, attention_leak, attention_rounding, certify_layer
from convattn.convert.taps import (
    ATTENTION_LAYERS,
    AnyConvolution,
    Taps,
    read_taps,
    tap_by_tap,
    term_by_term,
)
from convattn.encodings import Encoding, Quadratic, Shift
from convattn.functional.torch_modes import at_least_float32
from convattn.layers import Content, MergedValues, RelativeAttention
from convattn.random_numbers import keep_random_state


def conv_to_attention(
    conv: AnyConvolution,
    *,
    sharpness: float | None = None,
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
        content: True adds gated content–content scores; a `Content` chooses other terms.
        impl: How the layer computes; "separable" computes the softmax even of hard heads.

    Returns:
        The layer, with the convolution's dtype (encodings in at least float32), device, mode and `requires_grad`, and
        the certificate.

    Raises:
        UnsupportedModelError: The module is of another class, or its weights are not finite real numbers. A
            `NormalisedConv` is attention already: keep the layer that it was made from.
        ArgumentError: `sharpness` or `content` is out of range, or `impl` does not fit them. UnknownNameError if
            `impl` is unknown.

    Example:
        >>> from torch import nn
        >>> layer, certificate = conv_to_attention(nn.Conv2d(3, 5, kernel_size=3, padding=1))
        >>> certificate.exact, certificate.passed, layer.num_heads
        (True, True, 9)
    """
    taps = read_taps(conv)
    with keep_random_state(conv):
        layer = _make_layer(taps, _encoding(taps, sharpness), content, impl)
        # anew, because the layer's dtype may be too narrow for centres
        layer.encoding = _encoding(taps, sharpness)
    layer.requires_grad_(conv.weight.requires_grad)
    layer.bias = copy.deepcopy(conv.bias)  # type: ignore[assignment]
    layer.to(memory_format=suggest_memory_format(conv.weight))
    layer.train(conv.training)
    return layer, certify_attention(conv, taps, layer, attention_leak(layer))


def certify_attention(
    conv: nn.Module, taps: Taps, layer: RelativeAttention, leak: float
) -> Certificate:
    """Compares a convolution, also read as taps, with the layer made from it.

    A head gives at most `leak` too little to its own pixel and at most `leak` to others.
    """
    maps = layer.values.maps().detach().double()
    rows = reduce(maps.abs(), "heads outputs channels -> outputs", "sum")
    promise = Promise(
        conv=conv,
        layer=layer,
        exact=leak == 0,
        leak=leak,
        per_unit=2 * leak * rows,
        rounding=lambda _: attention_rounding(layer, rows),
        to_attention=True,
        in_other_orders=lambda x: [tap_by_tap(taps, x), term_by_term(taps, x)],
    )
    return certify_layer(promise)


def _encoding(taps: Taps, sharpness: float | None) -> Encoding:
    """Makes the heads: hard ones, or Gaussians in at least float32, in which every centre can be held."""
    heads = len(taps.displacements)
    dims = len(taps.geometry.kernel_size)
    if sharpness is None:
        return Shift(heads, dims, displacements=taps.displacements)
    dtype = at_least_float32(taps.maps.dtype)
    encoding = Quadratic(heads, dims).to(device=taps.maps.device, dtype=dtype)
    with torch.no_grad():
        encoding.centres.copy_(torch.tensor(taps.displacements, dtype=dtype))
        encoding.sharpness = sharpness
    return encoding


def _make_layer(
    taps: Taps, encoding: Encoding, content: bool | Content, impl: str
) -> RelativeAttention:
    """Makes the layer, with copies of the taps' matrices, and a bias at its start."""
    heads, outputs, _ = taps.maps.shape
    kind = ATTENTION_LAYERS[len(taps.geometry.kernel_size) - 1]
    layer = kind(
        taps.inputs,
        outputs,
        num_heads=heads,
        encoding=encoding,
        content=content,
        gate="tanh" if content else None,
        groups=taps.groups,
        bias=taps.bias is not None,
        impl=impl,
        device=taps.maps.device,
        dtype=taps.maps.dtype,
        **asdict(taps.geometry),
    )
    assert isinstance(layer.values, MergedValues)
    with torch.no_grad():
        layer.values.weight.copy_(layer.values.held(taps.maps))
    return layer
