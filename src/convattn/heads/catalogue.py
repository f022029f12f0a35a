"""The one catalogue of attention: which classes are read, replaced, initialised or refused, and a user's own."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from torch import nn

from convattn.convert.surgery import matches, patterns, require_network
from convattn.convert.taps import ATTENTION_LAYERS
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a
from convattn.heads.families.attention_class import (
    AttentionClass,
    PatchNetwork,
    ReadLayout,
    TokenAttention,
)
from convattn.heads.families.reduced_keys import REDUCED_KEYS
from convattn.heads.families.timm_vits import TIMM_VITS
from convattn.heads.families.torch_attention import TORCH_ATTENTION
from convattn.heads.families.transformers_encoders import TRANSFORMERS_ENCODERS
from convattn.heads.families.window_attention import WINDOWS
from convattn.structure import full_name

_CHANNELS = "it attends over channels, not over positions"
_DIFFERENCE = "it takes the difference of two attentions"
_LINEAR = "it has no softmax over positions (linear attention), so no weights"
_NO_GRID = "nothing around it says which grid its tokens form"
_POOL = "its queries are learned and have no position: it pools the tokens"

_REPLACED = "its heads were replaced; read the network before"

_REFUSED: dict[str, str] = {
    "timm.layers.attention_pool.AttentionPoolLatent": _POOL,
    "timm.layers.attention_pool.AttentionPoolPrr": _POOL,
    "timm.layers.attention_pool2d.AttentionPool2d": _POOL,
    "timm.layers.attention_pool2d.RotAttentionPool2d": _POOL,
    "timm.layers.diff_attention.DiffAttention": _DIFFERENCE,
    "timm.models.vision_transformer.DiffParallelScalingBlock": _DIFFERENCE,
    "timm.models.xcit.XCA": _CHANNELS,
    "timm.models.edgenext.CrossCovarianceAttn": _CHANNELS,
    "timm.models.davit.ChannelAttention": _CHANNELS,
    "timm.models.davit.ChannelAttentionV2": _CHANNELS,
    "timm.models.mobilevit.LinearSelfAttention": _LINEAR,
    "timm.layers.attention2d.MultiQueryAttentionV2": "it shares one key and value between heads and is not read",
    "timm.models.efficientvit_mit.LiteMLA": _LINEAR,
    "timm.models.coat.FactorAttnConvRelPosEnc": _LINEAR,
    "timm.models.swiftformer.EfficientAdditiveAttention": _LINEAR,
    "timm.models.levit.Attention": _NO_GRID,
    "timm.models.levit.AttentionDownsample": _NO_GRID,
    "timm.models.volo.OutlookAttention": "its weights come from a linear map of the query alone, without keys",
    "transformers.models.siglip.modeling_siglip.SiglipMultiheadAttentionPoolingHead": _POOL,
    "convattn.heads.convolved_attention.ConvolvedAttention": _REPLACED,
    "convattn.heads.fixed_attention.FixedAttention": _REPLACED,
    "convattn.layers.frozen.FrozenAttention": "it is frozen and holds no weights; take the layer before `freeze`",
}

_CATALOGUE: dict[str, AttentionClass] = {
    **TIMM_VITS,
    **WINDOWS,
    **REDUCED_KEYS,
    **TRANSFORMERS_ENCODERS,
    **TORCH_ATTENTION,
    **{kind: AttentionClass(refused=reason) for kind, reason in _REFUSED.items()},
}
_NONE_KNOWN = (
    "it has no module of a known class; run by `watch`, it says which one attends and what to type"
)
_registered: list[tuple[type[nn.Module], AttentionClass]] = []  # The last of a class counts

_TRANSFORMERS_VIT = "transformers.models.vit.modeling_vit"
_TIMM_VIT = PatchNetwork("patch_embed", "blocks.")
_VIT_INSIDE = PatchNetwork("vit.embeddings.patch_embeddings")
PATCH_NETWORKS: dict[str, PatchNetwork] = {
    "timm.models.vision_transformer.VisionTransformer": _TIMM_VIT,
    "timm.models.deit.VisionTransformerDistilled": _TIMM_VIT,
    f"{_TRANSFORMERS_VIT}.ViTModel": PatchNetwork("embeddings.patch_embeddings"),
    f"{_TRANSFORMERS_VIT}.ViTForImageClassification": _VIT_INSIDE,
    f"{_TRANSFORMERS_VIT}.ViTForMaskedImageModeling": _VIT_INSIDE,
}
"""Networks whose heads can be initialised, by full name of the class."""


def register_attention(
    cls: type[nn.Module],
    read: ReadLayout,
    *,
    heads_first: bool = False,
) -> ExitStack:
    """Says how the attention of a class of your own is laid out, so that it is read, and its heads are replaced.

    This holds in the whole process until what is returned is closed, or its `with` block is left. The weights are found
    as for other modules: from `scaled_dot_product_attention`, or from a softmax and the product with values that
    follows. Their leading axes must be images, groups and heads, in this order, apart or as one.

    Args:
        cls: The class of the attention module; subclasses are not included. Of several readers the last one counts.
        read: Called with the `CallContext` of each call; returns the `Layout`, or raises UnsupportedModelError.
        heads_first: Whether the weights have their heads before their groups, and not after.

    Returns:
        A context manager that takes the registration back, as its method `close` does.

    Raises:
        ArgumentError: `cls` is not a module class, or `read` cannot be called.

    Example:
        >>> class MyAttention(nn.Module): ...
        >>> with register_attention(MyAttention, lambda call: call.global_layout((14, 14), prefix=1)):
        ...     attention_layers(MyAttention())[0].pattern
        'registered'
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ArgumentError(must_be("cls", "a subclass of nn.Module", cls))
    if not callable(read):
        raise ArgumentError(must_be_a("read", "a function from a call to a layout", read))
    known = _CATALOGUE.get(full_name(cls), AttentionClass())
    known = replace(known, pattern="registered", layout=read, heads_first=heads_first, refused=None)
    entry = (cls, known)
    _registered.append(entry)
    registration = ExitStack()
    registration.callback(_registered.remove, entry)
    return registration


