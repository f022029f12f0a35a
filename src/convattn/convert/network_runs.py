"""Networks run on copies of themselves and of their arguments, and leave no trace."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from convattn.budget import LEAST_ROUNDINGS, rounded_differently
from convattn.encodings import Encoding
from convattn.errors import ArgumentError, UnsupportedModelError, must_be_a, must_fit, sorts
from convattn.functional.torch_modes import plain_float32, without_autocast
from convattn.layers import RelativeAttention
from convattn.layers.relative import ConvolutionLike
from convattn.random_numbers import SEED, SameDraws, draw_image, from_seed
from convattn.structure import copied_module
from convattn.wording import ITSELF, counted

Images = Tensor | list[Any] | tuple[Any, ...] | Mapping[str, Any]
"""What a network runs on: images, also as a list, or a tuple or mapping of its arguments."""

ROUNDINGS = LEAST_ROUNDINGS - 1
"""Runs on images with other last digits. They show rounding where two orders of summation agree by luck."""

_PLAIN = (bool, int, float, complex, str, bytes, type, torch.dtype, type(None))
"""Types of values that are compared as they print: nan is nan, and -0.0 is not 0.0."""

_NUMBERS = "floating-point numbers"
_NONE = repr(None)
"""What parts of an output are compared by, beside floating-point numbers that are compared by themselves."""


def copy_network(model: nn.Module) -> nn.Module:
    """Copies any network, even if hooks left tensors in it that belong to an autograd graph.

    The copy shares nothing with it. Raises UnsupportedModelError if copying fails, or loses attention, as it does where
    a class makes copies of itself with new convolutions.
    """
    try:
        copied = copied_module(model)
    except Exception as error:  # a foreign module may fail in any way
        raise UnsupportedModelError(f"cannot copy {type(model).__name__}: {error}") from error
    present = dict(copied.named_modules())
    for name, module in model.named_modules():
        if isinstance(module, ConvolutionLike) and type(present.get(name)) is not type(module):
            raise UnsupportedModelError(
                f"cannot copy {type(model).__name__}: its copies lose the attention at {name or ITSELF}"
            )
    return copied


# --- Arguments and outputs --------------------------------------------------------------------------------------------


def parts(value: Any, place: str = "", within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields each part of an output with its place, like "['boxes'][0].label".

    Parts are tensors, plain values, and what cannot be seen into. Sequences, mappings and objects of other classes are
    made of parts; `within` holds the ids of those around the value.
    """
    value = _as_tensors(value)
    if id(value) in within:
        yield place, "what holds it"
        return
    is_whole = isinstance(value, Tensor | type) or type(value) in _PLAIN
    held = None if is_whole else _held(value)
    if held is None:
        yield place, value
        held = _attributes(value) if isinstance(value, Tensor) else {}
    for step, item in held.items():
        yield from parts(item, place + step, (*within, id(value)))


def _as_tensors(value: Any) -> Any:
    """Returns arrays and lists of floating-point numbers as tensors, and nested tensors as lists."""
    if isinstance(value, np.ndarray | np.generic):
        is_number = value.dtype.kind in "biufc" and value.dtype.itemsize <= 16
        return torch.as_tensor(np.array(value)) if is_number else value.tolist()
    if isinstance(value, Tensor) and value.is_nested:
        return list(value.unbind())
    if isinstance(value, Tensor) and value.is_quantized:
        return value.dequantize()
    if isinstance(value, list | tuple) and _holds_floats(value):
        with suppress(ValueError):  # rows of several lengths
            return torch.tensor(value, dtype=torch.float64)
    return value


def _holds_floats(value: Any) -> bool:
    """Tells whether a value is a finite floating-point number, or a list or tuple of such values alone."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (list, tuple) and bool(value) and all(map(_holds_floats, value))


def _held(value: Any) -> dict[str, Any] | None:
    """Returns what an object is made of, by the step to it, like "[0]"; None if it cannot be seen into."""
    held = dict[str, Any]()
    if isinstance(value, Mapping):
        for number, (key, item) in enumerate(value.items()):
            if type(key) in _PLAIN:
                held[f"[{key!r}]"] = item
            else:
                held[f"[{number}]"] = (key, item)
    elif isinstance(value, list | tuple):
        held |= {f"[{number}]": item for number, item in enumerate(value)}
        fields = getattr(value, "_fields", None)
        if fields is not None:
            held[" fields"] = fields
    elif isinstance(value, set | frozenset):
        is_plain = all(type(item) in _PLAIN for item in value)
        return {" in order": sorted(map(repr, value))} if is_plain else None
    else:
        return _pickled(value)
    if not held:
        held[""] = "an empty mapping" if isinstance(value, Mapping) else "an empty sequence"
    if isinstance(value, dict | list | tuple):
        known = {id(item) for item in held.values()}  # of which some classes make attributes
        for step, item in _attributes(value).items():
            if id(item) not in known:
                held[step] = item
    return held


def _attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object, also those in slots."""
    state: Any = object.__getstate__(value)
    tables = state if isinstance(state, tuple) else (state,)
    held = {}
    for table in tables:
        held |= {f".{name}": item for name, item in (table or {}).items()}
    return held


