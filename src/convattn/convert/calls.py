"""Convolutions that a module calls as functions: seen while a network runs, and computed by layers in their place.

Whatever a module computes around such a call, it computes still: pads, scaled weights, norms, activations. The call
itself goes to a layer, which takes the image alone. Nothing is read from the module's code, so branches on sizes do no
harm; a call that comes in another order than when the network was converted is an error.
"""

import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature, unwrap
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from convattn.convert.network_runs import Arguments, run_copy, watched_modules
from convattn.convert.taps import (
    CONVOLUTIONS,
    SUPPORTED_CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    AnyConvolution,
    TransposedConvolution,
    geometry_of,
    maps_of,
)
from convattn.errors import ArgumentError, ConversionError
from convattn.layers import RelativeAttention
from convattn.layers.relative import ConvolutionLike, lay_out_as, leaf_node
from convattn.random_numbers import SEED
from convattn.structure import computed_weights, full_name

_FUNCTIONS: dict[Callable[..., Tensor], type[AnyConvolution]] = {
    functional.conv1d: nn.Conv1d,
    functional.conv2d: nn.Conv2d,
    functional.conv3d: nn.Conv3d,
    functional.conv_transpose1d: nn.ConvTranspose1d,
    functional.conv_transpose2d: nn.ConvTranspose2d,
    functional.conv_transpose3d: nn.ConvTranspose3d,
}
"""Functions that are convolutions, with the module that computes the same."""

_OPTIONS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_TRANSPOSED_OPTIONS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
"""Further arguments of these functions in their order, with their defaults."""

_OPERATIONS = re.compile(r"(\w*_)?conv(olution|_transpose|_tbc|[123]d|_depthwise)")
"""Names of all operations that are convolutions."""


@dataclass(frozen=True)
class Call:
    """A call of a convolution as a function, without its image, weight and bias."""

    module: type[AnyConvolution]  # Class of torch that computes the same
    shape: tuple[int, ...]  # Of the weight
    options: dict[str, Any]  # Stride, padding, dilation and groups, and how a transposed one ends
    # Parameter or buffer of the module that is the weight; None if it is computed
    weight: str | None = None
    bias: str | None = None  # The same of the bias

    def fits(self, other: "Call") -> bool:
        """Tells whether another call is of the same convolution; a transposed one may end otherwise."""
        ours = {**self.options, "output_padding": None}
        theirs = {**other.options, "output_padding": None}
        return (self.module, self.shape, ours) == (other.module, other.shape, theirs)

    def is_computed_by(self, layer: Any) -> bool:
        """Tells whether a layer is the convolution of this call, with any numbers."""
        if type(layer) is not self.module or tuple(layer.weight.shape) != self.shape:
            return False
        ours = geometry_of(self.module, {**self.options, "kernel_size": self.shape[2:]})
        theirs = geometry_of(self.module, vars(layer))
        return (ours, self.options["groups"]) == (theirs, layer.groups)