def attention_class(kind: type[nn.Module]) -> AttentionClass | None:
    """Returns what is known of a class; None if it is not in the catalogue."""
    return dict(_registered).get(kind) or _CATALOGUE.get(full_name(kind))


def is_own(module: nn.Module) -> bool:
    """Tells whether a module is a layer of this library, which computes its weights itself."""
    return type(module) in ATTENTION_LAYERS


def read_matrices(attention: nn.Module) -> TokenAttention:
    """Returns the matrices of a layer, or raises UnsupportedModelError with the reason alone."""
    known = attention_class(type(attention)) or AttentionClass()
    if known.matrices is None:
        raise UnsupportedModelError(known.refused or "where its matrices are is not known")
    return known.matrices(attention)


@dataclass(frozen=True)
class AttentionModule:
    """An attention layer of a model, as far as its class tells."""

    name: str  # Dotted name
    kind: str  # Full name of the class
    pattern: str  # Family of layouts; the layout of a call says more
    refused: str | None = None  # Why its weights are not read; None if they are


def attention_layers(model: nn.Module) -> tuple[AttentionModule, ...]:
    """Lists the attention layers of a model whose classes are known; those that are not read have a reason.

    Args:
        model: The network.

    Returns:
        The layers, in the order of the network's modules.

    Raises:
        ArgumentError: `model` is not a module.
        UnsupportedModelError: None of them can be read; the reasons are named.

    Example:
        >>> from convattn.layers import RelativeAttention2d
        >>> attention_layers(RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic"))[0].pattern
        'global'
    """
    require_network("model", model)
    layers = survey(model)
    if any(layer.refused is None for layer in layers):
        return layers
    reasons = []
    for layer in layers:
        kind = layer.kind.rpartition(".")[2]
        reasons.append(f"  {layer.name or 'the model'} ({kind}): {layer.refused}")
    listed = "\n".join(reasons or [f"  {_NONE_KNOWN}"])
    raise UnsupportedModelError(f"no attention of {type(model).__name__} can be read:\n{listed}")


def survey(model: nn.Module) -> tuple[AttentionModule, ...]:
    """Lists the attention layers that the catalogue knows, none of them twice; perhaps none."""
    layers: list[AttentionModule] = []
    inside: set[nn.Module] = set()
    classes = {kind: attention_class(kind) for kind in set(map(type, model.modules()))}
    for name, module in model.named_modules():
        known = classes[type(module)]
        if is_own(module):
            known = AttentionClass("sequence" if module.dims == 1 else "global")
        if known is None or module in inside:
            continue
        if known.refused is not None:
            inside.update(module.modules())  # attention inside a refused module is refused with it
        layers.append(AttentionModule(name, full_name(type(module)), known.pattern, known.refused))
    return tuple(layers)


def layers_to_read(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    without: str | Sequence[str] | None = None,
) -> dict[str, nn.Module]:
    """Returns the layers to read by name, without names or patterns all that can be read, perhaps none.

    A name or pattern that matches no layer, or only refused ones, raises.
    """
    every = survey(model) if layers is None else attention_layers(model)
    names = [layer.name for layer in every]
    wanted = patterns("layers", layers, names, "attention layers")
    unwanted = patterns("without", without, names, "attention layers") or ()
    for pattern in wanted or ():
        matching = [layer for layer in every if matches([layer.name], [pattern])]
        if all(layer.refused for layer in matching):
            raise UnsupportedModelError(f"{matching[0].name}: {matching[0].refused}")
    modules = {}
    for layer in every:
        named = matches([layer.name], wanted or ("*",)) and not matches([layer.name], unwanted)
        if named and layer.refused is None:
            modules[layer.name] = model.get_submodule(layer.name)
    return modules