def _pickled(value: Any) -> dict[str, Any] | None:
    """Returns the class and the attributes of an object, and what it is pickled as; None if it hides something."""
    if isinstance(value, nn.Module):
        return None
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - an object may refuse in any way
        return None
    if not isinstance(reduced, tuple):
        return None
    attributes = _attributes(value)
    _, arguments, state, items, pairs, *_ = (*reduced, None, None, None)
    return {
        " class": type(value),
        " arguments": arguments,
        " state": None if attributes else state,
        " items": list(items or ()),
        " pairs": list(pairs or ()),
        **attributes,
    }


def _is_floating(value: Any) -> bool:
    """Tells whether a value is a floating-point or complex tensor, or a finite floating-point or complex number."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, float | complex) and math.isfinite(abs(value))


def _as_real(value: Any) -> Tensor:
    """Returns a floating-point or complex tensor or number as a dense real tensor; a number becomes float64."""
    if not isinstance(value, Tensor):
        dtype = torch.complex128 if isinstance(value, complex) else torch.float64
        value = torch.tensor(value, dtype=dtype)
    tensor = value.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Arguments(NamedTuple):
    """What a network is called with."""

    positional: tuple[Any, ...]  # Positional arguments
    named: Mapping[str, Any]  # Named ones
    words: str  # A description of them
    # Of torch, in which a network runs on them: one that draws random numbers gets the same ones
    mode: AbstractContextManager[Any] = nullcontext()

    def tensors(self) -> list[Tensor]:
        """Returns the tensors."""
        held = parts((self.positional, self.named))
        return [part for _, part in held if isinstance(part, Tensor)]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns their shapes."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors())

    def copied(self, dtype: torch.dtype | None = None) -> "Arguments":
        """Copies all tensors, floating-point ones to `dtype` if given, because networks may change their arguments."""

        def copied(x: Tensor) -> Tensor:
            is_cast = dtype is not None and x.is_floating_point()
            return x.detach().clone().to(dtype if is_cast else x.dtype)

        return self._mapped(copied)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Arguments":
        """Changes the numbers of the floating-point tensors."""

        def changed(x: Tensor) -> Tensor:
            is_plain = x.is_floating_point() and not x.is_nested and x.layout is torch.strided
            return change(x) if is_plain else x

        return self._mapped(changed)

    def rounded_differently(self, seed: int) -> "Arguments":
        """Changes last digits at random, as if they had been rounded differently."""
        return self.changed(partial(rounded_differently, seed=seed))

    def batches(self, size: int) -> list["Arguments"]:
        """Splits a single tensor of images into batches of at most `size`; other arguments stay together."""
        if self.named or len(self.positional) != 1 or not isinstance(self.positional[0], Tensor):
            return [self]
        images = self.positional[0]
        if images.is_nested or not images.ndim or images.layout is not torch.strided:
            return [self]
        return [self._replace(positional=(part,)) for part in images.split(size)]

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Arguments":
        positional, named = tree_map_only(Tensor, change, (self.positional, dict(self.named)))
        return self._replace(positional=positional, named=named)


def read_arguments(model: nn.Module, images: Images | None, *, may_draw: bool = True) -> Arguments:
    """Reads the arguments that a network is to run on: one, a tuple or a mapping; may draw an image for None.

    Raises ArgumentError for other types, empty tensors and tensors without values.
    """
    if images is None and may_draw:
        drawn = draw_image(model)
        words = f"one standard normal image {tuple(drawn.shape)}, seed {SEED}"
        return Arguments((drawn,), {}, words)
    if isinstance(images, Mapping):
        arguments = Arguments((), images, "the arguments given")
    elif isinstance(images, tuple):
        arguments = Arguments(images, {}, "the images given")
    elif isinstance(images, Tensor | list):
        count = 1
        if isinstance(images, list):
            count = len(images)
        elif images.ndim:
            count = images.size(0)  # nested tensors have no len
        arguments = Arguments((images,), {}, f"the {counted(count, 'image')} given")
    else:
        expectation = "a tensor, a list of them, a tuple of arguments or a mapping of them"
        raise ArgumentError(must_be_a("images", expectation, images))
    held = arguments.tensors()
    if any(tensor.is_meta for tensor in held):
        raise ArgumentError("images must be tensors with values, but one is on the meta device")
    if any(_as_real(tensor).isnan().any() for tensor in held):
        raise ArgumentError("images must hold no NaN, but some do")
    if held and not any(tensor.numel() for tensor in held):
        raise ArgumentError(f"images must be a batch of at least one, but are {sorts(held)}")
    return arguments


# --- Runs -------------------------------------------------------------------------------------------------------------


def devices_of(network: nn.Module) -> set[torch.device]:
    """Returns the devices of a network's parameters, and the CPU."""
    return {torch.device("cpu")} | {parameter.device for parameter in network.parameters()}


