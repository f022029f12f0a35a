"""Initialises a vision transformer so that its heads are the taps of a convolution of patches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from convattn.convert import attention_to_conv
from convattn.convert.bounds import underflows
from convattn.convert.certificate import LeftAlone, VerdictRecord
from convattn.convert.surgery import copy_network, find_empty, full_name, graft, keep_modes
from convattn.encodings import Quadratic
from convattn.encodings.quadratic import root_of_sharpness
from convattn.errors import (
    ArgumentError,
    ConversionError,
    UnsupportedModelError,
    must_be,
    must_be_a,
)
from convattn.grid import Geometry, PerAxis, axis_lists
from convattn.heads.catalogue import PATCH_NETWORKS, attention_class, read_matrices, survey
from convattn.heads.families.attention_class import PatchNetwork, TokenAttention, linear
from convattn.heads.patch_attention import (
    GatedPatchAttention,
    PatchAttention,
    layer_by_position,
)
from convattn.heads.patch_grid import PatchGrid
from convattn.layers import RelativeAttention2d
from convattn.wording import counted


@dataclass(frozen=True)
class InitialisedLayer(VerdictRecord):
    """One attention layer whose heads were set on the patches around the query."""

    name: str  # Where it stands in the network
    convolution: (
        str  # What its heads compute by position, as `print` shows that convolution of patches
    )
    exact: bool  # Whether nothing of it is lost but rounding
    leak: float  # Share of a head's attention by position that is outside the kernel
    bound: float  # A-priori bound on the largest error on the input measured
    measured_error: (
        float  # Largest output difference to that convolution, on random patches, in float64
    )
    rounding: float  # Largest difference that the dtype's rounding explains there


@dataclass(frozen=True)
class ConvolutionalInit(VerdictRecord):
    """What `convolutional_init` has made of a vision transformer.

    The verdict is "exact" where the heads are the convolution, at patches, up to rounding; "failed" where a layer's
    error exceeds its bound and rounding; otherwise "different".

    Example:
        >>> import timm
        >>> from convattn import convolutional_init
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1)
        >>> _, record = convolutional_init(vit)
        >>> record.summary().splitlines()[0]
        'convolutional init: exact (1 layer of VisionTransformer)'
    """

    schema_version: ClassVar[int] = 2

    model: str  # Class of the network
    grid: tuple[int, int]  # Rows and columns of patches, for images of the network's own size
    prefix_tokens: (
        int  # Tokens before the patches (class, distillation, register), which have no position
    )
    kernel_size: tuple[int, int]  # Rows and columns of patches that the heads look at
    heads: int  # Heads of each layer now
    heads_before: int  # Heads of each layer before
    head_width: int  # D_h, width of a head: the largest rank of the matrix of one tap
    heads_at_centre: (
        int  # How many of the heads look at the query's own patch, where the matrices add up
    )
    sharpness: float  # α of the score −α‖δ − Δ‖², in 1/patch²
    content: str  # "gated", or "none"
    content_share: (
        float  # Share of content in each head's attention at the start; 0 without content
    )
    parameters: int  # Number of parameters now
    parameters_before: int  # Number of parameters before
    layers: tuple[InitialisedLayer, ...]  # The layers
    left: tuple[LeftAlone, ...]  # Attention that was not touched, and why
    exact: bool  # Whether every layer's heads are the convolution, and nothing else, at patches
    not_covered: tuple[str, ...] = ()  # What this says nothing about

    def summary(self) -> str:
        """Returns the record in a few lines of plain text."""
        kernel, grid = (" x ".join(map(str, sizes)) for sizes in (self.kernel_size, self.grid))
        prefix = counted(self.prefix_tokens, "prefix token")
        added = self.heads - self.heads_before
        heads = f"{self.heads} of width {self.head_width}, {self.heads_at_centre} of them at the query's own patch"
        worst = max(
            self.layers, key=lambda layer: layer.measured_error - layer.bound - layer.rounding
        )
        error = f"error {worst.measured_error:.3g} of {worst.bound + worst.rounding:.3g} allowed, at {worst.name}"
        content = (
            f"gated, a share of {self.content_share:.3g}" if self.content == "gated" else "none"
        )
        lines = [
            f"convolutional init: {self.verdict} ({counted(len(self.layers), 'layer')} of {self.model})",
            f"  kernel          {kernel} on a grid of {grid} patches, after {prefix}",
            f"  heads           {heads}" + (f"; {added} of them new" if added else ""),
            f"  sharpness       {self.sharpness:.6g} per patch²",
            f"  content         {content}",
            f"  parameters      {self.parameters_before:,} before, {self.parameters:,} now",
            f"  measured        {error}",
        ]
        lines += [f"  left alone      {words}" for words in LeftAlone.in_words(self.left)]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


_HARD = {torch.float64: 800.0}
"""α at which e^{−α} is 0; elsewhere softmax is in float32, and 128 is enough."""


def convolutional_init(
    vit: nn.Module,
    *,
    kernel_size: PerAxis = 3,
    sharpness: float | None = None,
    content: Literal["gated", False] = "gated",
    content_share: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[nn.Module, ConvolutionalInit]:
    """Copies a vision transformer and centres its attention heads on the patches around the query.

    By default each attention layer starts as a convolution of the grid of patches with zeros around it, one hard head
    per tap: y[q] = b + Σ_h W_h x[q + δ_h]. Heads keep their matrices W_h = W_out W_val; heads beyond the number of taps
    attend to the query's own patch. If a layer has fewer heads than taps, heads of the same width are added, with
    random matrices of the same standard deviation as its own. Then train the network like any other.

    With content "gated", the network keeps its queries and keys, and a gate per head mixes in the head's original
    attention. With a share near 1 and no added heads, the network computes nearly the same as before. Prefix tokens
    (class, distillation, register) have no position and attend by content. With content False there are no queries
    and keys, and a prefix token becomes the mean over the patches.

    Source: Cordonnier et al., ICLR 2020, Theorem 1; d'Ascoli et al. 2021; `docs/explanation/vision-transformers.md`.

    Args:
        vit: timm's VisionTransformer (vit_*, deit_*), or transformers' ViTModel, ViTForImageClassification or
            ViTForMaskedImageModeling; it is not changed.
        kernel_size: Taps along rows and columns, in patches: an odd number, or two.
        sharpness: α > 0 of every head in 1/patch². None makes heads so sharp that weights off the taps are exactly zero
            and centres and sharpness get no gradient; with about 5 these are trained.
        content: "gated" or False.
        content_share: Share of content in each head's attention at the start, in [0, 1).
        generator: Random generator for the matrices of added heads; None takes torch's default.

    Returns:
        The network, with the dtype, device and mode of the old one (centres and sharpness in at least float32), and the
        record.

    Raises:
        UnsupportedModelError: The network is of another class, or a part of it computes something else; the message
            says which and why.
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
        raise ArgumentError(
            must_be("kernel_size", "odd, so that there is a patch in the middle", kernel_size)
        )
    if not (content == "gated" or content is False):
        raise ArgumentError(must_be("content", '"gated" or False', content))
    if isinstance(content_share, bool) or not (
        isinstance(content_share, int | float) and 0 <= content_share < 1
    ):
        raise ArgumentError(must_be("content_share", "a share in [0, 1)", content_share))
    if content is False and content_share:
        raise ArgumentError(must_be("content_share", "0 without content", content_share))
    if not isinstance(vit, nn.Module):
        raise ArgumentError(must_be_a("vit", "a network (torch.nn.Module)", vit))
    if not isinstance(generator, torch.Generator | None):
        raise ArgumentError(must_be_a("generator", "a torch.Generator or None", generator))
    describe = _description(vit)
    if (name := find_empty(vit)) is not None:
        raise ArgumentError(f"vit must have weights, but {name} is on the meta device")
    made = copy_network(vit)
    network = describe(made)
    layers, left = _read_layers(made, network)
    grid = PatchGrid(network.grid, network.count)
    geometry = Geometry.parse(2, kernel_size=kernel, padding="same")
    attentions, replaced = (
        dict[str, GatedPatchAttention | PatchAttention](),
        dict[nn.Module, nn.Module](),
    )
    for name, before in layers.items():
        layer = _add_heads(before, geometry, generator)
        encoding = _tap_encoding(layer, geometry, sharpness)
        if content == "gated":
            attention = GatedPatchAttention(
                layer, encoding, grid, geometry, prefix=network.prefix, content_share=content_share
            )
        else:
            assert layer.output is not None
            by_position = layer_by_position(encoding, geometry, layer.value, layer.output)
            attention = PatchAttention(by_position, grid, prefix=network.prefix, after=layer.after)
        attentions[name] = attention
        old = made.get_submodule(name)
        replaced[old] = keep_modes(old, layer.wrap(attention))
    made = graft(made, replaced)
    made.get_submodule(network.embedding).register_forward_pre_hook(grid)
    return made, _make_record(vit, made, network, attentions, next(iter(layers.values())), left)


