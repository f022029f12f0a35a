"""What a network is made of, in words: compared when it is saved and loaded, and hashed for certificates.

Tensors of the state dict have their own place: their values are not described here, only their names and shapes.
"""

import copy
import dataclasses
import dis
import functools
import hashlib
import inspect
import json
import types
from argparse import Namespace
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_FOREIGN = ("timm.", "torch.", "torchvision.", "transformers.")
LIBRARIES = ("convattn.", *_FOREIGN)
"""Packages whose classes gain and lose attributes with their versions, and keep their books in private ones."""

_NO_FUNCTION = (
    "default_cfg",
    "feature_info",
    "generation_config",
    "grad_checkpointing",
    "gradient_checkpointing",
    "name_or_path",
    "pretrained_cfg",
    "pretrained_model_args",
    "warnings_issued",
)
"""Attributes of these libraries that say where a network comes from or how it is trained, not what it computes."""

_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "_compiled_call_impl"})

_NAMESPACES = Namespace | types.SimpleNamespace
_PLAIN = bool | int | float | complex | str | bytes | range | torch.dtype | None

_FILLED = list | dict | set
"""Containers that a module may fill when it runs."""

HOOKS = "forward hook"
"""Key under which the hooks of a module are described."""


@dataclasses.dataclass(frozen=True)
class Structure:
    """The modules of a network in their order, and what each is made with besides the values of its state dict."""

    # By name: "class"; "attributes", which the constructor set; "contents" of lists, dicts and sets; "parts": names and
    # shapes of tensors, values of buffers that are not saved, methods that were replaced, and hooks
    modules: dict[str, dict[str, Any]]
    not_covered: tuple[str, ...]  # Attributes that hold objects of which only the class is known

    @classmethod
    def of(cls, network: nn.Module, dtypes: Mapping[str, str] | None = None) -> "Structure":
        """Describes a network; buffers that are named in `dtypes` count as if they were of that dtype."""
        words = _Words(network)
        modules = {}
        for name, module in network.named_modules(remove_duplicate=False):
            attributes = words.attributes(module)
            contents = {}
            for key in [key for key in attributes if isinstance(vars(module)[key], _FILLED)]:
                contents[key] = attributes.pop(key)
            modules[name] = {
                "class": full_name(parametrize.type_before_parametrizations(module)),
                "attributes": attributes,
                "contents": contents,
                "parts": words.parts(module, name, dtypes or {}),
            }
        return cls(modules, tuple(dict.fromkeys(words.not_covered)))


