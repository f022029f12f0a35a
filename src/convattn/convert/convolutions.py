"""The convolutions of a network: found, and read as plain ones, or refused by name with the reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin

from convattn.convert.calls import AttendedCalls, Call, Recorder, SeenCall, record_calls
from convattn.convert.certificate import LeftAlone
from convattn.convert.network_runs import Arguments
from convattn.convert.surgery import Patterns, graft, matches, names_by_module, patterns
from convattn.convert.taps import (
    ATTENDS_ALREADY,
    OPTIONS,
    SUPPORTED_CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    AnyConvolution,
    convolution,
    put_tensors,
    why_no_values,
    why_unsupported,
)
from convattn.errors import ConversionError, UnsupportedModelError
from convattn.layers import RelativeAttention
from convattn.layers.relative import ConvolutionLike
from convattn.structure import full_name, is_own_hook, replaced_methods
from convattn.wording import counted

_REFUSED: dict[str, str] = {
    "convattn.layers.normalised_conv.NormalisedConv": ATTENDS_ALREADY,
    "torch.nn.parallel.data_parallel.DataParallel": "it runs on several devices; convert its `module`",
    "torch.nn.parallel.distributed.DistributedDataParallel": "it trains on several devices; convert its `module`",
    "torchvision.ops.deform_conv.DeformConv2d": "its taps move with the input",
}
"""Modules that cannot be converted or copied, by full name, with the reason."""

_HARMLESS = frozenset(
    [
        "__init__",
        "__module__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__repr__",
        "__static_attributes__",
        "__firstlineno__",
        "__annotate_func__",
        "__annotations_cache__",
        "__constants__",
        "reset_parameters",
        "extra_repr",
    ]
)
"""What a subclass may define without computing something else."""


@dataclass(frozen=True)
class NetworkConvolution:
    """A convolution of a network, and the plain one that computes the same."""

    names: tuple[str, ...]  # Names of the module in the network, the first one first
    conv: Any  # A convolution of torch; it may share memory with the module
    notes: tuple[str, ...] = ()  # What changes by the conversion
    call: Call | None = None  # The call, if the module calls it as a function
    number: int = 0  # Which of the module's calls it is, from 1; 0: the module
    is_reached: bool = False  # Whether the module runs on the first image

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]

    @property
    def layer(self) -> str:
        """The name of the layer that takes its place in the converted network."""
        if self.call is None:
            return self.name
        return f"{self.name}.layers.{self.number - 1}".removeprefix(".")


def place_layers(
    network: nn.Module, layers: Sequence[tuple[NetworkConvolution, nn.Module]]
) -> nn.Module:
    """Puts layers in the places of convolutions, of which modules that call them are wrapped; returns the network."""
    replaced: dict[nn.Module, nn.Module] = {}
    calling: dict[nn.Module, list[tuple[nn.Module, Call]]] = {}
    for one, layer in layers:
        module = network.get_submodule(one.name)
        if one.call is None:
            replaced[module] = layer
        else:
            calling.setdefault(module, []).append((layer, one.call))
    for module, pairs in calling.items():
        replaced[module] = AttendedCalls(module, *zip(*pairs, strict=True))
    return graft(network, replaced)


def find_convolutions(
    model: nn.Module, include: Patterns, exclude: Patterns, arguments: Arguments
) -> tuple[list[NetworkConvolution], list[LeftAlone]]:
    """Returns the convolutions of a network to convert, and those to leave alone.

    A module of torch, or of a subclass that computes the same, is read as it is. The network runs, to find what other
    modules call. Modules that cannot be converted raise one UnsupportedModelError that names them all; where nothing
    is left to convert, ConversionError says why.
    """
    every = names_by_module(model)
    attended = {module.module for module in every if isinstance(module, AttendedCalls)}
    candidates = {module: names for module, names in every.items() if module not in attended}
    refusals = {}
    scripted: tuple[str, ...] = ()
    for module, names in candidates.items():
        reason = why_refused(module)
        if reason is not None and not names[0].startswith(scripted):
            refusals[module] = reason
        if isinstance(module, torch.jit.ScriptModule):
            scripted += (f"{names[0]}.",)
    refused_names = {module: every[module] for module in refusals}
    selected, _ = select_modules(refused_names, None, include, exclude)
    recorder = Recorder() if selected else record_calls(model, arguments)
    named = {}
    for module, names in candidates.items():
        calls = any(recorder.runs.get(names[0], []))
        if calls or isinstance(module, _ConvNd) or module in refusals:
            named[module] = names
    selected, left = select_modules(named, "convolutions", include, exclude)
    convolutions: list[NetworkConvolution] = []
    refused = []
    for module in selected:
        name = every[module][0]
        try:
            if module in refusals:
                raise UnsupportedModelError(refusals[module])
            convolutions += _read(module, every, recorder)
        except UnsupportedModelError as error:
            ran = name in recorder.runs
            is_refused = module in refusals or (isinstance(module, _ConvNd) and ran)
            found = refused if is_refused else left
            found.append(LeftAlone(name, type(module).__name__, str(error)))
    if refused:
        lines = [f"\n  {line}" for line in LeftAlone.in_words(refused)]
        raise UnsupportedModelError(
            f"cannot convert {counted(len(refused), 'module')} of {type(model).__name__}; leave them out with"
            f" `exclude`, or replace them:{''.join(lines)}"
        )
    left += _other_operations(model, recorder, left)
    if not convolutions:
        none = f"there is no convolution to convert in {type(model).__name__}"
        raise ConversionError(f"{none}: {_why_none(model, left)}")
    return convolutions, left


def _other_operations(
    model: nn.Module, recorder: Recorder, left: Sequence[LeftAlone]
) -> list[LeftAlone]:
    """Returns the modules that call operations which are convolutions, but none of torch's functions."""
    outside = tuple(f"{item.name}." for item in left)
    others = []
    for name, operation in recorder.other_convolutions.items():
        if not f"{name}.".startswith(outside):
            kind = type(model.get_submodule(name)).__name__
            reason = f"it calls {operation} as a function, which is not converted"
            others.append(LeftAlone(name, kind, reason))
    return others


