"""Which classes are read, and how; which are known and refused; and a user's own."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from convattn.convert.surgery import full_name, matches, names_by_module, patterns, require_matches
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a
from convattn.heads.global_families import TIMM_GLOBAL, TORCHVISION_VIT, TRANSFORMERS
from convattn.heads.layout import AttentionModule, Read
from convattn.heads.own_layers import OWN
from convattn.heads.pooled_families import POOLED, REDUCED
from convattn.heads.window_families import HEADS_FIRST, PARTITIONS, WINDOWS

_CHANNELS = "it attends over channels, not over positions"
_LINEAR = "it has no softmax over positions (linear attention), so no weights"
_POOL = "its queries are learned and have no position: it pools the tokens"

REFUSED: dict[str, str] = {
    "timm.layers.attention_pool.AttentionPoolLatent": _POOL,
    "timm.layers.attention_pool.AttentionPoolPrr": _POOL,
    "timm.layers.attention_pool2d.AttentionPool2d": _POOL,
    "timm.layers.attention_pool2d.RotAttentionPool2d": _POOL,
    "timm.layers.diff_attention.DiffAttention": "it takes the difference of two attentions",
    "timm.models.vision_transformer.DiffParallelScalingBlock": "it takes the difference of two attentions",
    "timm.models.xcit.XCA": _CHANNELS,
    "timm.models.edgenext.CrossCovarianceAttn": _CHANNELS,
    "timm.models.davit.ChannelAttention": _CHANNELS,
    "timm.models.davit.ChannelAttentionV2": _CHANNELS,
    "timm.models.mobilevit.LinearSelfAttention": _LINEAR,
    "timm.layers.attention2d.MultiQueryAttentionV2": "it shares one key and value between heads and is not read",
    "timm.models.efficientvit_mit.LiteMLA": _LINEAR,
    "timm.models.coat.FactorAttnConvRelPosEnc": _LINEAR,
    "timm.models.swiftformer.EfficientAdditiveAttention": _LINEAR,
    "timm.models.levit.Attention": "nothing around it says which grid its tokens form",
    "timm.models.levit.AttentionDownsample": "nothing around it says which grid its tokens form",
    "timm.models.volo.OutlookAttention": "its weights come from a linear map of the query alone, without keys",
    "transformers.models.siglip.modeling_siglip.SiglipMultiheadAttentionPoolingHead": _POOL,
    "convattn.heads.patch_attention.GatedPatchAttention": "it mixes what two attentions gave out",
    "convattn.layers.frozen.FrozenAttention": "it is frozen and holds no weights; take the layer before `freeze`",
}
"""Reason by full name of the class."""


class Reader(NamedTuple):
    """How a class is read."""

    pattern: str  # Family of layouts
    read: Read
    heads_first: bool = False  # Whether the weights have their heads before their groups


_FAMILIES = (TIMM_GLOBAL, WINDOWS, PARTITIONS, REDUCED, POOLED, TRANSFORMERS, TORCHVISION_VIT)
_BY_NAME: dict[str, Reader] = {
    kind: Reader(pattern, read, kind in HEADS_FIRST) for family in _FAMILIES for kind, (pattern, read) in family.items()
}
_registered: dict[type[nn.Module], Reader] = {}


def register_attention(
    cls: type[nn.Module], read: Read, *, pattern: str = "registered", heads_first: bool = False
) -> None:
    """Says how the attention of a class of your own is laid out, so that `watch` reads it.

    The weights are found as for other modules: from `scaled_dot_product_attention`, or from a softmax and the product
    with values that follows. Their leading axes must be images, groups and heads, in this order, apart or as one.

    Args:
        cls: The class of the attention module; subclasses are not included. Registering it again replaces its reader.
        read: Called with what was `Seen` of each call; returns the `Layout`, or raises UnsupportedModelError.
        pattern: What `attention_layers` says of it.
        heads_first: Whether the weights have their heads before their groups, and not after.

    Raises:
        ArgumentError: `cls` is not a module class, or `read` cannot be called.

    Example:
        >>> class MyAttention(nn.Module): ...
        >>> register_attention(MyAttention, lambda seen: seen.global_layout((14, 14), prefix=1))
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ArgumentError(must_be("cls", "a subclass of nn.Module", cls))
    if not callable(read):
        raise ArgumentError(must_be_a("read", "a function from what was seen to a layout", read))
    _registered[cls] = Reader(pattern, read, heads_first)