class _Words:
    """Describes the values of a network's attributes, and collects those that it cannot describe."""

    def __init__(self, network: nn.Module) -> None:
        self.inside = set(network.modules())
        self.not_covered: list[str] = []
        self.unknown: list[str] = []
        self.states: dict[type, set[str]] = {}

    def attributes(self, module: nn.Module) -> dict[str, str]:
        """Describes what a module was made with."""
        kind = type(module)
        if kind not in self.states:
            self.states[kind] = _assigned_by_forward(kind)
        passed_over = {*_OF_EVERY_MODULE, *_NO_FUNCTION}
        passed_over.update(replaced_methods(module), computed_weights(module))
        attributes = {}
        for key, value in vars(module).items():
            is_private = key.startswith("_")
            is_books = is_private and full_name(kind).startswith(LIBRARIES)
            if key in passed_over or is_books or isinstance(value, torch.device):
                continue
            if key in self.states[kind]:
                self.not_covered.append(f"{key}, which {full_name(kind)} assigns when it runs")
                continue
            self.unknown = []
            try:
                text = self.describe(value)
            except RecursionError:
                text = "a cycle"
                self.unknown.append(text)
            if not self.unknown:
                attributes[key] = text
                continue
            self.not_covered.append(f"{key}: the contents of {', '.join(self.unknown)}")
            if not is_private:
                attributes[key] = text
        return attributes

    def parts(self, module: nn.Module, place: str, dtypes: Mapping[str, str]) -> dict[str, str]:
        """Describes the tensors of a module, and what was put on it that changes what it computes."""
        parts = {}
        for key in replaced_methods(module):
            parts[key] = self.describe(vars(module)[key])
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if hooks:
            parts[HOOKS] = ", ".join(map(self.describe, hooks))
        for key, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is None:
                continue
            if key in self.states.get(type(module), ()):  # told with the attributes
                continue
            if key not in module._non_persistent_buffers_set:
                parts[key] = "a lazy tensor" if is_lazy(tensor) else _shape_in_words(tensor)
                continue
            name = f"{place}.{key}".removeprefix(".")
            parts[key] = _tensor_in_words(
                tensor.to(getattr(torch, dtypes[name])) if name in dtypes else tensor
            )
        return parts

    def describe(self, value: object) -> str:  # noqa: PLR0911 - one return for each kind of value
        """Describes a value: plain ones and tensors fully, functions and classes by name, other objects by class."""
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Enum):
            return f"{full_name(type(value))}.{value.name}"
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Tensor):
            return _tensor_in_words(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return _tensor_in_words(torch.as_tensor(value.copy()))
        if isinstance(value, list | tuple):
            return self.several(value)
        if isinstance(value, set | frozenset):
            return self.several(value, ordered=False)
        if isinstance(value, Mapping):
            return self.several(value.items(), ordered=False)
        if isinstance(value, functools.partial):
            return f"{self.describe(value.func)} with {self.several([*value.args, value.keywords])}"
        if isinstance(
            value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type
        ):
            if getattr(value, "__closure__", None):
                self.unknown.append(f"what {value.__qualname__} encloses")
            return f"{value.__module__}.{value.__qualname__}"
        return self.object(value)

    def several(self, values: Iterable[object], *, ordered: bool = True) -> str:
        """Describes several values; a list and a tuple of the same values are the same."""
        words = [self.describe(value) for value in values]
        if not ordered:
            words.sort()
        return f"({', '.join(words)})"

    def object(self, value: object) -> str:
        """Describes an object: a dataclass or a namespace by its fields, others by their class alone.

        The configuration of a library also says where a network comes from, and what counts of it is in the modules.
        """
        name = full_name(type(value))
        is_foreign = any(full_name(kind).startswith(_FOREIGN) for kind in type(value).mro())
        if isinstance(value, _NAMESPACES):
            return f"{name}{self.describe(vars(value))}"
        if dataclasses.is_dataclass(value) and not is_foreign:
            fields = [field.name for field in dataclasses.fields(value)]
            return f"{name}{self.several((field, getattr(value, field)) for field in fields)}"
        if isinstance(value, nn.Module) and value not in self.inside:
            return f"{name}{self.describe(value.state_dict())}"
        if not isinstance(value, nn.Module):
            self.unknown.append(f"a {name}")
        return f"a {name}"


def _assigned_by_forward(kind: type) -> set[str]:
    """Names the attributes that the forward of a class assigns, or methods that it calls: caches and counters."""
    names: set[str] = set()
    waiting, seen = ["forward"], set(vars(nn.Module))
    while waiting:
        name = waiting.pop()
        for owner in kind.__mro__:
            method = inspect.unwrap(vars(owner).get(name))  # type: ignore[arg-type]
            if owner is nn.Module or not hasattr(method, "__code__"):
                continue
            for step in dis.get_instructions(method):
                used = str(step.argval)
                if step.opname == "STORE_ATTR":
                    names.add(used)
                elif used not in seen and callable(getattr(kind, used, None)):
                    seen.add(used)
                    waiting.append(used)
    return names


def network_digest(network: nn.Module) -> str:
    """Returns the SHA-256 of what a network is made of, and of the values of its parameters and saved buffers.

    Hooks and contents of lists, dicts and sets do not count. Of tensors without plain values (sparse, quantised, on the
    meta device), names, dtypes and shapes count alone.
    """
    modules = Structure.of(network).modules
    for described in modules.values():
        described["parts"].pop(HOOKS, None)
        described.pop("contents")
    digest = hashlib.sha256(json.dumps(modules).encode())
    for place, module in network.named_modules(remove_duplicate=False):
        for key, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is None or key in module._non_persistent_buffers_set:
                continue
            name = f"{place}.{key}"
            if is_lazy(tensor):
                text = f"{name} {tensor.dtype} lazy"
            elif _has_no_plain_values(tensor):
                text = f"{name} {tensor.dtype} {tensor.shape}"
            else:
                text = _tensor_digest(name, tensor.detach().cpu().contiguous())
            digest.update(text.encode())
    return digest.hexdigest()


# --- Modules and tensors ----------------------------------------------------------------------------------------------


def full_name(kind: type) -> str:
    """Returns the name of a class with that of the file that defines it."""
    return f"{kind.__module__}.{kind.__qualname__}"


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype without torch's, for instance "float32"."""
    return str(dtype).removeprefix("torch.")


def dtypes_in_words(network: nn.Module) -> str:
    """Returns the dtypes of a network's parameters, for instance "float32"."""
    names = [dtype_name(parameter.dtype) for parameter in network.parameters()]
    return ", ".join(dict.fromkeys(names))


def find_empty(module: nn.Module) -> str | None:
    """Returns the name of a tensor of a module that is on the meta device, and so has no values; None if none is."""
    held = [*module.named_parameters(), *module.named_buffers()]
    return next((name for name, tensor in held if tensor.is_meta), None)


def replaced_methods(module: nn.Module) -> list[str]:
    """Names the methods that were replaced on a module, so that it may compute something else than its class."""
    names = []
    for name, value in vars(module).items():
        if callable(value) and callable(getattr(type(module), name, None)):
            names.append(name)
    return sorted(names)


def is_own_hook(hook: object) -> bool:
    """Tells whether a forward pre-hook is one by which torch computes a weight: normalisation or pruning."""
    return isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod)


