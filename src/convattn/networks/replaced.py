"""Layers of a network: described for a file, put back, and all else held against a new network."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from convattn.convert.calls import AttendedCalls, Call, original_place
from convattn.convert.saved_layers import KINDS, describe_layer, rebuild_layer
from convattn.convert.surgery import (
    first_change,
    full_name,
    graft,
    is_own_hook,
    names_by_module,
    replaced_methods,
)
from convattn.errors import CheckpointError, UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.sealed import plain_attributes
from convattn.wording import ITSELF

_IDENTITY = nn.Identity.__name__
_NO_FUNCTION = ("grad_checkpointing",)
"""Attributes that do not change what a module computes."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def describe_layers(network: nn.Module) -> list[dict[str, Any]]:
    """Describes every attention layer, plain convolution and identity of a network.

    Each entry holds what rebuilds the layer, and under "names" where it stands. A layer that is the whole network, and
    computes something else than its class does, raises UnsupportedModelError.
    """
    if _has_description(network):
        reason = first_change(network, computed=lambda _: False)
        if reason is not None:
            raise UnsupportedModelError(reason)
    layers: list[dict[str, Any]] = []
    inside: set[nn.Module] = set()
    for module, names in names_by_module(network).items():
        if module in inside or not _has_description(module) or _computes_weights(module):
            continue
        if isinstance(module, AttendedCalls):
            inside.update([module.module, *module.layers.modules()])
        else:
            inside.update(module.modules())
        original = [original_place(network, name).name for name in names]
        layers.append({"names": original, **_describe(module)})
    return layers


def _computes_weights(module: nn.Module) -> bool:
    """Tells whether hooks may compute the weights of a module, which is then left as the user's network has it."""
    if isinstance(module, RelativeAttention):
        return any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    return any(getattr(module, hooks) for hooks in _HOOKS)


def put_layers(network: nn.Module, layers: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Puts described layers in their places, on the meta device: their weights are yet to be loaded.

    The network is changed. Returns it, or the layer that replaces it as a whole; a missing place raises
    CheckpointError.
    """
    places = dict(network.named_modules(remove_duplicate=False))
    replacements = {}
    for described in layers:
        for name in described["names"]:
            if name not in places:
                raise CheckpointError(
                    f"{type(network).__name__} has no module {name!r} to be replaced"
                )
        layer = _rebuild(described, places[described["names"][0]])
        replacements.update((places[name], layer) for name in described["names"])
    return graft(network, replacements)


def _rebuild(described: Mapping[str, Any], place: nn.Module) -> nn.Module:
    """Builds a described layer on the meta device; `place` is the module that it takes the place of."""
    if described["kind"] == _IDENTITY:
        return nn.Identity()
    with torch.device("meta"):
        if described["kind"] != AttendedCalls.__name__:
            return rebuild_layer(dict(described))
        layers = [rebuild_layer(one) for one in described["layers"]]
    calls = [Call.of(one) for one in described["calls"]]
    return AttendedCalls(place, layers, calls)


def differences(network: nn.Module, fresh: nn.Module) -> Iterator[str]:
    """Yields, in words, the differences between a network and a new one with the same described layers.

    Compared are the classes of all modules, their plain attributes (strides, rates, switches), methods that were
    replaced on a module and the number of hooks; names and shapes of tensors; and buffers that a state dict does not
    have.
    """
    modules, others = dict(network.named_modules()), dict(fresh.named_modules())
    for name in dict.fromkeys([*modules, *others]):
        yield from _module_differences(name, modules.get(name), others.get(name))
    old, new = network.state_dict(), fresh.state_dict()
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            yield f"{name} is added"
        elif name not in old:
            yield f"{name} is missing"
        elif old[name].shape != new[name].shape:
            yield f"{name} is of shape {tuple(old[name].shape)}, not {tuple(new[name].shape)}"
    buffers = dict(fresh.named_buffers())
    for name, buffer in network.named_buffers():
        if name in old:
            continue
        other = buffers.get(name)
        if other is None or not torch.equal(buffer.cpu(), other.to(buffer.dtype)):
            yield f"{name}, which is not in the state dict, has other values"


def _module_differences(
    name: str, module: nn.Module | None, other: nn.Module | None
) -> Iterator[str]:
    place = name or ITSELF
    kind, expected = _class_name(module), _class_name(other)
    if kind != expected:
        yield f"{place} is {kind}, where a new network has {expected}"
    if module is None or other is None:
        return
    old, new = _public_attributes(module), _public_attributes(other)
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            attribute = f"{name}.{key}" if name else key
            yield f"{attribute} is {old.get(key, 'missing')}, not {new.get(key, 'missing')}"
    for key in sorted({*replaced_methods(module)} - {*replaced_methods(other)}):
        yield f"{place} has another {key}"
    for hooks in _HOOKS:
        if len(getattr(module, hooks)) != len(getattr(other, hooks)):
            yield f"{place} has hooks"


def _class_name(module: nn.Module | None) -> str:
    """Names a module's class, before parametrisations."""
    if module is None:
        return "nothing"
    return f"a {full_name(parametrize.type_before_parametrizations(module))}"


def _public_attributes(module: nn.Module) -> dict[str, str]:
    """Returns the public attributes of a module that change what it computes, as text."""
    plain = plain_attributes(module)
    public = [key for key in plain if not key.startswith("_") and key not in _NO_FUNCTION]
    return {key: plain[key] for key in public}


def _has_description(module: nn.Module) -> bool:
    return type(module) in (*KINDS.values(), nn.Identity, AttendedCalls)


def _describe(module: nn.Module) -> dict[str, Any]:
    if type(module) is nn.Identity:
        return {"kind": _IDENTITY}
    if isinstance(module, AttendedCalls):
        layers = [describe_layer(layer) for layer in module.layers]
        calls = [call.described() for call in module.calls]
        return {"kind": type(module).__name__, "layers": layers, "calls": calls}
    return describe_layer(module)
