"""Initialises a vision transformer so that its heads are the taps of a convolution of patches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from convattn.convert import attention_to_conv
from convattn.convert.certificate import Certificate, LeftAlone, Verdict, VerdictRecord
from convattn.convert.promise import underflows
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

    model: str  # Class of the network
    grid: tuple[int, int]  # Rows and columns of patches, for images of the network's own size
    # Tokens before the patches (class, distillation, register), which have no position
    prefix_tokens: int
    kernel_size: tuple[int, int]  # Rows and columns of patches that the heads look at
    heads: int  # Heads of each layer now
    heads_before: int  # Heads of each layer before
    head_width: int  # D_h, width of a head: the largest rank of the matrix of one tap
    sharpness: float  # α of the score −α‖δ − Δ‖², in 1/patch²
    content: str  # "gated", or "none"
    # Share of content in each head's attention at the start; 0 without content
    content_share: float
    parameters: int  # Number of parameters now
    parameters_before: int  # Number of parameters before
    layers: tuple[Certificate, ...]  # The layers: their attention by position, as a convolution
    left: tuple[LeftAlone, ...]  # Attention that was not touched, and why
    not_covered: tuple[str, ...] = ()  # What this says nothing about

    @property
    def exact(self) -> bool:
        """Whether every layer's heads are the convolution, and nothing else, at patches."""
        return self.content_share == 0 and all(layer.exact for layer in self.layers)

    @property
    def heads_at_centre(self) -> int:
        """How many of the heads look at the query's own patch, where the matrices add up."""
        return self.heads - math.prod(self.kernel_size) + 1

    def summary(self) -> str:
        """Returns the record in a few lines of plain text."""
        kernel, grid = (" x ".join(map(str, sizes)) for sizes in (self.kernel_size, self.grid))
        prefix = counted(self.prefix_tokens, "prefix token")
        heads = f"{self.heads} of width {self.head_width}, {self.heads_at_centre} of them at the query's own patch"
        if self.heads > self.heads_before:
            heads += f"; {self.heads - self.heads_before} of them new"
        content = self.content
        if content == "gated":
            content += f", a share of {self.content_share:.3g}"
        worst = max(
            self.layers, key=lambda layer: layer.measured_error - layer.bound - layer.rounding
        )
        error = f"error {worst.measured_error:.3g} of {worst.bound + worst.rounding:.3g} allowed, at {worst.name}"
        lines = [
            f"convolutional init: {self.verdict} ({counted(len(self.layers), 'layer')} of {self.model})",
            f"  kernel          {kernel} on a grid of {grid} patches, after {prefix}",
            f"  heads           {heads}",
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

_NOT_COVERED = (
    "prefix tokens, which have no position",
    "the position embedding, which stays: it is added to the tokens before the first layer",
    "normalisation before each layer, and what comes after it",
)


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
        expected = "odd, so that there is a patch in the middle"
        raise ArgumentError(must_be("kernel_size", expected, kernel_size))
    if not (content == "gated" or content is False):
        raise ArgumentError(must_be("content", '"gated" or False', content))
    number = isinstance(content_share, int | float) and not isinstance(content_share, bool)
    if not number or not 0 <= content_share < 1:
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
    network = copy_network(vit)
    patches = describe(network)
    layers, left = _read_layers(network, patches)
    grid = PatchGrid(patches.grid, patches.count)
    geometry = Geometry.parse(2, kernel_size=kernel, padding="same")
    attentions: dict[str, GatedPatchAttention | PatchAttention] = {}
    replaced: dict[nn.Module, nn.Module] = {}
    for name, before in layers.items():
        layer = _add_heads(before, geometry, generator)
        encoding = _tap_encoding(layer, geometry, sharpness)
        if content == "gated":
            attention = GatedPatchAttention(
                layer, encoding, grid, geometry, prefix=patches.prefix, content_share=content_share
            )
        else:
            assert layer.output is not None
            by_position = layer_by_position(encoding, geometry, layer.value, layer.output)
            attention = PatchAttention(by_position, grid, prefix=patches.prefix, after=layer.after)
        attentions[name] = attention
        old = network.get_submodule(name)
        replaced[old] = keep_modes(old, layer.wrap(attention))
    network = graft(network, replaced)
    network.get_submodule(patches.embedding).register_forward_pre_hook(grid)
    first = next(iter(attentions.values())).position_layer()
    alpha = _sharpness(first)
    records = _certify_layers(attentions, patches.grid)
    old_layer = next(iter(layers.values()))
    verdicts = {record.verdict for record in records}
    verdict: Verdict = "different"
    if "failed" in verdicts:
        verdict = "failed"
    elif verdicts == {"exact"} and not content_share:
        verdict = "exact"
    return network, ConvolutionalInit(
        model=type(vit).__name__,
        grid=patches.grid,
        prefix_tokens=patches.prefix,
        kernel_size=(kernel[0], kernel[1]),
        heads=first.num_heads,
        heads_before=old_layer.heads,
        head_width=old_layer.head_width,
        sharpness=alpha,
        content=content or "none",
        content_share=float(content_share),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        parameters_before=sum(parameter.numel() for parameter in vit.parameters()),
        layers=records,
        left=left,
        verdict=verdict,
        not_covered=_NOT_COVERED,
    )


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
    refused = list(network.refused)
    left = []
    for layer in survey(model):
        module = model.get_submodule(layer.name)
        kind = type(module).__name__
        if not layer.name.startswith(network.blocks):
            reason = layer.refused or "it is not in the blocks of the network"
            left.append(LeftAlone(layer.name, kind, reason))
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
    output = layer.output
    if missing <= 0:
        return layer
    assert output is not None
    added = missing * layer.head_width

    def wider(old: nn.Linear) -> nn.Linear:
        rows = _draw_normal(old.weight, (added, old.in_features), generator)
        weight = torch.cat([old.weight, rows])
        bias = None
        if old.bias is not None:
            bias = torch.cat([old.bias, old.bias.new_zeros(added)])
        return linear(weight, bias, like=old)

    value = wider(layer.value)
    columns = _draw_normal(output.weight, (output.out_features, added), generator)
    weight = torch.cat([output.weight, columns], dim=1)
    return replace(
        layer,
        heads=layer.heads + missing,
        value=value,
        output=linear(weight, output.bias, like=output),
        query=wider(layer.query),
        key=wider(layer.key),
    )


def _draw_normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws normal numbers with the deviation of others."""
    device = torch.device("cpu") if generator is None else generator.device
    drawn = torch.randn(shape, generator=generator, device=device)
    drawn = drawn.to(device=like.device, dtype=like.dtype)
    return drawn * like.detach().std()


@torch.no_grad()
def _tap_encoding(layer: TokenAttention, geometry: Geometry, sharpness: float | None) -> Quadratic:
    """Centres the first heads on the taps, row by row, and the rest on the query's own patch, in at least float32.

    `sharpness` is α > 0 in 1/patch²; None makes weights off the taps exactly zero.
    """
    weight = layer.value.weight
    kind = torch.promote_types(weight.dtype, torch.float32)
    taps = torch.tensor([displacement for _, displacement in geometry.taps()], dtype=kind)
    encoding = Quadratic(layer.heads, 2).to(device=weight.device, dtype=kind)
    encoding.centres.zero_()[: len(taps)] = taps
    alpha = _HARD.get(kind, 128.0) if sharpness is None else sharpness
    encoding.root_sharpness.fill_(root_of_sharpness(alpha, kind))
    return encoding


def _sharpness(layer: RelativeAttention2d) -> float:
    assert isinstance(layer.encoding, Quadratic)
    return layer.encoding.sharpness.double().min().item()


def _certify_layers(
    attentions: Mapping[str, GatedPatchAttention | PatchAttention], grid: tuple[int, int]
) -> tuple[Certificate, ...]:
    """Compares the attention by position of each layer with the convolution of patches that it computes."""
    records = []
    for name, attention in attentions.items():
        layer = attention.position_layer()
        sizes = grid
        kernel = layer.geometry.kernel_size
        if underflows(_sharpness(layer), next(layer.values.parameters()).dtype):
            rows = min(sizes[0], kernel[0] + 2)
            cols = min(sizes[1], kernel[1] + 2)
            sizes = (rows, cols)  # all sizes give the same
        try:
            _, certificate = attention_to_conv(layer, kernel_size=kernel, spatial=sizes)
        except ConversionError as error:
            raise UnsupportedModelError(f"{name}: {error}") from None
        records.append(replace(certificate, name=name))
    return tuple(records)