def _description(vit: nn.Module) -> Callable[[nn.Module], PatchNetwork]:
    """Returns the function that describes networks of this class, or raises UnsupportedModelError."""
    describe = PATCH_NETWORKS.get(full_name(type(vit)))
    if describe is not None:
        return describe
    reason = (
        "supported are VisionTransformer and VisionTransformerDistilled of timm, "
        "ViTModel and ViTFor… of transformers"
    )
    for module in vit.modules():
        known = attention_class(module)
        if known is not None and "windows" in known.pattern:
            reason = "it attends in windows, not over the grid of patches"
        elif known is not None and known.unchanged is not None:
            reason = known.unchanged
    raise UnsupportedModelError(
        f"cannot initialise {type(vit).__name__} as a convolution: {reason}"
    )


_NO_LAYERS = "no attention of a known class was found in its blocks (of transformers, version 5 is supported)"


def _read_layers(
    model: nn.Module, network: PatchNetwork
) -> tuple[dict[str, TokenAttention], tuple[LeftAlone, ...]]:
    """Reads the attention in the blocks, by name, and lists that outside of them; or raises with all reasons."""
    layers: dict[str, TokenAttention] = {}
    refused, left = list(network.refused), []
    for layer in survey(model):
        module = model.get_submodule(layer.name)
        kind = type(module).__name__
        if not layer.name.startswith(network.blocks):
            left.append(
                LeftAlone(
                    layer.name, kind, layer.refused or "it is not in the blocks of the network"
                )
            )
            continue
        try:
            layers[layer.name] = read_matrices(module)
        except UnsupportedModelError as error:
            refused.append(f"{layer.name} ({kind}): {error}")
    if refused or not layers:
        listed = "\n".join(f"  {reason}" for reason in refused or [_NO_LAYERS])
        raise UnsupportedModelError(
            f"cannot initialise {type(model).__name__} as a convolution:\n{listed}"
        )
    return layers, tuple(left)