def computed_weights(module: nn.Module) -> dict[str, object]:
    """Returns the hooks by which torch computes weights of a module, by the names of the weights."""
    hooks: Any = filter(is_own_hook, module._forward_pre_hooks.values())
    return {getattr(hook, "name", None) or hook._tensor_name: hook for hook in hooks}


def _tensor_digest(name: str, tensor: Tensor) -> str:
    """Returns the SHA-256 of the name, dtype, shape and bytes of a contiguous tensor on the CPU."""
    head = json.dumps([name, str(tensor.dtype), list(tensor.shape)])
    digest = hashlib.sha256(head.encode())
    values = tensor.reshape(-1).view(torch.uint8)
    digest.update(memoryview(values.numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def _tensor_in_words(tensor: Tensor) -> str:
    """Describes a tensor with its numbers: few of them as they are, more by a digest."""
    values = tensor.detach()
    text = f"{dtype_name(tensor.dtype)} {_shape_in_words(tensor)}"
    if _has_no_plain_values(values):
        return text
    values = values.cpu().contiguous()
    if 0 < values.numel() <= 4:
        return f"{text} {values.flatten().tolist()}"
    return f"{text} of digest {_tensor_digest('', values)[:16]}"


def _has_no_plain_values(tensor: Tensor) -> bool:
    """Returns whether the values of a tensor cannot be read: it is sparse, quantised or on the meta device."""
    return tensor.is_meta or tensor.is_quantized or tensor.layout is not torch.strided


def _shape_in_words(tensor: Tensor) -> str:
    """Describes the shape of a tensor."""
    return f"of shape {tuple(tensor.shape)}"


def copied_module(module: nn.Module) -> Any:
    """Copies a module, even if hooks left tensors in it that belong to an autograd graph, as those of pruning do."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)
