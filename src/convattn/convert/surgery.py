"""Surgery on networks: names, copies, grafts, and runs that leave no trace."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_map_only

from convattn.budget import rounded_differently
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a, must_fit
from convattn.functional.torch_modes import without_autocast
from convattn.layers import RelativeAttention
from convattn.layers.relative import HasKernel

Images = Tensor | list[Any] | tuple[Any, ...] | Mapping[str, Any]
"""What a network runs on: images, also as a list, or a tuple or mapping of its arguments."""

_CALLS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Attributes in which a module holds its hooks."""

_SEED = 0
_SIZE = (3, 224, 224)
"""Seed and size of an image that is drawn where none is given."""


def full_name(kind: type) -> str:
    """Returns the name of a class with that of the file that defines it."""
    return f"{kind.__module__}.{kind.__qualname__}"


def dtypes_in_words(network: nn.Module) -> str:
    """Returns the dtypes of a network's parameters, for instance "float32"."""
    names = [str(parameter.dtype).removeprefix("torch.") for parameter in network.parameters()]
    return ", ".join(dict.fromkeys(names))


def names_by_module(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Lists all names of each module, in the order of the network; a module used in several places has several."""
    named: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        named.setdefault(module, []).append(name)
    return named


def patterns(
    argument: str, value: str | Sequence[str] | None, names: Sequence[str], kind: str
) -> tuple[str, ...] | None:
    """Reads the name patterns given as `argument`: one, several or None.

    Raises ArgumentError for other values, and if one matches none of the `names` of `kind`, which is probably a typo.
    """
    if value is None:
        return None
    several = (value,) if isinstance(value, str) else value
    are_texts = isinstance(several, Sequence) and all(isinstance(item, str) for item in several)
    if not are_texts or not several:
        raise ArgumentError(must_be(argument, "a name pattern or a sequence of them", value))
    for pattern in several:
        if names and not matches(names, (pattern,)):
            example = get_close_matches(pattern, names, n=1, cutoff=0.0)[0] or "*"
            expectation = f"a pattern that matches {kind} in the network, for instance {example!r}"
            raise ArgumentError(must_be(argument, expectation, pattern))
    return tuple(several)


def matches(names: Sequence[str], wildcards: Sequence[str]) -> bool:
    """Tells whether a pattern matches one of a module's names."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in wildcards)


def find_empty(module: nn.Module) -> str | None:
    """Returns the name of a tensor of a module that is on the meta device, and so has no values; None if none is."""
    held = [*module.named_parameters(), *module.named_buffers()]
    return next((name for name, tensor in held if tensor.is_meta), None)


def copy_module(module: nn.Module) -> nn.Module:
    """Copies a module, even if hooks left tensors in it that belong to an autograd graph."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def copy_network(model: nn.Module) -> nn.Module:
    """Copies any network; the copy shares nothing with it. Raises UnsupportedModelError if copying fails."""
    try:
        return copy_module(model)
    except Exception as error:  # a foreign module may fail in any way
        raise UnsupportedModelError(f"cannot copy {type(model).__name__}: {error}") from error


def keep_random_state(network: nn.Module) -> AbstractContextManager[None]:
    """Restores torch's random state on leaving, on the CPU and on the network's devices."""
    devices = {
        parameter.device.index or 0 for parameter in network.parameters() if parameter.is_cuda
    }
    return torch.random.fork_rng(devices=sorted(devices))


def keep_modes(old: nn.Module, new: nn.Module) -> nn.Module:
    """Gives a new module the mode of the old one, in training or not; parts taken over from the old one keep theirs."""
    taken = set(old.modules())
    for part in new.modules():
        if part not in taken:
            part.training = old.training
    return new


def replaced_methods(module: nn.Module) -> list[str]:
    """Names the methods that were replaced on a module, so that it may compute something else than its class."""
    names = []
    for name, value in vars(module).items():
        if callable(value) and callable(getattr(type(module), name, None)):
            names.append(name)
    return sorted(names)


def first_change(layer: nn.Module, *, computed: Callable[[nn.Module], bool]) -> str | None:
    """Returns what makes a layer compute something else than its class does with its parameters; None if nothing does.

    That is a method that was replaced on one of its modules, a hook, or a parametrisation. In modules that may be
    `computed`, those by which torch computes weights do not count.
    """
    for name, part in layer.named_modules():
        reasons = [f"another {method}" for method in replaced_methods(part)]
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        if computed(part):
            hooks = [hook for hook in hooks if not is_own_hook(hook)]
        elif parametrize.is_parametrized(part):
            reasons.append("parametrizations (weight norm is one)")
        if hooks:
            reasons.append("forward hooks (pruning adds some)")
        if reasons:
            where = f" at {name}" if name else ""
            return (
                f"it has {' and '.join(reasons)}{where}; make them permanent or remove them first"
            )
    return None


def is_own_hook(hook: object) -> bool:
    """Tells whether a forward pre-hook is one by which torch computes a weight: normalisation or pruning."""
    return isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod)


def graft(root: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replaces old modules by new ones wherever they are registered, and gives the old ones' hooks to the new.

    Hooks by which torch computes a weight stay if the new module has them. Returns the network, or what replaced it.
    """
    for old, new in replaced.items():
        if old in set(new.modules()):
            continue  # a new module that holds the old one calls its hooks
        hooks = old._forward_pre_hooks
        own = {key for key in hooks if is_own_hook(hooks[key])} - new._forward_pre_hooks.keys()
        for name in _CALLS:
            every = getattr(old, name)
            moved = [(key, every[key]) for key in every if key not in own]
            setattr(new, name, type(every)(moved))
        new._is_full_backward_hook = old._is_full_backward_hook
    for parent in list(root.modules()):
        for key, child in parent._modules.items():
            if child is not None:
                parent._modules[key] = replaced.get(child, child)
    return replaced.get(root, root)


def parts(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each part of nested tuples, lists, mappings and dataclasses with its place, like "['boxes'][0].label"."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from parts(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from parts(item, f"{place}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from parts(getattr(value, field.name), f"{place}.{field.name}")
    else:
        yield place, value


def is_floating(value: Any) -> bool:
    """Tells whether a value is a floating-point or complex tensor, or a finite floating-point or complex number."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, float | complex) and math.isfinite(abs(value))


def tensors(value: Any, *, as_real: bool = True, numbers: bool = False) -> Iterator[Tensor]:
    """Yields the floating-point and complex tensors among the `parts` of a value, in order.

    Sparse tensors are made dense. With `numbers`, finite floating-point and complex numbers become tensors in float64.
    """
    for _, part in parts(value):
        if not is_floating(part):
            continue
        if isinstance(part, Tensor):
            tensor = part.detach()
            if part.layout is not torch.strided:
                tensor = tensor.to_dense()
        elif numbers:
            dtype = torch.complex128 if isinstance(part, complex) else torch.float64
            tensor = torch.tensor(part, dtype=dtype)
        else:
            continue
        if as_real and tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        yield tensor


class Arguments(NamedTuple):
    """What a network is called with."""

    positional: tuple[Any, ...]  # Positional arguments
    named: Mapping[str, Any]  # Named ones
    words: str  # A description of them

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of the floating-point and complex tensors."""
        held = tensors((self.positional, self.named), as_real=False)
        return tuple(tuple(tensor.shape) for tensor in held)

    def copied(self, dtype: torch.dtype | None = None) -> "Arguments":
        """Copies all tensors, floating-point ones to `dtype` if given, because networks may change their arguments."""

        def copied(x: Tensor) -> Tensor:
            is_cast = dtype is not None and x.is_floating_point()
            return x.detach().clone().to(dtype if is_cast else x.dtype)

        return self._mapped(copied)

    def rounded_differently(self, seed: int) -> "Arguments":
        """Changes last digits of the floating-point tensors at random, as if they had been rounded differently."""

        def moved(x: Tensor) -> Tensor:
            is_plain = x.is_floating_point() and x.layout is torch.strided
            return rounded_differently(x, seed) if is_plain else x

        return self._mapped(moved)

    def altered(self) -> "Arguments":
        """Changes the floating-point tensors by up to a tenth of each number, at random."""
        generator = torch.Generator().manual_seed(_SEED)

        def changed(x: Tensor) -> Tensor:
            if not x.is_floating_point() or x.layout is not torch.strided:
                return x
            return x * (1 + torch.rand(x.shape, generator=generator).to(x) / 10)

        return self._mapped(changed)

    def batches(self, size: int) -> list["Arguments"]:
        """Splits a single tensor of images into batches of at most `size`; other arguments stay together."""
        if self.named or len(self.positional) != 1 or not isinstance(self.positional[0], Tensor):
            return [self]
        images = self.positional[0]
        if not images.ndim or images.layout is not torch.strided:
            return [self]
        return [self._replace(positional=(part,)) for part in images.split(size)]

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Arguments":
        positional, named = tree_map_only(Tensor, change, (self.positional, dict(self.named)))
        return Arguments(positional, named, self.words)


def read_arguments(model: nn.Module, images: Images | None) -> Arguments:
    """Reads the arguments that a network is to run on: one, a tuple or a mapping; draws an image for None.

    Raises ArgumentError for other types, empty tensors and tensors without values.
    """
    if images is None:
        drawn = draw_image(model)
        words = f"one standard normal image {tuple(drawn.shape)}, seed {_SEED}"
        return Arguments((drawn,), {}, words)
    if isinstance(images, Mapping):
        arguments = Arguments((), images, "the arguments given")
    elif isinstance(images, tuple):
        arguments = Arguments(images, {}, "the images given")
    elif isinstance(images, Tensor | list):
        arguments = Arguments((images,), {}, "the images given")
    else:
        expectation = "a tensor, a list of them, a tuple of arguments or a mapping of them"
        raise ArgumentError(must_be_a("images", expectation, images))
    held = list(tensors(images, as_real=False))
    if any(tensor.is_meta for tensor in held):
        raise ArgumentError("images must be tensors with values, but one is on the meta device")
    if any(bool(tensor.isnan().any()) for tensor in held):
        raise ArgumentError("images must hold no NaN, but some do")
    if held and not any(tensor.numel() for tensor in held):
        raise ArgumentError(must_be("images", "a batch of at least one", arguments.shapes()))
    return arguments


def draw_image(network: nn.Module, shape: tuple[int, ...] | None = None) -> Tensor:
    """Draws one standard normal image in the network's dtype; `shape` leaves out the batch.

    None takes the size in `network.default_cfg`, or else 3 x 224 x 224. A size that cannot be drawn raises
    ArgumentError.
    """
    size = shape
    config = getattr(network, "default_cfg", None)
    if size is None and isinstance(config, Mapping):
        size = config.get("input_size")
    size = size or _SIZE
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    generator = torch.Generator().manual_seed(_SEED)
    try:
        drawn = torch.randn((1, *size), generator=generator, dtype=torch.float64, device="cpu")
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError):
        expectation = "the shape of an image that fits into memory"
        raise ArgumentError(must_be("shape", expectation, tuple(size))) from None
    return drawn.to(like)


def output_of(network: nn.Module, arguments: Arguments, dtype: torch.dtype | None = None) -> Any:
    """Runs a network on copies of its arguments without gradients and autocast, with the same random numbers each time.

    Returns its output. The run may change the network's state.
    """
    with ExitStack() as settings:
        settings.enter_context(keep_random_state(network))
        settings.enter_context(torch.no_grad())
        devices = {parameter.device for parameter in network.parameters()}
        for device in {torch.device("cpu"), *devices}:
            settings.enter_context(without_autocast(device))
        torch.manual_seed(_SEED)
        arguments = arguments.copied(dtype)
        return network(*arguments.positional, **arguments.named)


def input_shapes(
    model: nn.Module, arguments: Arguments, names: Iterable[str]
) -> dict[str, list[tuple[int, ...]]]:
    """Runs a copy of a network in evaluation mode, and returns the shapes of what its modules are called with.

    Holds, for each module of `names` that is reached, the shape of the first tensor among its arguments in every call,
    () if there is none, in the order of the first calls. Raises ArgumentError if the network does not take the images.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}

    def note(
        name: str, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if isinstance(module, HasKernel):
            first = module.batch_of(*positional, **named)
        else:
            first = next(tensors((positional, named)), torch.empty(()))
        shapes.setdefault(name, []).append(tuple(first.shape))

    watched = copy_network(model).eval()
    places = dict(watched.named_modules(remove_duplicate=False))
    for name in names:
        places[name].register_forward_pre_hook(partial(note, name), with_kwargs=True)
    try:
        output_of(watched, arguments)
    except Exception as error:  # a foreign network may fail in any way
        every = arguments.shapes()
        words = f"those of shape {every[0] if len(every) == 1 else every}"
        raise ArgumentError(must_fit(words, error)) from error
    return shapes


def parts_of_attention(network: nn.Module) -> set[nn.Module]:
    """Returns the modules inside attention layers, which are read, and not called."""
    inner = set[nn.Module]()
    for module in network.modules():
        if isinstance(module, RelativeAttention):
            inner.update(part for part in module.modules() if part is not module)
    return inner


def layer_outputs(
    network: nn.Module, arguments: Arguments, dtype: torch.dtype | None = None
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Runs a network, and returns the output of each module, and for each the modules that take it.

    Both are by name, in the order of the runs; a further call of a module is numbered, as in "relu#2". Only the first
    floating-point tensor of an output counts.
    """
    values: dict[str, Tensor] = {}
    takers: dict[str, list[str]] = {}
    makers: dict[int, list[str]] = {}
    alive: list[Tensor] = []  # or another tensor could get the id of an output

    def note(name: str, _module: nn.Module, positional: Any, named: Any, output: Any) -> None:
        outputs = [part for _, part in parts(output) if isinstance(part, Tensor)]
        first = next((tensor for tensor in outputs if tensor.is_floating_point()), None)
        if first is None:
            return
        calls = sum(other.partition("#")[0] == name for other in values)
        if calls:
            name = f"{name}#{calls + 1}"
        for _, part in parts((positional, named)):
            for maker in makers.get(id(part), ()):
                takers.setdefault(maker, []).append(name)
        values[name] = next(tensors(first)).clone()  # the next module may work in place
        makers.setdefault(id(first), []).append(name)
        alive.append(first)

    inner = parts_of_attention(network)
    hooks = []
    for name, part in network.named_modules():
        if name and part not in inner:
            hooks.append(part.register_forward_hook(partial(note, name), with_kwargs=True))
    try:
        output_of(network, arguments, dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return values, takers