def reader(module: nn.Module) -> Reader | None:
    """Returns how a module is read; None if its class is not known, or refused."""
    kind = type(module)
    return _registered.get(kind) or _BY_NAME.get(full_name(kind))


def is_own(module: nn.Module) -> bool:
    """Tells whether a module is a layer of this library, which computes its weights itself."""
    return type(module) in OWN


def is_known(module: nn.Module) -> bool:
    """Tells whether a module is read, or refused with a reason."""
    return reader(module) is not None or refusal(module) is not None or is_own(module)


def refusal(module: nn.Module) -> str | None:
    """Returns why a known class is not read; None for others."""
    return None if type(module) in _registered else REFUSED.get(full_name(type(module)))


def attention_layers(model: nn.Module) -> tuple[AttentionModule, ...]:
    """Lists the attention layers of a model whose classes are known, those that are refused with their reasons.

    Args:
        model: The network.

    Returns:
        The layers, in the order of the network's modules.

    Raises:
        ArgumentError: It is no module.
        UnsupportedModelError: None of them can be read; the reasons are named.

    Example:
        >>> from convattn.layers import RelativeAttention2d
        >>> attention_layers(RelativeAttention2d(3, 5, num_heads=9, encoding="quadratic"))[0].pattern
        'global'
    """
    found = _survey(model)
    if any(layer.refused is None for layer in found):
        return found
    listed = [f"{layer.name or 'the model'} ({layer.kind.rpartition('.')[2]}): {layer.refused}" for layer in found]
    raise UnsupportedModelError(_none_of(model, listed or [_unknown(model)]))


def chosen_layers(
    model: nn.Module, layers: str | Sequence[str] | None, without: str | Sequence[str] | None = None
) -> Mapping[nn.Module, str]:
    """Returns the layers to read with their names; a name or pattern that matches none or only refused ones raises."""
    wanted, unwanted = patterns("layers", layers), patterns("without", without) or ()
    found = attention_layers(model)
    require_matches([layer.name for layer in found], "attention layers", layers=wanted, without=unwanted)
    for pattern in wanted or ():
        named = [layer for layer in found if matches([layer.name], [pattern])]
        if all(layer.refused for layer in named):
            raise UnsupportedModelError(f"{named[0].name}: {named[0].refused}")
    return {
        model.get_submodule(layer.name): layer.name
        for layer in found
        if layer.refused is None
        and (wanted is None or matches([layer.name], wanted))
        and not matches([layer.name], unwanted)
    }


def require_watchable(model: nn.Module) -> None:
    """Raises an error if a model cannot run, or not so that its operations are seen."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "an nn.Module", model))
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(f"{name or 'the model'} is scripted, and what it computes is not seen")
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            raise UnsupportedModelError(f"{name or 'the model'} is compiled; pass it as it was before `torch.compile`")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter):
            raise UnsupportedModelError(f"{name} has no size yet: run the model once")
        if tensor.is_meta:
            raise UnsupportedModelError(f"{name} is on the meta device and has no values")


def _survey(model: nn.Module) -> tuple[AttentionModule, ...]:
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "an nn.Module", model))
    found, inside = [], set()
    for module, names in names_by_module(model).items():
        kind, known, reason = full_name(type(module)), reader(module), refusal(module)
        if module in inside:
            continue
        if reason is not None:
            inside.update(module.modules())  # what runs in a module that is refused is refused with it
        if is_own(module):
            pattern = "sequence" if module.dims == 1 else "global"
        elif known is not None:
            pattern = known.pattern
        elif reason is not None:
            pattern = "none"
        else:
            continue
        found.append(AttentionModule(names[0], kind, pattern, reason))
    return tuple(found)


def _none_of(model: nn.Module, reasons: Sequence[str]) -> str:
    listed = "\n".join(f"  {reason}" for reason in reasons)
    return f"no attention of {type(model).__name__} can be read:\n{listed}"


def _unknown(model: nn.Module) -> str:
    named = sorted({full_name(type(part)) for part in model.modules() if "attention" in type(part).__name__.lower()})
    if named:
        return f"{', '.join(named)}: not known; say where its tokens lie by register_attention"
    return "it has no module whose class is known to attend"