def select_modules(
    named: Mapping[Any, list[str]], kind: str | None, include: Patterns, exclude: Patterns
) -> tuple[list[Any], list[LeftAlone]]:
    """Splits modules by the patterns for their names into those to convert and those to leave alone.

    A pattern must match one of them, which messages call `kind`; where that is None, it need not.
    """
    every = [] if kind is None else list(chain(*named.values()))
    included = patterns("include", include, every, kind)
    excluded = patterns("exclude", exclude, every, kind)
    selected = []
    left = []
    for module, names in named.items():
        left_out_by = None
        if excluded is not None and matches(names, excluded):
            left_out_by = "exclude"
        elif included is not None and not matches(names, included):
            left_out_by = "include"
        if left_out_by is None:
            selected.append(module)
        else:
            left.append(LeftAlone(names[0], type(module).__name__, f"left out by {left_out_by}"))
    return selected, left


def _why_none(model: nn.Module, left: Sequence[LeftAlone]) -> str:
    """Returns why a network has no convolution to convert."""
    if left:
        return "; ".join(LeftAlone.in_words(left))
    attention = sum(isinstance(module, RelativeAttention) for module in model.modules())
    if attention:
        are = "is" if attention == 1 else "are"
        return f"{counted(attention, 'layer')} {are} attention already; `network_to_conv` (`--to conv`) converts back"
    return "none of its modules is one, or calls one on these images"


def why_refused(module: nn.Module) -> str | None:
    """Returns why a module cannot be converted, if its class alone shows it."""
    name = full_name(type(module))
    reason = _REFUSED.get(name)
    if isinstance(module, torch.jit.ScriptModule):
        reason = "it is compiled by TorchScript; convert the network that it was made from"
    elif name.startswith("torch._dynamo."):
        reason = "it is compiled; convert the network that it was made from, and compile the result"
    elif name.startswith("torch.distributed."):
        reason = "it is sharded; convert the network first, and shard the result"
    elif name.startswith("torch.ao.nn.") and "Conv" in type(module).__name__:
        reason = "it is quantised; convert the network before quantising"
    elif isinstance(module, LazyModuleMixin):
        reason = "it is lazy and not initialised; run the network once first"
    for key, tensor in {**module._parameters, **module._buffers}.items():
        if reason is None and tensor is not None:
            reason = why_no_values(key, tensor)
    return reason


def _read(
    module: nn.Module, every: Mapping[nn.Module, list[str]], recorder: Recorder
) -> list[NetworkConvolution]:
    """Reads a module as plain convolutions; if it may compute something else, UnsupportedModelError says why.

    `every` holds the names of all modules of the network.
    """
    names = every[module]
    plain = None
    if isinstance(module, _ConvNd) and names[0] not in recorder.sized:
        plain = _read_plain(module, names)
    if plain is not None:
        convolutions = [plain]
    else:
        reason = _why_not_found(module, every, recorder.runs)
        if reason is not None:
            raise UnsupportedModelError(reason)
        convolutions = _read_calls(module, names, recorder.runs[names[0]][0])
    for one in convolutions:
        one.conv.train(module.training)
        reason = why_unsupported(one.conv)
        if reason is not None:
            raise UnsupportedModelError(reason)
    hooks = _hook_notes(module, is_kept=plain is None)
    is_reached = names[0] in recorder.reached
    return [replace(one, notes=(*one.notes, *hooks), is_reached=is_reached) for one in convolutions]


