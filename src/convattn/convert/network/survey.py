"""Finds the convolutions of a network: those to convert, those to leave alone, and those that cannot be converted."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from convattn.convert.classes import full_name
from convattn.convert.network.modules import matches, names_by_module, patterns, require_matches
from convattn.convert.network.plain_convolution import REFUSED, PlainConvolution, is_own_hook, read_plain
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.records import LeftAlone
from convattn.records.words import ITSELF, counted, some

_HOOKS_KEPT = "its hooks were kept and are called with the attention layer"
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True)
class Found:
    """A convolution to be converted."""

    names: tuple[str, ...]  # Its dotted names in the network, the first one first
    module: nn.Module  # The module itself
    plain: PlainConvolution  # The plain convolution that computes the same
    notes: tuple[str, ...]  # What changes by the conversion


def find_convolutions(
    model: nn.Module, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> tuple[list[Found], list[LeftAlone]]:
    """Returns the convolutions of a network to convert, and those to leave alone.

    Modules that cannot be converted raise one UnsupportedModelError that names them all; where nothing is left to
    convert, ConversionError says why.
    """
    included, excluded = patterns("include", include), patterns("exclude", exclude)
    concerned = {m: names for m, names in names_by_module(model).items() if isinstance(m, _ConvNd) or _refusal(m)}
    every = [name for names in concerned.values() for name in names]
    if every:
        require_matches(every, "convolutions", include=included, exclude=excluded)
    found, left, refused = [], [], []
    for module, names in concerned.items():
        if not matches(names, included or ("*",)) or matches(names, excluded or ()):
            left.append(LeftAlone(names[0], type(module).__name__, "left out by include or exclude"))
            continue
        try:
            reason = _refusal(module)
            if reason is not None:
                raise UnsupportedModelError(reason)
            plain = read_plain(module)
            found.append(Found(tuple(names), module, plain, (*plain.notes, *_hook_notes(module))))
        except UnsupportedModelError as error:
            refused.append(f"  {names[0] or ITSELF} ({type(module).__name__}): {error}")
    if refused:
        raise UnsupportedModelError(
            f"cannot convert {counted(len(refused), 'module')} of {type(model).__name__}; leave them out with"
            " `exclude`, or replace them:\n" + "\n".join(refused)
        )
    if not found:
        raise ConversionError(
            f"there is no convolution to convert in {type(model).__name__}: {_why_none_found(model, left)}"
        )
    return found, left


def _why_none_found(model: nn.Module, left: Sequence[LeftAlone]) -> str:
    if left:
        return f"include and exclude leave out all of them ({some([item.name for item in left])})"
    attention = sum(isinstance(module, RelativeAttention) for module in model.modules())
    if attention:
        are = "is" if attention == 1 else "are"
        return f"{counted(attention, 'layer')} {are} attention already; `network_to_conv` (`--to conv`) converts back"
    return "none of its modules is one, and those called as functions are not converted"


def _refusal(module: nn.Module) -> str | None:
    """Returns why a module cannot be converted, if its class alone shows it."""
    name = full_name(type(module))
    if name in REFUSED:
        return REFUSED[name]
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript; convert the network that it was made from"
    if name.startswith("torch._dynamo."):
        return "it is compiled; convert the network that it was made from, and compile the result"
    if name.startswith("torch.ao.nn.") and "Conv" in type(module).__name__:
        return "it is quantised; convert the network before quantising"
    if isinstance(module, LazyModuleMixin):
        return "it is lazy and not initialised; run the network once first"
    held = {**module._parameters, **module._buffers}
    empty = next((name for name, tensor in held.items() if tensor is not None and tensor.is_meta), None)
    return None if empty is None else f"its {empty} is on the meta device and has no values"


def _hook_notes(module: nn.Module) -> list[str]:
    """Says what happens to a module's hooks."""
    notes = []
    before = [hook for hook in module._forward_pre_hooks.values() if not is_own_hook(hook)]
    if before or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks:
        notes.append(_HOOKS_KEPT)
    own = parametrize.is_parametrized(module) or any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    if not own and any(getattr(module, name, None) for name in _STATE_HOOKS):
        notes.append("its hooks on loading and saving were not kept")
    return notes
