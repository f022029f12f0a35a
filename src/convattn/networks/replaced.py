"""Layers of a network: described for a file, put back, and all else held against a new network."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from convattn.convert.calls import AttendedCalls, original_place
from convattn.convert.surgery import graft, names_by_module
from convattn.errors import UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.networks.differences import differences
from convattn.networks.saved_layers import KINDS, describe_layer, rebuild_layer
from convattn.structure import HOOKS, Structure, computed_weights, is_own_hook
from convattn.wording import ITSELF


def describe_layers(network: nn.Module) -> list[dict[str, Any]]:
    """Describes every attention layer, plain convolution and identity of a network.

    Each entry holds what rebuilds the layer, and under "names" where it stands. A layer that would not come back as it
    is raises UnsupportedModelError.
    """
    layers: list[dict[str, Any]] = []
    inside: set[nn.Module] = set()
    for module, names in names_by_module(network).items():
        if module in inside or type(module) not in KINDS.values():
            continue
        if names != [""] and _computes_weights(module):
            continue
        if isinstance(module, AttendedCalls):
            inside.update([module.module, *module.layers.modules()])
        else:
            inside.update(module.modules())
        original = [original_place(network, name).name for name in names]
        described = {"names": original, **describe_layer(module)}
        _require_rebuilt(module, names[0], described)
        layers.append(described)
    return layers


def _require_rebuilt(layer: nn.Module, name: str, described: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError if a layer differs from the one that its description rebuilds.

    Hooks on the layer itself may come back, with the network that it is put into; those of a module stay inside.
    """
    place = layer.module if isinstance(layer, AttendedCalls) else layer
    rebuilt = _rebuild(json.loads(json.dumps(described)), place)
    for difference in differences(Structure.of(layer).modules, Structure.of(rebuilt).modules):
        is_put_back = name and layer is place
        if is_put_back and not difference.module and difference.key == HOOKS:
            continue
        at = f"{name}." if name else ""
        lines = _how_to_undo(layer, at)
        advice = f": first call {' and '.join(lines)}" if lines else ""
        raise UnsupportedModelError(
            f"{name or ITSELF} would not come back as it is, because {at}{difference}{advice}"
        )


def _how_to_undo(layer: nn.Module, prefix: str) -> list[str]:
    """Returns the lines that make the weights permanent which torch computes in the modules of a layer."""
    undo = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}
    lines = []
    for name, part in layer.named_modules():
        place = f"network.get_submodule({f'{prefix}{name}'.removesuffix('.')!r})"
        parametrized = getattr(part, "parametrizations", {})
        functions = dict.fromkeys(parametrized, "parametrize.remove_parametrizations")
        for key, hook in computed_weights(part).items():
            functions[key] = undo.get(type(hook).__name__, "prune.remove")
        for key, function in functions.items():
            lines.append(f'torch.nn.utils.{function}({place}, "{key}")')
    return lines


def _computes_weights(module: nn.Module) -> bool:
    """Tells whether hooks may compute the weights of a module, which is then left as the user's network has it."""
    if isinstance(module, RelativeAttention | AttendedCalls):
        return any(is_own_hook(hook) for hook in module._forward_pre_hooks.values())
    return bool(module._forward_hooks or module._forward_pre_hooks)


def are_network(layers: Sequence[Any]) -> bool:
    """Tells whether one of the described layers is the network itself, and holds no module of another class."""
    wholes = [layer for layer in layers if isinstance(layer, dict) and layer.get("names") == [""]]
    return any(layer.get("kind") != AttendedCalls.__name__ for layer in wholes)


def put_layers(network: nn.Module, layers: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Puts described layers in their places, on the meta device: their weights are yet to be loaded.

    The network is changed. Returns it, or the layer that replaces it as a whole. A layer is left out if the network
    lacks a place of it, which then differs from the saved one.
    """
    places = dict(network.named_modules(remove_duplicate=False))
    replacements = {}
    for described in layers:
        names = described["names"]
        if places.keys() >= set(names):
            layer = _rebuild(described, places[names[0]])
            replacements.update((places[name], layer) for name in names)
    return graft(network, replacements)


def _rebuild(described: Mapping[str, Any], place: nn.Module) -> nn.Module:
    """Builds a described layer on the meta device; `place` is the module that it takes the place of."""
    with torch.device("meta"):
        return rebuild_layer(described, place)
