"""Which layers of a network are shown, in which order they run, and on what."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from torch import Tensor, nn

from convattn.adapters.attention import attention_layers
from convattn.adapters.attention.state import as_it_was
from convattn.errors import ArgumentError, ConvAttnError, UnknownNameError, must_fit
from convattn.layers import RelativeAttention
from convattn.viewer.maps import is_positional, numbered, one_run
from convattn.viewer.stored import require_image_grid


class MetLayer(NamedTuple):
    """One call of an attention layer."""

    name: str  # Name of the module; "(call 2)" is added where it runs again
    module: nn.Module
    size: tuple[int, ...]  # Rows and columns of what a layer of this library was given; empty of others

    @property
    def positional(self) -> bool:
        """Whether it attends by displacement alone, so that it needs no maps."""
        return is_positional(self.module)


def met_layers(network: nn.Module, image: Tensor, layers: Sequence[str] | None) -> list[MetLayer]:
    """Runs a network on one image, and returns the calls of the chosen layers in the order in which they run.

    A name that is no layer raises UnknownNameError; a network without attention UnsupportedModelError.
    """
    found = {layer.name: layer for layer in attention_layers(network)}
    for name in layers or ():
        if name not in found:
            raise UnknownNameError("layer", name, found)
    chosen = {
        network.get_submodule(name): name
        for name, layer in found.items()
        if (layer.refused is None if layers is None else name in layers)
    }
    met: list[MetLayer] = []
    calls: Counter[str] = Counter()

    def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        name = chosen[module]
        calls[name] += 1
        size: tuple[int, ...] = ()
        if isinstance(module, RelativeAttention):
            require_image_grid(name, module.dims)
            size = tuple(module.batch_of(*given, **named).shape[2:])
        met.append(MetLayer(numbered(name, calls[name]), module, size))

    with one_run, ExitStack() as hooks:
        for module in chosen:
            hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        hooks.enter_context(as_it_was(network))
        _run(network, image)
    if not met:
        raise ArgumentError(f"none of the layers {', '.join(chosen.values())} runs when the network sees an image")
    return met


def _run(network: Callable[[Tensor], Any], image: Tensor) -> None:
    try:
        network(image)
    except ConvAttnError:
        raise
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(f"one of shape {tuple(image.shape)}", error)) from error
