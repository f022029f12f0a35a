"""Runs networks for comparison: on copied arguments, with the same random numbers, without side effects."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from convattn.convert.copies import copy_network, keep_random_state
from convattn.convert.network.other_parts import is_floating
from convattn.errors import ArgumentError, must_be, must_be_a, must_fit
from convattn.functional.autocast import without_autocast
from convattn.functional.rounding import rounded_differently
from convattn.layers import RelativeAttention

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
