"""The tensors of a network: collected for a file, each once, and put back; weights of other programs."""

import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from convattn.convert.saved_layers import KINDS, describe_layer, rebuild_layer
from convattn.convert.surgery import full_name, graft, is_own_hook, names_by_module
from convattn.errors import CheckpointError, UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.wording import ITSELF, some


def file_tensors(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors to write, and for each name left out the name of the tensor that it is tied to.

    Raises UnsupportedModelError unless every entry of the state dict is a dense tensor with values.
    """
    first: dict[tuple[Any, ...], str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in network.state_dict().items():
        _require_plain(name, tensor)
        place = (
            tensor.device,
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.dtype,
        )
        key = (*place, tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            tied[name] = first[key]
            continue
        first[key] = name
        tensors[name] = tensor
    return tensors, tied


def describe_tensors(network: nn.Module) -> dict[str, Any]:
    """Describes what a file of tensors does not hold, as JSON types.

    "frozen" lists the parameters without gradients, "strides" the strides that differ from those of a new tensor, and
    "buffers" the dtypes of floating-point buffers that are not in the state dict.
    """
    state = network.state_dict()
    floating = {
        name: x.dtype
        for name, x in network.named_buffers()
        if name not in state and x.is_floating_point()
    }
    return {
        "frozen": [
            name for name, parameter in network.named_parameters() if not parameter.requires_grad
        ],
        "strides": {
            name: strides
            for name, tensor in state.items()
            if (strides := _strides(tensor)) is not None
        },
        "buffers": {name: str(dtype).removeprefix("torch.") for name, dtype in floating.items()},
    }


def load_tensors(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    described: Mapping[str, Any],
) -> None:
    """Gives a network the tensors of a file in place of its own; `described` is what `describe_tensors` returned.

    `tied` names, for each tensor left out, the one that it is tied to. Other names or shapes raise CheckpointError.
    """
    strides, frozen = described["strides"], described["frozen"]
    if frozen is None:
        frozen = [
            name for name, parameter in network.named_parameters() if not parameter.requires_grad
        ]
    laid_out = {name: _laid_out(tensor, strides.get(name)) for name, tensor in tensors.items()}
    for name, kept in tied.items():
        if kept not in laid_out:
            raise CheckpointError(f"{name} is tied to {kept}, which is not there")
    state = network.state_dict()
    require_same(state, {**laid_out, **{name: laid_out[kept] for name, kept in tied.items()}})
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    learning = {
        name: nn.Parameter(t, requires_grad=False)
        for name, t in laid_out.items()
        if name in parameters
    }
    found = {**laid_out, **learning}
    network.load_state_dict(
        {**found, **{name: found[kept] for name, kept in tied.items()}}, assign=True
    )
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, dtype in described["buffers"].items():
        holder, _, key = name.rpartition(".")
        owner = network.get_submodule(holder)
        owner._buffers[key] = owner.get_buffer(key).to(getattr(torch, dtype))


def require_same(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError, naming the tensors, if names or shapes differ from the network's."""
    missing, unexpected = (
        [n for n in expected if n not in found],
        [n for n in found if n not in expected],
    )
    shapes = [
        f"{name} {tuple(found[name].shape)} for {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    parts = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    messages = [f"{len(names)} {word}: {some(names)}" for word, names in parts.items() if names]
    if messages:
        raise CheckpointError("; ".join(messages))


def _require_plain(name: str, tensor: object) -> None:
    """Refuses what a file of tensors cannot hold."""
    if not isinstance(tensor, Tensor):
        raise UnsupportedModelError(f"its {name} is a {type(tensor).__name__} and no tensor")
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        raise UnsupportedModelError(f"its {name} is lazy and not initialised")
    if tensor.is_meta:
        raise UnsupportedModelError(f"its {name} is on the meta device and has no values")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedModelError(f"its {name} is sparse or quantised")


def _strides(tensor: Tensor) -> list[int] | None:
    """Returns the strides of a tensor; None if they are those of a new tensor, or leave gaps."""
    strides = tensor.stride()
    usual = torch.empty(tensor.shape, device="meta").stride()
    return (
        None
        if strides == usual or _reach(tensor.shape, strides) != tensor.numel()
        else list(strides)
    )


def _laid_out(tensor: Tensor, strides: list[int] | None) -> Tensor:
    """Copies a tensor to given strides, on which the last bits of a product depend."""
    if strides is None:
        return tensor
    if (
        len(strides) != tensor.ndim
        or min(strides) < 0
        or _reach(tensor.shape, strides) != tensor.numel()
    ):
        raise CheckpointError(
            f"a tensor of shape {tuple(tensor.shape)} cannot have the strides {strides}"
        )
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the length of the memory that a tensor spans, counted in numbers."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def load_weights(network: nn.Module, file: str | os.PathLike[str]) -> None:
    """Gives a network the weights in a file: a state dict in safetensors, or as `torch.save` writes it.

    In a pickled file it may also be under "state_dict"; it is read by torch's reader of weights alone, which runs no
    code of the file. Raises CheckpointError if the file cannot be read, or has other names, shapes or kinds of number.
    """
    path, own = Path(file), network.state_dict()
    found = _read_state_dict(path)
    try:
        require_same(own, found)
        wrong = [
            name
            for name, x in own.items()
            if x.is_floating_point() and not found[name].is_floating_point()
        ]
        if wrong:  # torch would take quantised weights as they are, without their scale
            raise CheckpointError(
                f"{some(wrong)} must hold floating-point numbers, not {found[wrong[0]].dtype}"
            )
    except CheckpointError as error:
        raise CheckpointError(
            f"the weights in {path} do not fit {type(network).__name__}: {error}{_prefix_hint(network, found)}"
        ) from None
    network.load_state_dict(found)


def _prefix_hint(network: nn.Module, found: Mapping[str, Tensor]) -> str:
    """Suggests a prefix to remove, if all names have one, as a wrapper adds it, and fit without it."""
    first = {name.partition(".")[0] for name in found}
    after = {name.partition(".")[2] for name in found}
    if len(first) != 1 or not after & network.state_dict().keys():
        return ""
    return f"; all names in the file begin with '{first.pop()}.': remove this prefix"


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own words advise to run what the file holds
        reason = "UnpicklingError: it is no file of torch.save, or holds more than tensors, which is not loaded"
        raise CheckpointError(f"cannot read weights from {path}: {reason}") from None
    except Exception as error:  # noqa: BLE001 - the reader of a damaged file may raise any error
        reason = str(error).partition("\n")[0] or "it may be empty or cut short"
        raise CheckpointError(
            f"cannot read weights from {path}: {type(error).__name__}: {reason}"
        ) from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(
        isinstance(tensor, Tensor) for tensor in found.values()
    ):
        raise CheckpointError(f"cannot read weights from {path}: it holds no state dict")
    unnamed = next((name for name in found if not isinstance(name, str)), None)
    if unnamed is not None:
        raise CheckpointError(
            f"cannot read weights from {path}: tensors must have names, but one has {unnamed!r}"
        )
    return dict(found)


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
    if isinstance(
        module, RelativeAttention
    ):  # the user's network has none: only hooks that make weights stop it
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
                raise CheckpointError(
                    f"{type(network).__name__} has no module {name!r} to be replaced"
                )
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
        if name not in old and (
            other is None or not torch.equal(buffer.cpu(), other.to(buffer.dtype))
        ):
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

    kept = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in _NO_FUNCTION
    }
    return {key: repr(value) for key, value in kept.items() if is_plain(value)}


def _differing_places(
    name: str, module: nn.Module | None, other: nn.Module | None
) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """Walks through two networks, down to where their modules differ in class or description."""
    if module is None:
        if other is not None:
            raise UnsupportedModelError(
                f"{name} is missing, where a new network has a {type(other).__name__}"
            )
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
    return (
        full_name(kind)
        if other is not None and type(other).__name__ == kind.__name__
        else kind.__name__
    )


def _has_description(module: nn.Module) -> bool:
    return type(module) in (*KINDS.values(), nn.Identity)


def _describe(module: nn.Module) -> dict[str, Any]:
    return {"kind": _IDENTITY} if type(module) is nn.Identity else describe_layer(module)