def _read(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None = None
) -> tuple[Call, Tensor, Tensor, Tensor | None]:
    """Reads a call; returns it with its image, weight and bias."""
    kind = _FUNCTIONS[func]
    transposed = kind in TRANSPOSED_CONVOLUTIONS.values()
    defaults = _TRANSPOSED_OPTIONS if transposed else _OPTIONS
    names = ("input", "weight", "bias", *defaults)
    given = {"bias": None, **defaults, **dict(zip(names, args, strict=False)), **kwargs}
    image, weight, bias = given["input"], given["weight"], given["bias"]
    axes = SUPPORTED_CONVOLUTIONS[kind]
    options = {}
    for name in defaults:
        value = given[name]
        if name != "groups" and not isinstance(value, str):
            several = tuple(value) if isinstance(value, Sequence) else (value,)
            value = several * (axes // len(several))
        options[name] = value
    own = {} if module is None else {**module._parameters, **module._buffers}
    places = {id(parameter): name for name, parameter in own.items()}
    call = Call(
        module=kind,
        shape=tuple(weight.shape),
        options=options,
        weight=places.get(id(weight)),
        bias=places.get(id(bias)),
    )
    return call, image, weight, bias


_OF_WRAPPER = ("module", "layers", "calls", "training")
"""Attributes of `AttendedCalls` that are not the module's."""


class _AsModule:
    """A method whose signature is that of the module's own, which exports name inputs by."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None or torch.compiler.is_compiling():
            return self.method.__get__(owner, kind)
        bound: Any = partial(self.method, owner)
        bound.__signature__ = signature(owner.module.forward)
        return bound


@final
class AttendedCalls(nn.Module):
    """Runs a module whose convolutions, called as functions, are computed by layers.

    Attributes that it does not have itself are those of the module, also where they are set or deleted.

    Attributes:
        module: The module.
        layers: What computes its calls, in their order: attention, or the convolutions that came back of it.
        calls: The calls.
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[nn.Module], calls: Sequence[Call]
    ) -> None:
        """Takes a module, and a layer for each of its calls."""
        super().__init__()
        self.module = module
        self.layers = nn.ModuleList(layers)
        self.calls = tuple(calls)
        self.training = module.training
        _tie(self)
        # loaded with assign=True, what was one parameter would be two
        self.register_load_state_dict_post_hook(_tie)
        self.register_state_dict_post_hook(_hold_once)

    @_AsModule
    def forward(self, *positional: Any, **named: Any) -> Any:  # type: ignore[override]
        """Runs the module.

        Args:
            *positional: Its arguments.
            **named: Its arguments by name.

        Returns:
            What the module returns.

        Raises:
            ArgumentError: The values of a layer are computed, as by pruning.
            ConversionError: It calls other convolutions than when it was converted.
        """
        if any(isinstance(value, fx.Proxy) for value in (*positional, *named.values())):
            return leaf_node(self, *positional, **named)
        for layer, call in zip(self.layers, self.calls, strict=True):
            if not isinstance(layer, RelativeAttention):
                continue
            if computed_weights(layer.values) or parametrize.is_parametrized(layer.values):
                raise ArgumentError(
                    f"the weight of this {self.extra_repr()} is its module's: prune or normalise `layer.module`, not"
                    " the `values` of layers inside"
                )
            if _shared_weight(self, call) is not layer.values.weight:
                _tie(self)  # since then the weight is computed, as by weight normalisation
        running = _ByLayers(self)
        once = nullcontext()
        if any(call.weight for call in self.calls) and parametrize.is_parametrized(self.module):
            once = parametrize.cached()  # so that a computed weight is one tensor
        with running, once:
            output = self.module(*positional, **named)
        if running.count != len(self.calls):
            raise ConversionError(
                f"{self.extra_repr()} calls {running.count} convolutions, but {len(self.calls)} were converted"
            )
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # what Python asks of an object, it asks of this one: another would be copied in its place
            if name == "module" or name.startswith("__"):
                raise
            return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._has(name) or isinstance(value, nn.Parameter):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if self._has(name):
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def _has(self, name: str) -> bool:
        """Tells whether an attribute is this object's own, and not one of the module's."""
        return name in _OF_WRAPPER or name in self.__dict__ or hasattr(type(self), name)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a buffer to the module, where what it computes looks for it."""
        self.module.register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: Any) -> None:  # noqa: ARG002 - as torch calls it
        """Raises ArgumentError: parameters are those of the module."""
        raise ArgumentError(
            f"AttendedCalls has no parameter {name!r}: write `layer.module`, whose parameters compute its weight, in"
            " place of the layer"
        )

    def extra_repr(self) -> str:
        """Returns the name of the module's class."""
        return full_name(type(self.module))

    def computed(self) -> dict[nn.Module, Call]:
        """Returns the layers whose weight is computed in each call, so that no convolution can hold it."""
        pairs = zip(self.layers, self.calls, strict=True)
        return {layer: call for layer, call in pairs if call.weight not in self.module._parameters}

    def without_layers(self) -> nn.Module | None:
        """Returns the module with the weights of convolutions that came back; None while there are other layers.

        Parameters that no layer uses any more do not learn.
        """
        came_back = []
        kernels = dict[str, Tensor]()
        for layer, call in zip(self.layers, self.calls, strict=True):
            is_same = call.is_computed_by(layer)
            came_back.append(is_same)
            if is_same and call.weight:
                kernel = layer.get_parameter("weight")
                if not torch.equal(kernels.setdefault(call.weight, kernel), kernel):
                    raise ConversionError(
                        f"{self.extra_repr()} calls several convolutions with its {call.weight!r}, and they came back"
                        " with different kernels: leave it out with `exclude`"
                    )
            for name, key in ((call.weight, "weight"), (call.bias, "bias")):
                own = self.module._parameters.get(name or "")
                if own is None or isinstance(layer, RelativeAttention):
                    continue
                if is_same:
                    layer.get_parameter(key).requires_grad_(own.requires_grad)
                    self.module._parameters[name or ""] = layer.get_parameter(key)
                else:
                    own.requires_grad_(False)
        return self.module if all(came_back) else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], *others: Any, **named: Any) -> None:
        prefix = others[0]
        inside = f"{prefix}module."
        keys = [key for key in state_dict if key.startswith(prefix)]
        own = {name for name, _ in (*self.named_parameters(), *self.named_buffers())}
        if own.isdisjoint(key.removeprefix(prefix) for key in keys):
            for key in keys:  # of the network before its conversion, in which layers hold nothing
                state_dict[inside + key.removeprefix(prefix)] = state_dict.pop(key)
        for key, other in _shared_names(self).items():
            if prefix + other in state_dict:
                state_dict[prefix + key] = state_dict[prefix + other]
        super()._load_from_state_dict(state_dict, *others, **named)