def _why_not_found(
    module: nn.Module,
    every: Mapping[nn.Module, list[str]],
    runs: Mapping[str, Sequence[Sequence[SeenCall]]],
) -> str | None:
    """Returns why the convolutions that a module calls cannot be given to layers; None if they can.

    `runs` are those on an image, and again on two with other numbers.
    """
    own_runs = runs.get(every[module][0], [])
    if not any(own_runs):
        return "the images reach no convolution in it"
    first, *others = own_runs
    for run in others:
        if len(run) != len(first) or not all(map(SeenCall.is_like, run, first)):
            return "the convolutions that it calls depend on the input"
    own = {module._parameters.get(seen.call.weight or "") for seen in first}
    computed = not all(seen.call.weight for seen in first)
    why = "it calls a convolution with a computed weight, and holds others"
    if not computed:
        why = "it calls a convolution with a weight that a module inside uses, too"
    for part in list(module.modules())[1:]:
        part_name = every[part][0]
        convolves = isinstance(part, AnyConvolution | ConvolutionLike) or any(
            runs.get(part_name, [])
        )
        shares = part_name in runs and not own.isdisjoint(part.parameters())
        if convolves and (computed or shares):
            return f"{why}; move the call into a module of its own"
    return None


def _read_calls(
    module: nn.Module, names: Sequence[str], run: Sequence[SeenCall]
) -> list[NetworkConvolution]:
    """Reads the convolutions that a module calls as functions in a run."""
    convolutions = []
    for number, seen in enumerate(run, start=1):
        call = _ending_anywhere(seen.call)
        weight = getattr(module, call.weight) if call.weight else seen.weight
        bias = getattr(module, call.bias) if call.bias else seen.bias
        _require_plain(weight=weight)
        conv = convolution(call.module, weight, bias, **call.options)
        notes = ()
        if call.weight is None:
            conv.weight.requires_grad_(any(part.requires_grad for part in module.parameters()))
            notes = ("its weight is computed in each call, as before",)
        convolutions.append(NetworkConvolution(tuple(names), conv, notes, call, number))
    return convolutions


def _ending_anywhere(call: Call) -> Call:
    """Returns a transposed call with the longest end, of which shorter ones are a part; another call as it is."""
    if "output_padding" not in call.options:
        return call
    along = zip(call.options["stride"], call.options["dilation"], strict=True)
    longest = tuple(max(pair) - 1 for pair in along)
    return replace(call, options={**call.options, "output_padding": longest})


def _hook_notes(module: nn.Module, *, is_kept: bool) -> list[str]:
    """Says what happens to a module's hooks; all stay on a module that is itself kept."""
    hooks = module._forward_hooks | module._forward_pre_hooks
    hooks |= module._backward_hooks | module._backward_pre_hooks
    notes = []
    if not all(map(is_own_hook, hooks.values())):
        notes.append("its hooks were kept and are called with the attention layer")
    if not is_kept and any(hooks for name, hooks in vars(module).items() if "state_dict" in name):
        notes.append("its hooks on loading and saving were not kept")
    return notes


def _read_plain(module: nn.Module, names: Sequence[str]) -> NetworkConvolution | None:
    """Reads a convolution of torch; None if it may compute something else, or if its weight is computed."""
    kind = type(module)
    base: Any = next(known for known in SUPPORTED_CONVOLUTIONS if issubclass(kind, known))
    used = {*dir(base(1, 1, 1, device="meta")), "__getattribute__"}
    for part in kind.__mro__:
        if part not in base.__mro__ and used & vars(part).keys() - _HARMLESS:
            return None
    others = {*module._buffers, *module._modules}
    if set(module._parameters) != {"weight", "bias"} or others or replaced_methods(module):
        return None
    options = {name: getattr(module, name) for name in (*OPTIONS, "padding_mode")}
    if not options["in_channels"] or not options["out_channels"]:
        raise UnsupportedModelError("it has no channels")
    if base in TRANSPOSED_CONVOLUTIONS.values():
        options["output_padding"] = module.output_padding
    weight: Any = module.weight
    bias: Any = module.bias
    _require_plain(weight=weight, bias=bias)
    conv: Any = put_tensors(base(**options, bias=False, device="meta"), weight, bias)
    padded = "_reversed_padding_repeated_twice"  # which torch reads when the module is made
    if conv.padding_mode != "zeros" and getattr(conv, padded) != getattr(module, padded):
        return None
    return NetworkConvolution(names=tuple(names), conv=conv)


def _require_plain(**tensors: Tensor | None) -> None:
    """Raises UnsupportedModelError if a tensor is of a subclass of torch's, which may compute something else."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter) or type(tensor.data) is not Tensor:
            kind = full_name(type(tensor))
            raise UnsupportedModelError(f"its {name} is a {kind}, not a plain tensor")
