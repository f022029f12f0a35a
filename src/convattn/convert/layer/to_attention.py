"""The theorem: every convolution is relative self-attention with one head per tap."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from convattn.convert.certificate.bounds import bound_per_unit, off_centre_mass, underflows
from convattn.convert.certificate.layer import Promise, certify_attention
from convattn.convert.classes import GATED_ATTENTION, PLAIN_ATTENTION, AnyConvolution
from convattn.convert.copies import keep_random_state
from convattn.convert.taps import Taps, read_taps
from convattn.encodings import Encoding, Quadratic, Shift
from convattn.encodings.quadratic import root_of_sharpness
from convattn.errors import ArgumentError, must_be
from convattn.grid import whole_number
from convattn.layers import Content, FactoredValues, MergedValues, RelativeAttention
from convattn.records import Certificate


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

    With `content` each head also gets scores that depend on the input (`GatedRelativeAttention`). A gate keeps them out
    at first, so the function is the same, and can open in training. Queries and keys see all channels, even if the
    convolution has groups.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1; `docs/theory.md` §3.

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
        UnsupportedModelError: The module is of another class, or its weights are not finite real numbers.
        ArgumentError: `sharpness`, `head_width` or `content` is out of range, or `impl` does not fit them.
            UnknownNameError if `impl` is unknown.

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
        layer = _make_layer(taps, _encoding(taps, sharpness), head_width, content, impl)
        layer.encoding = encoding = _encoding(taps, sharpness)  # the layer's dtype may be too narrow for centres
    layer.train(conv.training)
    discarded: tuple[tuple[float, ...], ...] = ()
    if isinstance(layer.values, FactoredValues):
        discarded = _truncate(taps, layer.values)
    with torch.no_grad():
        kept = layer.values.maps().double()
        lost = taps.maps.double() - kept if head_width is not None else None
        alpha = encoding.sharpness.double().min().item() if isinstance(encoding, Quadratic) else None
        leak = 0.0
        if alpha is not None and not underflows(alpha, next(layer.values.parameters()).dtype):
            leak = min(1.0, off_centre_mass(alpha, layer.dims))
        per_unit = bound_per_unit(leak, kept, lost)
    promise = Promise(leak, per_unit, exact=leak == 0 and not any(discarded))
    return layer, certify_attention(conv, layer, promise, discarded)


def _encoding(taps: Taps, sharpness: float | None) -> Encoding:
    """Makes the heads: hard ones, or Gaussians in at least float32, in which every centre can be held."""
    heads, dims = len(taps.displacements), len(taps.geometry.kernel_size)
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
    geometry, dims = taps.geometry, len(taps.geometry.kernel_size)
    gated = {"gate": "tanh", **({"content": content} if isinstance(content, Content) else {})}
    layer = (GATED_ATTENTION if content else PLAIN_ATTENTION)[dims](
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
        impl=impl,
        device=taps.maps.device,
        dtype=taps.maps.dtype,
        **(gated if content else {}),
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
        value = rearrange(values.value, "taps (groups width) i -> taps groups width i", groups=taps.groups)
        value[:, :, :rank] = root[..., None] * right[..., :rank, :]
        output = rearrange(values.output, "taps (groups o) width -> taps groups o width", groups=taps.groups)
        output[..., :rank] = left[..., :rank] * root[..., None, :]
    rest = scale[..., rank:].flatten(1).sort(descending=True).values
    return tuple(tuple(row) for row in rest.tolist()) if rest.shape[-1] else ()