def _add_heads(
    layer: TokenAttention, geometry: Geometry, generator: torch.Generator | None
) -> TokenAttention:
    """Adds heads of the same width after a layer's own until there is one for every tap; new biases are 0.

    The new matrices are normal with the deviation of the layer's own.
    """
    missing = math.prod(geometry.kernel_size) - layer.heads
    if missing <= 0:
        return layer
    inner = missing * layer.head_width

    def wider(old: nn.Linear) -> nn.Linear:
        weight = torch.cat(
            [old.weight, _draw_normal(old.weight, (inner, old.in_features), generator)]
        )
        bias = None if old.bias is None else torch.cat([old.bias, old.bias.new_zeros(inner)])
        return linear(weight, bias, like=old)

    value, out = wider(layer.value), layer.output
    assert out is not None
    weight = torch.cat(
        [out.weight, _draw_normal(out.weight, (out.out_features, inner), generator)], dim=1
    )
    output = linear(weight, out.bias, like=out)
    query, key = wider(layer.query), wider(layer.key)
    return replace(
        layer, heads=layer.heads + missing, query=query, key=key, value=value, output=output
    )


def _tap_encoding(layer: TokenAttention, geometry: Geometry, sharpness: float | None) -> Quadratic:
    """Centres the first heads on the taps, row by row, and the rest on the query's own patch, in at least float32.

    `sharpness` is α > 0 in 1/patch²; None makes weights off the taps exactly zero.
    """
    weight = layer.value.weight
    kind = torch.promote_types(weight.dtype, torch.float32)
    taps = torch.tensor([displacement for _, displacement in geometry.taps()], dtype=kind)
    encoding = Quadratic(layer.heads, 2).to(device=weight.device, dtype=kind)
    with torch.no_grad():
        encoding.centres.zero_()[: len(taps)] = taps
        alpha = _HARD.get(kind, 128.0) if sharpness is None else sharpness
        encoding.root_sharpness.fill_(root_of_sharpness(alpha, kind))
    return encoding


