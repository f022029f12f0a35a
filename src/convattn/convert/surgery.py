"""Surgery on modules: copies, names, plain forms of convolutions, replacement, and runs without side effects."""

import copy
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from convattn.convert.certificate import LeftAlone
from convattn.convert.classes import SUPPORTED_CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, AnyConvolution, full_name
from convattn.convert.taps import require_supported
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a, must_fit
from convattn.functional.autocast import without_autocast
from convattn.functional.rounding import rounded_differently
from convattn.layers import RelativeAttention
from convattn.wording import some

Parts = Mapping[str, Any]
"""The parts of an output by their places in it, as Python writes them; floating-point numbers as `FLOATING`."""

FLOATING = type("Floating", (), {})()
"""Stands for numbers that are compared elsewhere, as tensors."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def other_parts(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each part of nested tuples, lists, mappings and dataclasses with its place, like "['boxes'][0].label"."""
    if is_floating(value):
        yield place, FLOATING
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from other_parts(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from other_parts(item, f"{place}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from other_parts(getattr(value, field.name), f"{place}.{field.name}")
    else:
        yield place, value


def is_floating(value: Any) -> bool:
    """Tells whether a value is a tensor or a finite number of Python that is floating-point or complex."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, float | complex) and math.isfinite(abs(value))


def compare_parts(
    plain: Sequence[Parts], made: Sequence[Parts], again: Sequence[Sequence[Parts]]
) -> tuple[list[str], list[str]]:
    """Compares what two networks return on each batch; returns what differs, and in words what was not compared.

    `again` are runs of the first network that differ from `plain` by rounding. Twice as many elements as differ there
    may differ in the second network: a label where two scores are nearly alike depends on the last digit.
    """
    differing: list[str] = []
    uncompared: dict[str, list[str]] = {}
    for batch, (one, two) in enumerate(zip(plain, made, strict=True)):
        for place in {**one, **two}:
            name = f"the output{place}"
            apart, moved = _apart(one, two, place), [_apart(one, run[batch], place) for run in again]
            most = max(count or 0 for count in moved)
            if apart is None or None in moved:
                kind = type(one[place]).__name__
                uncompared.setdefault(f"a part of type {kind} is not compared", []).append(name)
            elif most:
                uncompared.setdefault("rounding, or state kept between runs, changes it, too", []).append(name)
            if (apart or 0) > 2 * most:
                differing.append(name)
    told = [f"{some(list(dict.fromkeys(names)))}: {reason}" for reason, names in uncompared.items()]
    return list(dict.fromkeys(differing)), told


def _apart(one: Parts, two: Parts, place: str) -> int | None:
    """Counts the elements in which a part differs; None if it cannot be compared."""
    missing = object()
    first, second = one.get(place, missing), two.get(place, missing)
    if first is second:
        return 0
    if type(first) is not type(second):
        return 1
    if isinstance(first, Tensor):
        return _elements_apart(first, second)
    return int(repr(first) != repr(second)) if isinstance(first, _PLAIN) else None  # repr: nan is nan, -0.0 is not 0.0


def _elements_apart(first: Tensor, second: Tensor) -> int | None:
    if any(x.layout is not torch.strided or x.is_quantized or x.is_meta for x in (first, second)):
        return None
    if first.shape != second.shape or first.dtype != second.dtype:
        return max(1, first.numel(), second.numel())
    return int((first != second).sum())


def copy_module(module: nn.Module) -> nn.Module:
    """Copies a module, even if hooks left tensors in it that belong to an autograd graph."""
    results = [tensor for part in module.modules() for tensor in vars(part).values() if isinstance(tensor, Tensor)]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in results if not tensor.is_leaf}
    return copy.deepcopy(module, memo)


def copy_network(model: nn.Module) -> nn.Module:
    """Copies any network; the copy shares nothing with it. What cannot be copied raises UnsupportedModelError."""
    try:
        return copy_module(model)
    except Exception as error:  # a foreign module may fail in any way
        raise UnsupportedModelError(f"cannot copy {type(model).__name__}: {error}") from error


def keep_random_state(network: nn.Module) -> AbstractContextManager[None]:
    """Restores torch's random state on leaving, on the CPU and on the network's devices."""
    devices = {parameter.device.index or 0 for parameter in network.parameters() if parameter.is_cuda}
    return torch.random.fork_rng(devices=sorted(devices))


@dataclass(frozen=True)
class _Foreign:
    """How a subclass of a torch convolution differs from it."""

    weight: Callable[[nn.Module], Tensor] | None = None  # Returns the module's kernel; None if that is its weight
    # Tells whether it pads like TensorFlow's "SAME"; None if it never does
    same: Callable[[nn.Module], bool] | None = None
    extra: tuple[str, ...] = ()  # Names of its further parameters
    note: str | None = None  # What changes by the conversion


def _standardised(module: nn.Module) -> Tensor:
    """Weight standardisation: each output's weights with mean 0 and variance 1, times a gain where there is one."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    gain, eps = getattr(module, "gain", None), float(module.eps)  # type: ignore[arg-type]
    scale = None if gain is None else (gain * module.scale).view(-1)
    flat = weight.reshape(1, len(weight), -1)
    made = functional.batch_norm(flat, None, None, weight=scale, training=True, momentum=0.0, eps=eps)
    return made.reshape_as(weight)


_FROZEN = "the standardised weight was converted; further training does not standardise it again"

_FOREIGN: dict[str, _Foreign] = {
    "timm.layers.conv2d_same.Conv2dSame": _Foreign(same=lambda _: True),
    "timm.layers.std_conv.StdConv2d": _Foreign(_standardised, note=_FROZEN),
    "timm.layers.std_conv.StdConv2dSame": _Foreign(_standardised, lambda module: bool(module.same_pad), note=_FROZEN),
    "timm.layers.std_conv.ScaledStdConv2d": _Foreign(_standardised, extra=("gain",), note=_FROZEN),
    "timm.layers.std_conv.ScaledStdConv2dSame": _Foreign(
        _standardised, lambda module: bool(module.same_pad), extra=("gain",), note=_FROZEN
    ),
    "transformers.models.bit.modeling_bit.WeightStandardizedConv2d": _Foreign(
        _standardised, lambda module: module.pad is not None, extra=("pad",), note=_FROZEN
    ),
}
"""Subclasses of torch's convolutions, by full name."""

REFUSED: dict[str, str] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "it trains on several devices; convert its `module`",
    "timm.layers.cond_conv2d.CondConv2d": "its kernels depend on the input",
    "timm.layers.conv2d_same.Conv2dSameExport": "it pads every image like the first one that it saw; use Conv2dSame",
    "torchvision.ops.deform_conv.DeformConv2d": "its taps move with the input",
}
"""Modules that cannot be converted or copied, by full name, with the reason."""

_HARMLESS = {
    *("__init__", "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__repr__"),
    *("__static_attributes__", "__firstlineno__", "__annotate_func__", "__annotations_cache__", "__constants__"),
    *("__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "reset_parameters", "extra_repr"),
}
"""What a subclass may define without computing something else."""

_FIELDS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


@dataclass(frozen=True)
class PlainConvolution:
    """The plain convolution that computes what a module computes."""

    conv: AnyConvolution  # A convolution of torch itself, no subclass; it may share memory with the module
    same: bool  # Whether the image is first padded by its size, as `SamePaddedAttention` does
    own_weight: bool  # Whether the kernel is the module's parameter `weight` itself
    own_bias: bool  # Whether the bias is the module's parameter `bias` itself, or missing
    notes: tuple[str, ...]  # What changes by the conversion


def is_own_hook(hook: object) -> bool:
    """Tells whether a forward pre-hook is one by which torch computes a weight: normalisation or pruning."""
    return isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod)


def read_plain(module: nn.Module) -> PlainConvolution:
    """Reads a convolution of torch or of a subclass, with any parametrisation, as a plain one.

    If it may compute something else, UnsupportedModelError holds the reason alone.
    """
    kind = parametrize.type_before_parametrizations(module)
    name = full_name(kind)
    foreign = _FOREIGN.get(name, _Foreign())
    base = next(known for known in SUPPORTED_CONVOLUTIONS if issubclass(kind, known))
    if name not in _FOREIGN:
        _require_nothing_overridden(kind, base)
    replaced = sorted({"forward", "_conv_forward", "_output_padding"} & vars(module).keys())
    if replaced:
        raise UnsupportedModelError(f"its method {replaced[0]} was replaced on the instance")
    computed, working = _without_reparametrisation(module)
    held_otherwise = [tensor for tensor in ("weight", "bias") if tensor not in {*computed, *working._parameters}]
    if held_otherwise:
        raise UnsupportedModelError(f"its {held_otherwise[0]} is not a parameter; make it one first")
    held = {**working._parameters, **working._buffers, **working._modules}.keys() - {"weight", "bias", *foreign.extra}
    if parametrize.is_parametrized(module) and not computed.keys() - {"weight", "bias"}:
        held -= {"parametrizations"}
    if held:
        raise UnsupportedModelError(f"it holds more than a weight and a bias: {', '.join(sorted(held))}")
    conv = _build_plain(base, working, foreign)
    try:
        require_supported(conv)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(str(error).partition(": ")[2]) from None
    notes = [f"its {tensor} is computed by {how}; its present value was converted" for tensor, how in computed.items()]
    notes += [foreign.note] if foreign.note else []
    same = foreign.same is not None and foreign.same(module)
    own_weight = foreign.weight is None and "weight" not in computed
    return PlainConvolution(conv, same, own_weight, "bias" not in computed, tuple(notes))


def _require_nothing_overridden(kind: type, base: type) -> None:
    """Raises if a subclass overrides anything that its base class uses."""
    made = base(1, 1, 1, device="meta")
    for part in kind.__mro__:
        if part in base.__mro__:
            continue
        anew = sorted(n for n in vars(part) if n not in _HARMLESS and (hasattr(made, n) or n == "__getattribute__"))
        if anew:
            raise UnsupportedModelError(
                f"{full_name(part)} is a subclass of {base.__name__} that defines"
                f" {', '.join(anew)}; it may compute something else"
            )


def _without_reparametrisation(module: nn.Module) -> tuple[dict[str, str], nn.Module]:
    """Returns which tensors are computed and by what, and a module to read them from; itself if none are."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if is_own_hook(hook)]
    if not hooks and not parametrize.is_parametrized(module):
        return {}, module
    computed: dict[str, str] = {}
    with torch.enable_grad():  # where gradients are off, a computed weight would come back as one that does not learn
        working = copy_module(module).eval()  # a spectral norm in training would take another step
        if parametrize.is_parametrized(working):  # not removed: that would change the class, which copies share
            for name, steps in working.parametrizations.items():  # type: ignore[union-attr, operator]
                computed[name] = " and ".join(type(step).__name__.removeprefix("_") for step in steps)
        for hook in [hook for hook in working._forward_pre_hooks.values() if is_own_hook(hook)]:
            if isinstance(hook, WeightNorm | SpectralNorm):
                computed[hook.name] = type(hook).__name__
                (remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm)(working, hook.name)
            elif isinstance(hook, prune.BasePruningMethod):
                name = hook._tensor_name
                computed[name] = "pruning"
                prune.remove(working, name)
    return computed, working


def _build_plain(base: type[nn.Module], working: nn.Module, foreign: _Foreign) -> AnyConvolution:
    """Builds the plain convolution around the tensors of another."""
    options = {name: getattr(working, name) for name in _FIELDS}
    if not options["in_channels"] or not options["out_channels"]:
        raise UnsupportedModelError("it has no channels")
    if base in TRANSPOSED_CONVOLUTIONS.values():
        options["output_padding"] = working.output_padding
    conv = base(**options, bias=False, device="meta")
    ahead = "_reversed_padding_repeated_twice"  # what torch pads by before the product, with other modes than zeros
    if options["padding_mode"] != "zeros" and list(getattr(working, ahead)) != list(getattr(conv, ahead)):
        raise UnsupportedModelError("its padding was changed after it was made, and torch still pads as before")
    for name in ("weight", "bias"):
        with torch.enable_grad():
            tensor = getattr(working, name)
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter) or type(tensor.data) is not Tensor:
            raise UnsupportedModelError(f"its {name} is a {full_name(type(tensor))}, not a plain tensor")
        learns = tensor.requires_grad
        with torch.no_grad():
            made = foreign.weight(working) if name == "weight" and foreign.weight else tensor.detach()
        conv.register_parameter(name, nn.Parameter(made, requires_grad=learns))
    conv.train(working.training)
    return conv  # type: ignore[return-value]


CALLS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Attributes in which a module holds its hooks."""


def names_by_module(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Lists all names of each module, in the order of the network; a module used in several places has several."""
    named: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        named.setdefault(module, []).append(name)
    return named


def patterns(argument: str, value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Reads the name patterns given as `argument`: one, several or None; other values raise ArgumentError."""
    if value is None:
        return None
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Sequence) or not several or not all(isinstance(item, str) for item in several):
        raise ArgumentError(must_be(argument, "a name pattern or a sequence of them", value))
    return tuple(several)


def require_matches(every: Sequence[str], kind: str, **given: Sequence[str] | None) -> None:
    """Raises ArgumentError if a pattern matches none of the names of `kind`, probably a typo."""
    for argument, wanted in given.items():
        unknown = next((pattern for pattern in wanted or () if not matches(every, (pattern,))), None)
        if unknown is not None:
            example = next(iter(get_close_matches(unknown, every, n=1, cutoff=0.0)))
            expectation = f"a pattern that matches {kind} in the network, for instance {example or '*'!r}"
            raise ArgumentError(must_be(argument, expectation, unknown))


def matches(names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tells whether a pattern matches one of a module's names."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in wanted)


def keep_modes(old: nn.Module, new: nn.Module) -> nn.Module:
    """Gives a new module the mode of the old one, in training or not; parts taken over from the old one keep theirs."""
    taken = set(old.modules())
    for part in new.modules():
        if part not in taken:
            part.training = old.training
    return new


def graft(root: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replaces old modules by new ones wherever they are registered, and gives the old ones' hooks to the new.

    Hooks by which torch computes a weight are not passed on. Returns the network, or the module that replaced it.
    """
    for old, new in replaced.items():
        own = [key for key, hook in old._forward_pre_hooks.items() if is_own_hook(hook)]
        for name in CALLS:
            hooks = getattr(old, name)
            setattr(new, name, type(hooks)((key, hook) for key, hook in hooks.items() if key not in own))
        new._is_full_backward_hook = old._is_full_backward_hook
    for parent in list(root.modules()):
        for key, child in parent._modules.items():
            if child is not None and child in replaced:
                parent._modules[key] = replaced[child]
    return replaced.get(root, root)


_SEED = 0
_SIZE = (3, 224, 224)


class Arguments(NamedTuple):
    """What a network is called with."""

    positional: tuple[Any, ...]  # Positional arguments
    named: Mapping[str, Any]  # Named ones
    words: str  # A description of them

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of the floating-point and complex tensors."""
        return tuple(tuple(tensor.shape) for tensor in tensors((self.positional, self.named), as_real=False))

    def copied(self, dtype: torch.dtype | None = None) -> "Arguments":
        """Copies all tensors, floating-point ones to `dtype` if given, because networks may change their arguments."""

        def copy(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            made = value.detach().clone()
            return made.to(dtype) if dtype is not None and made.is_floating_point() else made

        return self._mapped(copy)

    def rounded_differently(self, seed: int) -> "Arguments":
        """Changes last digits of the floating-point tensors at random, as if they had been rounded differently."""

        def move(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided
            return rounded_differently(value, seed) if floating else value

        return self._mapped(move)

    def batches(self, size: int) -> list["Arguments"]:
        """Splits a single tensor of images into batches of at most `size`; other arguments stay together."""
        if self.named or len(self.positional) != 1 or not isinstance(self.positional[0], Tensor):
            return [self]
        images = self.positional[0]
        if not images.ndim or images.layout is not torch.strided:
            return [self]
        return [self._replace(positional=(part,)) for part in images.split(size)]

    def _mapped(self, change: Callable[[Any], Any]) -> "Arguments":
        return Arguments(tree_map(change, self.positional), tree_map(change, dict(self.named)), self.words)


def read_arguments(model: nn.Module, images: Tensor | tuple[Any, ...] | Mapping[str, Any] | None) -> Arguments:
    """Reads the arguments that a network is to run on: one, a tuple or a mapping; for None it draws an image.

    Other types, empty tensors and tensors without values raise ArgumentError.
    """
    if images is None:
        drawn = draw_image(model)
        return Arguments((drawn,), {}, f"one standard normal image {tuple(drawn.shape)}, seed {_SEED}")
    if not isinstance(images, Tensor | tuple | Mapping):
        raise ArgumentError(must_be_a("images", "a tensor, a tuple of arguments or a mapping of them", images))
    if isinstance(images, Mapping):
        given = Arguments((), images, "the arguments given")
    else:
        given = Arguments(images if isinstance(images, tuple) else (images,), {}, "the images given")
    held = list(tensors((given.positional, given.named), as_real=False))
    if any(tensor.is_meta for tensor in held):
        raise ArgumentError("images must be tensors with values, but one is on the meta device")
    if held and not any(tensor.numel() for tensor in held):
        raise ArgumentError(must_be("images", "a batch of at least one", given.shapes()))
    return given


def draw_image(network: nn.Module, shape: tuple[int, ...] | None = None) -> Tensor:
    """Draws one standard normal image in the network's dtype; `shape` leaves out the batch.

    None takes the size in `network.default_cfg`, or else 3 x 224 x 224. A size that cannot be drawn raises
    ArgumentError.
    """
    config = getattr(network, "default_cfg", None)
    size = shape or (config.get("input_size") if isinstance(config, Mapping) else None) or _SIZE
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    generator = torch.Generator().manual_seed(_SEED)
    try:
        return torch.randn((1, *size), generator=generator, dtype=torch.float64, device="cpu").to(like)
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError):
        expected = "the shape of an image that fits into memory"
        raise ArgumentError(must_be("shape", expected, tuple(size))) from None


def run(network: nn.Module, given: Arguments, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Runs a network as `output_of`, and returns the floating-point and complex tensors in its output, in order."""
    return list(tensors(output_of(network, given, dtype)))


def output_of(network: nn.Module, given: Arguments, dtype: torch.dtype | None = None) -> Any:
    """Runs a network on copies of its arguments without gradients and autocast, with the same random numbers each time.

    Returns its output. The run may change the network's state.
    """
    with ExitStack() as settings:
        settings.enter_context(keep_random_state(network))
        settings.enter_context(torch.no_grad())
        for device in {torch.device("cpu"), *(parameter.device for parameter in network.parameters())}:
            settings.enter_context(without_autocast(device))
        torch.manual_seed(_SEED)
        arguments = given.copied(dtype)
        return network(*arguments.positional, **arguments.named)


def shapes_met(model: nn.Module, given: Arguments, names: Iterable[str]) -> dict[str, list[tuple[int, ...]]]:
    """Runs a copy of a network in evaluation mode, and records the shapes that its modules are given.

    Returns, for each module of `names` that is reached, the shape of the first tensor among its arguments in every
    call, () if there is none, in the order of the first calls. A network that does not take the images raises
    ArgumentError.
    """
    met: dict[str, list[tuple[int, ...]]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            if isinstance(module, RelativeAttention):
                first = module.batch_of(*positional, **named)
            else:
                first = next(tensors((positional, named)), torch.empty(()))
            met.setdefault(name, []).append(tuple(first.shape))

        return hook

    watched = copy_network(model).eval()
    places = dict(watched.named_modules(remove_duplicate=False))
    for name in names:
        places[name].register_forward_pre_hook(note(name), with_kwargs=True)
    try:
        run(watched, given)
    except Exception as error:  # a foreign network may fail in any way
        shapes = given.shapes()
        words = f"those of shape {shapes[0] if len(shapes) == 1 else shapes}"
        raise ArgumentError(must_fit(words, error)) from error
    return met


def tensors(value: Any, *, as_real: bool = True, numbers: bool = False) -> Iterator[Tensor]:
    """Yields the floating-point and complex tensors in nested tuples, lists, mappings and dataclasses, in order.

    Sparse tensors are made dense. With `numbers`, finite floating-point and complex numbers of Python are tensors in
    float64.
    """
    if numbers and not isinstance(value, Tensor) and is_floating(value):
        value = torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)
    if isinstance(value, Tensor):
        value = value if value.layout is torch.strided else value.to_dense()
        if value.is_complex() and as_real:
            yield torch.view_as_real(value.detach())
        elif value.is_complex() or value.is_floating_point():
            yield value.detach()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item, as_real=as_real, numbers=numbers)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item, as_real=as_real, numbers=numbers)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name), as_real=as_real, numbers=numbers)


_CONVOLUTION = re.compile(r"::_?(\w+_)?(deform_)?conv(olution|_transpose|_tbc|[123]d|_depthwise)")


class Watch:
    """Sees each operation of a running network, and the module that calls it.

    Hooks are set on entering and removed on leaving.

    Attributes:
        paths: The path of each layer on the first images that reached it.
        content_bytes: What the content scores of a layer take per image with an open gate.
        calls: Modules that called a convolution as a function, by name, and why it was not converted.
    """

    def __init__(self, network: nn.Module, left: Sequence[str]) -> None:
        """Prepares to watch; convolutions `left` alone, given by name, are not reported again."""
        self._network, self._left = network, set(left)
        self._stack: list[tuple[str, nn.Module]] = []
        self.paths: dict[RelativeAttention, str] = {}
        self.content_bytes: dict[RelativeAttention, int] = {}
        self.calls: dict[str, LeftAlone] = {}
        self._handles: list[RemovableHandle] = []
        self._operations = _Operations(self._seen)

    def __enter__(self) -> "Watch":
        layers = [module for module in self._network.modules() if isinstance(module, RelativeAttention)]
        parts = {part for layer in layers for part in layer.modules() if part is not layer}  # read, and not called
        for name, module in self._network.named_modules():
            if module in parts:
                continue
            self._handles.append(module.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        self._operations.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operations.__exit__(kind, error, trace)
        for handle in self._handles:
            handle.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        """Makes the hook that notes the running module, and the path of a layer."""

        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._stack.append((name, module))
            if not isinstance(module, RelativeAttention) or module in self.paths:
                return
            x = module.batch_of(*given, **named)
            if isinstance(x, Tensor) and x.ndim == len(module.geometry.stride) + 2:  # others the layer itself refuses
                self.paths[module] = module.plan(x.shape, x.dtype).path
                if module.gate is not None:
                    opened = copy.copy(module)
                    opened.impl = "content"  # also while its gate is closed
                    self.content_bytes[module] = opened.plan((1, *x.shape[1:]), x.dtype).bytes

        return hook

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._stack and self._stack[-1][1] is module:
            self._stack.pop()

    def _seen(self, operation: str) -> None:
        """Notes a convolution that is neither a layer's own nor one left alone."""
        inside = [name for name, module in self._stack if isinstance(module, RelativeAttention) or name in self._left]
        if inside or not _CONVOLUTION.search(operation):
            return
        name, module = self._stack[-1] if self._stack else ("", self._network)
        reason = f"it calls {operation} as a function, which is not converted"
        self.calls.setdefault(name, LeftAlone(name, type(module).__name__, reason))


class _Operations(TorchDispatchMode):
    """Reports the name of every operation."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Takes the function that is called with each operation's name."""
        super().__init__()
        self._report = report

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Reports the operation and computes it."""
        self._report(str(func._schema.name))
        return func(*args, **(kwargs or {}))
