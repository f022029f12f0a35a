"""A vision transformer whose heads start as the taps of a convolution of patches."""

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from convattn.adapters.heads_on_taps import gated_attention, on_taps, position_attention, tap_encoding
from convattn.adapters.native import NativeTransformer
from convattn.adapters.patch_attention import GatedPatchAttention, PatchAttention
from convattn.adapters.timm import TIMM, read_timm
from convattn.adapters.transformers import TRANSFORMERS, read_transformers
from convattn.convert import attention_to_conv
from convattn.convert.certificate.leak import underflows
from convattn.convert.classes import full_name
from convattn.convert.network.names import replace_module
from convattn.encodings import Quadratic
from convattn.errors import ArgumentError, ConversionError, UnsupportedModelError, must_be
from convattn.grid import Geometry, PerAxis, axis_lists
from convattn.layers import RelativeAttention2d
from convattn.records import ConvolutionalInit, InitialisedLayer

__all__ = ["convolutional_init"]

_REASONS = {
    "timm.models.swin_transformer.SwinTransformer": "it attends in windows, not over the grid of patches",
    "timm.models.swin_transformer_v2.SwinTransformerV2": "it attends in windows, not over the grid of patches",
    "timm.models.swin_transformer_v2_cr.SwinTransformerV2Cr": "it attends in windows, not over the grid of patches",
    "timm.models.vision_transformer_sam.VisionTransformerSAM": "it attends in windows, not over the grid of patches",
    "timm.models.vision_transformer_relpos.VisionTransformerRelPos": "it has relative positions of its own",
    "timm.models.beit.Beit": "it has relative positions of its own",
    "timm.models.eva.Eva": "its scores turn queries and keys by their positions",
    "timm.models.naflexvit.NaFlexVit": "its tokens are not a whole grid of patches",
    "transformers.models.swin.modeling_swin.SwinModel": "it attends in windows, not over the grid of patches",
    "transformers.models.swinv2.modeling_swinv2.Swinv2Model": "it attends in windows, not over the grid of patches",
}
"""Why some transformers are refused, by the full names of their classes."""


