"""Which attention layers a model has, as far as their classes tell, and which of them are wanted."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from convattn.adapters.attention.layout import AttentionModule
from convattn.adapters.attention.registry import is_own, reader, refusal
from convattn.convert.classes import full_name
from convattn.convert.network.modules import matches, names_by_module, patterns, require_matches
from convattn.errors import ArgumentError, UnsupportedModelError, must_be_a


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