def _draw_normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws normal numbers with the deviation of others."""
    device = torch.device("cpu") if generator is None else generator.device
    drawn = torch.randn(shape, generator=generator, device=device).to(
        device=like.device, dtype=like.dtype
    )
    return drawn * like.detach().std()


def _certify_layer(
    name: str, layer: RelativeAttention2d, sizes: tuple[int, ...]
) -> InitialisedLayer:
    """Compares a layer's attention by position with the convolution of patches that it computes."""
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
        verdict=certificate.verdict,
    )


def _make_record(
    before: nn.Module,
    made: nn.Module,
    network: PatchNetwork,
    attentions: Mapping[str, GatedPatchAttention | PatchAttention],
    layer_before: TokenAttention,
    left: tuple[LeftAlone, ...],
) -> ConvolutionalInit:
    """Measures the layers and puts the record together; all layers of a vision transformer have the same size."""
    first = next(iter(attentions.values()))
    layer, sizes = first.position_layer(), network.grid
    rows, cols = layer.geometry.kernel_size
    assert isinstance(layer.encoding, Quadratic)
    alpha = layer.encoding.sharpness.double().min().item()
    if underflows(alpha, next(layer.values.parameters()).dtype):  # then all sizes give the same
        sizes = tuple(min(size, taps + 2) for size, taps in zip(sizes, (rows, cols), strict=True))
    layers = tuple(
        _certify_layer(name, attention.position_layer(), sizes)
        for name, attention in attentions.items()
    )
    gate = first.gate if isinstance(first, GatedPatchAttention) else None
    share = 0.0 if gate is None else torch.tanh(gate.detach().double()).max().item()
    verdicts = {layer.verdict for layer in layers}
    return ConvolutionalInit(
        model=type(before).__name__,
        grid=network.grid,
        prefix_tokens=network.prefix,
        kernel_size=(rows, cols),
        heads=layer.num_heads,
        heads_before=layer_before.heads,
        head_width=layer_before.head_width,
        heads_at_centre=layer.num_heads - rows * cols + 1,
        sharpness=alpha,
        content="none" if gate is None else "gated",
        content_share=share,
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        parameters_before=sum(parameter.numel() for parameter in before.parameters()),
        layers=layers,
        left=left,
        exact=share == 0 and all(layer.exact for layer in layers),
        verdict="failed"
        if "failed" in verdicts
        else "exact"
        if share == 0 and verdicts == {"exact"}
        else "different",
        not_covered=(
            "prefix tokens, which have no position",
            "the position embedding, which stays: it is added to the tokens before the first layer",
            "normalisation before each layer, and what comes after it",
        ),
    )