def convolutional_init(
    vit: nn.Module,
    *,
    kernel_size: PerAxis = 3,
    sharpness: float | None = None,
    content: Literal["gated", False] = "gated",
    content_share: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[nn.Module, ConvolutionalInit]:
    """Copies a vision transformer and sets the heads of its attention on the patches around the query.

    With one head per tap, hard, and content at a share of 0, each layer of attention starts as a convolution of the
    grid of patches with zeros around it: y[q] = b + Σ_h W_h x[q + δ_h]. Heads keep their matrices W_h = W_out W_val;
    those beyond the number of taps look at the query's own patch. Where a layer has fewer heads than there are taps,
    heads of the same width are added, their matrices drawn as widely spread as the layer's own. The network is trained
    from there as any other.

    With content "gated", queries, keys and values are those of the network, and a gate per head opens on its own
    attention; at a share near 1 and with no head added the network computes nearly what it computed before. Prefix
    tokens (class, distillation, register) have no position and attend by content. With content False there are no
    queries and keys, and a prefix token takes the mean over what the patches get.

    Source: Cordonnier, Loukas, Jaggi, ICLR 2020, Theorem 1; d'Ascoli et al. 2021 (ConViT); `docs/networks-vit.md`.

    Args:
        vit: timm's VisionTransformer (vit_*, deit_*), or transformers' ViTModel, ViTForImageClassification or
            ViTForMaskedImageModeling; it is not changed.
        kernel_size: Taps along rows and columns, in patches: an odd number, or two.
        sharpness: α > 0 of every head in 1/patch²; None makes it so sharp that weights off the taps are exactly zero,
            and no gradient goes to centres and sharpness. With about 5 they learn.
        content: "gated" or False.
        content_share: Share of content in each head's attention at the start, in [0, 1).
        generator: Source of the matrices of added heads; None takes torch's default.

    Returns:
        The network, in the dtype, on the device and in the mode of the old one (centres and sharpness in at least
        float32), and the record.

    Raises:
        UnsupportedModelError: The network is of another kind, or a part of it computes something else; the message
            names it and says why.
        ArgumentError: An argument is out of range.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1)
        >>> made, record = convolutional_init(vit, kernel_size=3)
        >>> record.heads_before, record.heads, record.grid, record.exact, record.passed
        (3, 9, (3, 3), True, True)
        >>> made(torch.zeros(2, 3, 48, 48)).shape
        torch.Size([2, 1000])
    """
    kernel = axis_lists("kernel_size", kernel_size, 2, least=1)
    if any(taps % 2 == 0 for taps in kernel):
        raise ArgumentError(must_be("kernel_size", "odd, so that there is a patch in the middle", kernel_size))
    if not (content == "gated" or content is False):
        raise ArgumentError(must_be("content", '"gated" or False', content))
    if isinstance(content_share, bool) or not (isinstance(content_share, int | float) and 0 <= content_share < 1):
        raise ArgumentError(must_be("content_share", "a share in [0, 1)", content_share))
    if content is False and content_share:
        raise ArgumentError(must_be("content_share", "0 without content", content_share))
    read = _reader(vit)
    made = copy.deepcopy(vit)
    native = read(made)
    geometry = Geometry.parse(2, kernel_size=kernel, padding="same")
    attentions = []
    for before in native.layers:
        layer = on_taps(before, geometry, generator)
        encoding = tap_encoding(layer, geometry, sharpness)
        if content == "gated":
            attention = gated_attention(layer, native, encoding, geometry, content_share)
        else:
            attention = position_attention(layer, native, encoding, geometry)
        attentions.append(attention)
        wrapped = native.wrap(attention).train(before.training)
        for name in before.names:
            made = replace_module(made, name, wrapped)
    made.get_submodule(native.embedding).register_forward_pre_hook(native.grid)
    return made, _record(vit, made, native, geometry, attentions)


def _reader(vit: nn.Module) -> Callable[[nn.Module], NativeTransformer]:
    """Returns what reads networks of a class, or raises UnsupportedModelError."""
    name = full_name(type(vit))
    if name in TIMM:
        return read_timm
    if name in TRANSFORMERS:
        return read_transformers
    known = "VisionTransformer and VisionTransformerDistilled of timm, ViTModel and ViTFor… of transformers"
    reason = _REASONS.get(name, f"known are {known}")
    raise UnsupportedModelError(f"cannot initialise {type(vit).__name__} as a convolution: {reason}")


def _certify(name: str, layer: RelativeAttention2d, sizes: tuple[int, ...]) -> InitialisedLayer:
    """Compares what the heads of a layer do by position with the convolution of patches that they stand for."""
    kernel = layer.geometry.kernel_size
    try:
        conv, certificate = attention_to_conv(layer, kernel_size=kernel, spatial=sizes)
    except ConversionError as error:
        raise UnsupportedModelError(f"{name}: {error}") from None
    return InitialisedLayer(
        name=name,
        convolution=repr(conv),
        exact=certificate.exact,
        leak=certificate.leak,
        bound=certificate.bound,
        measured_error=certificate.measured_error,
        rounding=certificate.rounding,
        passed=certificate.passed,
    )


def _record(
    before: nn.Module,
    made: nn.Module,
    native: NativeTransformer,
    geometry: Geometry,
    attentions: Sequence[GatedPatchAttention | PatchAttention],
) -> ConvolutionalInit:
    """Measures the layers and puts the record together; those of a vision transformer are all of one size."""
    layer, sizes, (rows, cols) = attentions[0].position_layer(), native.grid.sizes, geometry.kernel_size
    assert isinstance(layer.encoding, Quadratic)
    alpha = layer.encoding.sharpness.double().min().item()
    if underflows(alpha, next(layer.values.parameters()).dtype):  # then all sizes are alike
        sizes = tuple(min(size, taps + 2) for size, taps in zip(sizes, geometry.kernel_size, strict=True))
    names = [layer.names[0] for layer in native.layers]
    layers = tuple(
        _certify(name, attention.position_layer(), sizes) for name, attention in zip(names, attentions, strict=True)
    )
    gate = attentions[0].gate if isinstance(attentions[0], GatedPatchAttention) else None
    share = 0.0 if gate is None else torch.tanh(gate.detach().double()).max().item()
    first = native.layers[0]
    return ConvolutionalInit(
        model=type(before).__name__,
        grid=native.grid.sizes,
        prefix_tokens=native.prefix,
        kernel_size=(rows, cols),
        heads=layer.num_heads,
        heads_before=first.heads,
        head_width=first.head_width,
        heads_at_centre=layer.num_heads - rows * cols + 1,
        sharpness=alpha,
        content="none" if gate is None else "gated",
        content_share=share,
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        parameters_before=sum(parameter.numel() for parameter in before.parameters()),
        layers=layers,
        left=native.left,
        exact=share == 0 and all(layer.exact for layer in layers),
        passed=all(layer.passed for layer in layers),
        not_covered=(
            "prefix tokens, which have no position",
            "the position embedding, which stays: it is added to the tokens before the first layer",
            "normalisation before each layer, and what comes after it",
        ),
    )