def without_modes(devices: Iterable[torch.device]) -> ExitStack:
    """Enters a context without gradients, autocast and TF32, also inside a network that turns them on."""
    settings = ExitStack()
    settings.enter_context(torch.no_grad())
    settings.enter_context(plain_float32())
    for device in devices:
        settings.enter_context(without_autocast(device))
    return settings


def output_of(network: nn.Module, arguments: Arguments, dtype: torch.dtype | None = None) -> Any:
    """Runs a network on copies of its arguments, with the same random numbers each time, and returns its output.

    It has no gradients and no autocast, and computes float32 in full. The run may change the network's state.
    """
    arguments = arguments.copied(dtype)
    with from_seed(network), without_modes(devices_of(network)), arguments.mode:
        return network(*arguments.positional, **arguments.named)


Parts = dict[str, Any]
"""The parts of an output by place, like "['boxes'][0]"."""


class Run(NamedTuple):
    """What a network returned."""

    numbers: dict[str, Tensor]  # Floating-point outputs by place, over all batches
    others: list[Parts]  # All parts of each batch, as what they are compared by

    def ordered(self, places: Mapping[str, Any]) -> list[Tensor]:
        """Returns the numbers in the order of places if they have these, else in their own."""
        if self.numbers.keys() != places.keys():
            return list(self.numbers.values())
        return [self.numbers[place] for place in places]


def run_batches(
    network: nn.Module,
    batches: Sequence[Arguments],
    dtype: torch.dtype | None = None,
    like: Run | None = None,
) -> Run:
    """Runs a network on all batches, in its own dtype or in another.

    Tensors in a list, or at none of the places of `like`, get these in their order: so a runtime returns them.
    """
    numbers = []
    others = []
    for number, batch in enumerate(batches):
        placed = dict(parts(output_of(network, batch, dtype)))
        if like is not None:
            placed = _placed_like(placed, like.others[number])
        numbers.append({at: _as_real(part) for at, part in placed.items() if _is_floating(part)})
        others.append({place: _comparable(part) for place, part in placed.items()})
    shapes = {frozenset((at, x.shape[1:]) for at, x in outputs.items()) for outputs in numbers}
    if len(shapes) > 1:  # one output for each image, or images that are not the first axis
        apart = {}
        for number, outputs in enumerate(numbers):
            apart |= {f"{place} of batch {number}": x for place, x in outputs.items()}
        return Run(apart, others)
    joined = {}
    for place in numbers[0]:
        several = [torch.atleast_1d(outputs[place]) for outputs in numbers]
        joined[place] = torch.cat(several)
    return Run(joined, others)


def _placed_like(placed: dict[str, Any], like: Parts) -> dict[str, Any]:
    """Gives tensors of a runtime the places of another output's, in their order; it returns no None."""
    tensors = [part for part in placed.values() if isinstance(part, Tensor)]
    places = [place for place, part in like.items() if isinstance(part, Tensor) or part == _NUMBERS]
    is_list = list(placed) == [f"[{number}]" for number in range(len(tensors))]
    if len(tensors) == len(places) and (is_list or not placed.keys() & like.keys()):
        placed = dict(zip(places, tensors, strict=True))
    return {place: None for place, part in like.items() if part == _NONE} | placed


def _comparable(part: Any) -> Any:
    """Returns what a part of an output is compared by: a tensor itself, a plain value as it prints, others by type."""
    if _is_floating(part):
        return _NUMBERS
    if isinstance(part, Tensor):
        return type(part) if part.is_meta else part.to_dense()
    return repr(part) if isinstance(part, type) or type(part) in _PLAIN else type(part)


def run_copy(
    model: nn.Module,
    batches: Sequence[Arguments],
    change: Callable[[nn.Module], nn.Module] = lambda copied: copied,
) -> Run:
    """Runs a copy of a network in evaluation mode, after it was changed; hooks in it may watch.

    Raises ArgumentError if the network does not take the images.
    """
    copied = change(copy_network(model).eval())
    try:
        return run_batches(copied, batches)
    except Exception as error:  # a foreign network may fail in any way
        first = batches[0]
        words = f"{first.words} (first batch: {sorts(first.tensors())})"
        raise ArgumentError(must_fit(words, error)) from error