def _shared_names(wrapper: AttendedCalls) -> dict[str, str]:
    """Names the parameters of layers that are the module's, with their names there."""
    first: dict[nn.Parameter, str] = {}
    shared = {}
    for name, parameter in wrapper.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter, name)
        if other != name and name.startswith("layers."):
            shared[name] = other
    return shared


def _hold_once(wrapper: AttendedCalls, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    """Leaves out what layers share with the module: a program that goes through the entries would change it twice."""
    for name in _shared_names(wrapper):
        state_dict.pop(prefix + name, None)


def _tie(wrapper: AttendedCalls, _: Any = None) -> None:
    """Lets layers train the module's own parameters; what the module computes comes with each call."""
    for layer, call in zip(wrapper.layers, wrapper.calls, strict=True):
        if isinstance(layer, RelativeAttention):
            values: Any = layer.values
            values.kernel_size = call.shape[2:] if call.module in CONVOLUTIONS.values() else None
            values.weight = _shared_weight(wrapper, call)
            layer.bias = wrapper.module._parameters.get(call.bias or "")


def _shared_weight(wrapper: AttendedCalls, call: Call) -> Tensor | None:
    """Returns the module's own parameter that a layer trains in place of a call; None for one that it cannot hold."""
    if call.module not in CONVOLUTIONS.values():
        return None
    return wrapper.module._parameters.get(call.weight or "")


class Place(NamedTuple):
    """Where a layer stands in a network as it was before its conversion."""

    name: str  # Of the layer, or of the module that calls it
    call: int  # Which of the module's calls it is, from 1; 0 for a module


def original_place(network: nn.Module, name: str) -> Place:
    """Returns where a layer of this name stood before modules that call convolutions were wrapped."""
    module = network
    kept = []
    for part in name.split(".") if name else ():
        is_wrapped = isinstance(module, AttendedCalls)
        if is_wrapped and part == "layers":
            return Place(".".join(kept), 1 + int(name.rpartition(".")[2]))
        if not (is_wrapped and part == "module"):
            kept.append(part)
        module = getattr(module, part)
    return Place(".".join(kept), 0)


class _ByLayers(TorchFunctionMode):
    """Gives each convolution that a module calls to a layer."""

    def __init__(self, owner: AttendedCalls) -> None:
        super().__init__()
        self._owner = owner
        self._learns = torch.is_grad_enabled()
        parts = list(owner.module.modules())[1:]
        self._has_others = any(map(_may_convolve, parts))
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _FUNCTIONS:
            return func(*args, **kwargs)
        call, image, weight, bias = _read(func, args, kwargs)
        module = self._owner.module
        calls = self._owner.calls
        names = [one.weight for one in calls]
        own = {name for name in names if getattr(module, name or "", None) is weight}
        if all(names) and not own and self._has_others:
            return func(*args, **kwargs)  # of a module inside
        place = self.count
        self.count += 1
        fits = place < len(calls) and calls[place].fits(call)
        if not fits or (own and calls[place].weight not in {None, *own}):
            raise ConversionError(
                f"{self._owner.extra_repr()} calls another convolution than when it was converted: {call}"
            )
        layer: Any = self._owner.layers[place]
        if self._learns and _is_more_than_a_convolution(layer) and _in_checkpoint():
            raise ConversionError(
                f"{self._owner.extra_repr()} calls a convolution in a gradient checkpoint, which computes it again"
                " without its layers: put the checkpoint around the module"
            )
        y = _attend(layer, calls[place], image, weight, bias)
        held = calls[place].options.get("output_padding", ())
        wanted = call.options.get("output_padding", ())
        for axis, (most, end) in enumerate(zip(held, wanted, strict=True), -len(held)):
            if end < most:
                y = y.narrow(axis, 0, y.shape[axis] - most + end)
        return lay_out_as(image, y)


def _may_convolve(module: nn.Module) -> bool:
    """Tells whether a module may call a convolution, as none of torch's but its convolutions do."""
    is_torch = type(module).__module__.startswith("torch.nn.modules.")
    return not is_torch or isinstance(module, AnyConvolution)


def _is_more_than_a_convolution(layer: Any) -> bool:
    """Tells whether a layer is attention whose heads learn to move or to look at content."""
    if not isinstance(layer, RelativeAttention):
        return False
    return layer.encoding.fixed_displacements is None or layer.content is not None


def _in_checkpoint() -> bool:
    """Tells whether a gradient checkpoint lies between the wrapper that runs and this call."""
    if torch.compiler.is_compiling():
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _FORWARD:
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back
    return False


_FORWARD: Any = unwrap(vars(AttendedCalls)["forward"].method).__code__
_SWAP = threading.RLock()
"""Held while a layer has another's weight, which a second thread must not see."""


def _attend(
    layer: nn.Module, call: Call, image: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Runs a layer in place of a call, on the weight and the bias of the call."""
    given = {"weight": weight, "bias": bias}
    if isinstance(layer, RelativeAttention):
        if layer.values.kernel_size is None:
            weight = maps_of(weight, call.module, call.options["groups"], call.options["stride"])
        given = {"values.weight": weight, "bias": bias}
    elif not call.is_computed_by(layer):
        given = {}
    with nullcontext() if torch.compiler.is_compiling() else _SWAP:
        held = dict(layer.named_parameters())
        changed = {name: tensor for name, tensor in given.items() if held.get(name) is not tensor}
        if changed:
            return functional_call(layer, changed, (image,))
    return layer(image)


# --- Seen while a network runs ----------------------------------------------------------------------------------------


@dataclass
class SeenCall:
    """A call, with what it was called with."""

    call: Call
    weight: Tensor
    bias: Tensor | None

    def is_like(self, other: "SeenCall") -> bool:
        """Tells whether another call, of a copy of the module, is of the same convolution with the same numbers."""
        pairs = [
            (self.call.weight, self.weight, other.weight),
            (self.call.bias, self.bias, other.bias),
        ]
        for place, one, two in pairs:
            is_own = place is not None and isinstance(one, nn.Parameter)
            if one is not two and not is_own and not torch.equal(one, two):
                return False
        return self.call.fits(other.call)


class Recorder(TorchFunctionMode):
    """Notes the convolutions that modules call as functions, in each of their runs.

    Attributes:
        runs: The calls of each run of each module, by the module's first name.
        sized: Transposed convolutions that were told an `output_size`.
        reached: The modules that run on the image as it is.
        other_convolutions: An operation that is a convolution, but none of torch's functions, by the module's name.
    """

    def __init__(self) -> None:
        """Has seen nothing yet."""
        super().__init__()
        self.runs: dict[str, list[list[SeenCall]]] = {}
        self.sized: set[str] = set()
        self.reached: set[str] = set()
        self.other_convolutions: dict[str, str] = {}
        self._stack: list[tuple[str, nn.Module]] = []  # what runs, the innermost last

    def watch(self, network: nn.Module) -> nn.Module:
        """Sets hooks in a network, and returns it."""
        for name, module in watched_modules(network):
            begin = partial(self._begin, name)
            module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._end, always_call=True)
        return network

    def _begin(self, name: str, module: nn.Module, positional: Any, named: Any) -> None:
        self._stack.append((name, module))
        self.runs.setdefault(name, []).append([])
        is_sized = len(positional) > 1 or named.get("output_size")
        kind = parametrize.type_before_parametrizations(module)
        if is_sized and issubclass(kind, TransposedConvolution):
            self.sized.add(name)

    def _end(self, module: nn.Module, *_: Any) -> None:
        if self._stack and self._stack[-1][1] is module:
            self._stack.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, module = self._stack[-1] if self._stack else ("", None)
        if module is not None and not isinstance(module, ConvolutionLike):
            operation = getattr(func, "__name__", "")
            if func in _FUNCTIONS:
                call, _, weight, bias = _read(func, args, kwargs or {}, module)
                self.runs[name][-1].append(SeenCall(call, weight, bias))
            elif _OPERATIONS.match(operation):
                self.other_convolutions.setdefault(name, operation)
        return func(*args, **(kwargs or {}))


def record_calls(model: nn.Module, arguments: Arguments) -> Recorder:
    """Runs copies of a network in evaluation mode on an image, and on two with other numbers; notes their calls."""
    recorder = Recorder()
    other = arguments.batches(2)[0].changed(_by_a_tenth)
    for images in (arguments.batches(1)[0], other):
        run_copy(model, [images._replace(mode=recorder)], recorder.watch)
        recorder.reached = recorder.reached or set(recorder.runs)
    return recorder


def _by_a_tenth(x: Tensor) -> Tensor:
    """Changes each number by up to a tenth, at random."""
    generator = torch.Generator().manual_seed(SEED)
    return x * (1 + torch.rand(x.shape, generator=generator, device="cpu").to(x) / 10)
