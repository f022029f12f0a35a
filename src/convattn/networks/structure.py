"""Compares a network with a new one of the same source: replaced layers, and all other differences."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from convattn.convert.classes import full_name
from convattn.convert.network.modules import graft, names_by_module
from convattn.convert.network.plain_convolution import is_own_hook
from convattn.convert.saved import KINDS, describe_layer, rebuild_layer
from convattn.errors import CheckpointError, UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.records.words import ITSELF

_IDENTITY = nn.Identity.__name__
_NO_FUNCTION = ("training", "grad_checkpointing")
"""Attributes that do not change what a module computes in evaluation mode."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def describe_layers(network: nn.Module) -> list[dict[str, Any]]:
    """Describes every attention layer, plain convolution and identity of a network, where no new one can be compared.

    Each entry holds what rebuilds the layer, and under "names" where it stands.
    """
    described: list[dict[str, Any]] = []
    inside: set[nn.Module] = set()
    for module, names in names_by_module(network).items():
        if module in inside or not _has_description(module) or _stays(module):
            continue
        inside |= {*module.modules()}
        described.append({"names": names, **_describe(module)})
    return described


def _stays(module: nn.Module) -> bool:
    """Tells whether a module with hooks, which may compute its weights, is left as the user's own network has it."""
    if isinstance(module, RelativeAttention):  # the user's network has none: only hooks that make weights stop it
        return any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    return any(getattr(module, hooks) for hooks in _HOOKS)


def describe_replaced(network: nn.Module, fresh: nn.Module) -> list[dict[str, Any]]:
    """Describes, as `describe_layers` does, the layers of a network that a new one of its source does not have.

    A replaced module that cannot be described raises UnsupportedModelError.
    """
    found: dict[nn.Module, dict[str, Any]] = {}
    for name, module, other in _differing_places("", network, fresh):
        if module in found:
            found[module]["names"].append(name)
        elif not _has_description(module):
            raise UnsupportedModelError(
                f"{name or ITSELF} is a {_class_words(module, other)}, where a new network has"
                f" {'nothing' if other is None else f'a {_class_words(other, module)}'}"
            )
        else:
            found[module] = {"names": [name], **_describe(module)}
    return list(found.values())


def put_layers(network: nn.Module, described: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Puts described layers in their places, on the meta device: their weights are yet to be loaded.

    The network is changed. Returns it, or the layer that replaces it as a whole; a missing place raises
    CheckpointError.
    """
    places = dict(network.named_modules(remove_duplicate=False))
    replaced = {}
    for layer in described:
        with torch.device("meta"):
            made = nn.Identity() if layer["kind"] == _IDENTITY else rebuild_layer(dict(layer))
        for name in layer["names"]:
            if name not in places:
                raise CheckpointError(f"{type(network).__name__} has no module {name!r} to be replaced")
            replaced[places[name]] = made
    return graft(network, replaced)


def differences(network: nn.Module, fresh: nn.Module) -> Iterator[str]:
    """Yields, in words, all other differences between a network and a new one with the same replaced layers.

    Names and shapes of tensors are compared, plain attributes of all modules (strides, rates, switches), methods that
    were replaced on a module, the number of hooks, and buffers that a state dict does not have.
    """
    old, new = network.state_dict(), fresh.state_dict()
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new or name not in old:
            yield f"{name} {'is added' if name in old else 'is missing'}"
        elif old[name].shape != new[name].shape:
            yield f"{name} is of shape {tuple(old[name].shape)}, not {tuple(new[name].shape)}"
    others = dict(fresh.named_modules())
    for name, module in network.named_modules():
        if name in others:
            yield from _attribute_differences(name, module, others[name])
    buffers = dict(fresh.named_buffers())
    for name, buffer in network.named_buffers():
        other = buffers.get(name)
        if name not in old and (other is None or not torch.equal(buffer.cpu(), other.to(buffer.dtype))):
            yield f"{name}, which is not in the state dict, has other values"


def _attribute_differences(name: str, module: nn.Module, other: nn.Module) -> Iterator[str]:
    old, new = _plain_attributes(module), _plain_attributes(other)
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            place = f"{name}.{key}" if name else key
            yield f"{place} is {old.get(key, 'missing')}, not {new.get(key, 'missing')}"
    for key in sorted(vars(module).keys() - vars(other).keys()):
        if callable(vars(module)[key]) and hasattr(type(module), key):
            yield f"{name or 'the network'} has another {key}"
    if any(len(getattr(module, hooks)) != len(getattr(other, hooks)) for hooks in _HOOKS):
        yield f"{name or 'the network'} has hooks"


def _plain_attributes(module: nn.Module) -> dict[str, str]:
    """Returns the public attributes of a module that are numbers, text or sequences of such, as text."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return all(map(is_plain, value))
        return value is None or isinstance(value, bool | int | float | str)

    kept = {key: value for key, value in vars(module).items() if not key.startswith("_") and key not in _NO_FUNCTION}
    return {key: repr(value) for key, value in kept.items() if is_plain(value)}


def _differing_places(
    name: str, module: nn.Module | None, other: nn.Module | None
) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """Walks through two networks, down to where their modules differ in class or description."""
    if module is None:
        if other is not None:
            raise UnsupportedModelError(f"{name} is missing, where a new network has a {type(other).__name__}")
        return
    kind = parametrize.type_before_parametrizations
    if other is None or kind(module) is not kind(other):
        yield name, module, other
    elif _has_description(module) and _has_description(other):
        old, new = (json.dumps(_describe(layer), sort_keys=True) for layer in (module, other))
        if old != new:
            yield name, module, other
    else:
        for key in dict.fromkeys([*module._modules, *other._modules]):
            child, counterpart = module._modules.get(key), other._modules.get(key)
            yield from _differing_places(f"{name}.{key}" if name else key, child, counterpart)


def _class_words(module: nn.Module, other: nn.Module | None) -> str:
    """Names a module's class, with its file where another class has the same name."""
    kind = type(module)
    return full_name(kind) if other is not None and type(other).__name__ == kind.__name__ else kind.__name__


def _has_description(module: nn.Module) -> bool:
    return type(module) in (*KINDS.values(), nn.Identity)


def _describe(module: nn.Module) -> dict[str, Any]:
    return {"kind": _IDENTITY} if type(module) is nn.Identity else describe_layer(module)