def noticing_draws(
    source: nn.Module, arguments: Arguments, size: int, notes: list[str]
) -> Arguments:
    """Runs a copy of a network on a batch; if it draws random numbers there, all runs on the result get the same."""
    draws = SameDraws()
    drawing = arguments._replace(mode=draws)
    run_copy(source, drawing.batches(size)[:1])
    if not draws.drew:
        return arguments
    notes.append("other random numbers than the ones that all runs drew")
    return drawing


def run_source(source: nn.Module, batches: Sequence[Arguments]) -> list[Run]:
    """Runs copies of a network on its images, and on images with other last digits."""
    runs = [run_copy(source, batches)]
    for seed in range(ROUNDINGS):
        moved = [batch.rounded_differently(seed) for batch in batches]
        runs.append(run_copy(source, moved))
    return runs


def run_in_float64(
    network: nn.Module,
    batches: Sequence[Arguments],
    notes: list[str],
    places: Mapping[str, Any],
    change: Callable[[nn.Module], nn.Module] = lambda copied: copied,
) -> list[Tensor] | None:
    """Returns the numbers of a copy in float64, in the order of places, or notes why it does not run so."""
    try:
        copied = change(copy_network(network).eval().double())
        return run_batches(copied, batches, torch.float64).ordered(places)
    except Exception as error:  # noqa: BLE001 - a network may insist on its dtype in any way
        notes.append(f"float64: the network does not run in it ({type(error).__name__}: {error})")
        return None


def steps_of(source: nn.Module, outputs: Sequence[Tensor]) -> list[float]:
    """Returns the eps of each output; one in float64, like any Python number, was computed from the parameters."""
    held = [torch.finfo(p.dtype).eps for p in source.parameters() if p.is_floating_point()]
    steps = []
    for x in outputs:
        eps = torch.finfo(x.dtype).eps
        steps.append(max([eps, *held]) if x.dtype == torch.float64 else eps)
    return steps


# --- Seen inside of a run ---------------------------------------------------------------------------------------------


class Inputs:
    """What layers of given names are called with in the runs of a network; those that no image reaches have nothing.

    Attributes:
        shapes: The shapes of the images in each call, by the layer's name, in the order of the first calls.
        weights: The parameters that it computes with, by name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Has seen nothing yet."""
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self.weights: dict[str, dict[str, Tensor]] = {}
        self._names = names

    def watch(self, network: nn.Module) -> nn.Module:
        """Sets hooks in a network, and returns it."""
        for name in self._names:
            note = partial(self._note, name)
            layer = network.get_submodule(name)
            layer.register_forward_pre_hook(note, with_kwargs=True)
        return network

    def _note(self, name: str, layer: Any, positional: Any, named: Any) -> None:
        shape = tuple(layer.batch_of(*positional, **named).shape)
        self.shapes.setdefault(name, []).append(shape)
        self.weights[name] = dict(layer.named_parameters())


def watched_modules(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Lists the modules that take hooks, by name: not scripted ones, nor encodings and what attention layers read."""
    inner = set[nn.Module]()
    for module in network.modules():
        if isinstance(module, RelativeAttention):
            inner.update(part for part in module.modules() if part is not module)
        elif isinstance(module, Encoding):
            inner.update(module.modules())
    watched = []
    for name, module in network.named_modules():
        if module not in inner and not isinstance(module, torch.jit.ScriptModule):
            watched.append((name, module))
    return watched


def layer_outputs(
    network: nn.Module, arguments: Arguments, dtype: torch.dtype | None = None
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Runs a network, and returns the output of each module, and for each the modules that take it.

    Both are by name, in the order of the runs; a further call of a module is numbered, as in "relu#2". Only the first
    floating-point tensor of an output counts, which of several is "rotary[0]".
    """
    values: dict[str, Tensor] = {}
    takers: dict[str, list[str]] = {}
    makers: dict[int, list[str]] = {}
    alive: list[Tensor] = []  # or another tensor could get the id of an output

    def note(name: str, _module: nn.Module, positional: Any, named: Any, output: Any) -> None:
        outputs = [part for _, part in parts(output) if isinstance(part, Tensor)]
        numbers = [tensor for tensor in outputs if tensor.is_floating_point()]
        if not numbers:
            return
        first = numbers[0]
        if len(numbers) > 1:
            name = f"{name}[0]"
        calls = sum(other.partition("#")[0] == name for other in values)
        if calls:
            name = f"{name}#{calls + 1}"
        for _, part in parts((positional, named)):
            for maker in makers.get(id(part), ()):
                takers.setdefault(maker, []).append(name)
        values[name] = _as_real(first).clone()  # the next module may work in place
        makers.setdefault(id(first), []).append(name)
        alive.append(first)

    with ExitStack() as hooks:
        for name, part in watched_modules(network):
            if name:
                hook = part.register_forward_hook(partial(note, name), with_kwargs=True)
                hooks.enter_context(hook)
        output_of(network, arguments, dtype)
    return values, takers
