"""Checks of the modules of another library, before an adapter reads their numbers."""

from collections.abc import Callable, Collection, Iterable, Sequence

from torch import nn
from torch.nn.utils import parametrize

from convattn.adapters.native import NativeAttention
from convattn.convert.classes import full_name
from convattn.convert.network.names import names_by_module
from convattn.errors import UnsupportedModelError

__all__ = ["attention_places", "read_layers", "require_linear"]

_RECORDERS = "transformers.utils.output_capturing"
"""Module of the hooks by which transformers records outputs; they belong to the network, not to its user."""


def attention_places(
    model: nn.Module, attention: str, others: Collection[str], within: str
) -> list[tuple[tuple[str, ...], nn.Module]]:
    """Finds the attention layers of a network, supported or known to be unsupported.

    Args:
        model: The network.
        attention: Full name of the supported class.
        others: Full names of unsupported classes in its place.
        within: Prefix of the names to search.

    Returns:
        Each layer, with all its names.
    """
    found = []
    for module, names in names_by_module(model).items():
        inside = tuple(name for name in names if name.startswith(within))
        if inside and full_name(type(module)) in (attention, *others):
            found.append((inside, module))
    return found


def read_layers(
    model: nn.Module,
    places: Iterable[tuple[tuple[str, ...], nn.Module]],
    read: Callable[[tuple[str, ...], nn.Module], NativeAttention],
    *,
    reasons: Sequence[str] = (),
    none: str,
) -> tuple[NativeAttention, ...]:
    """Reads the attention layers of a network, or raises with all reasons why it cannot be read.

    Args:
        model: The network.
        places: Its attention layers, as `attention_places` found them.
        read: Reads one layer, or raises UnsupportedModelError with the reason alone.
        reasons: Further reasons to refuse the network.
        none: The reason if it has no attention layers.

    Returns:
        The layers.

    Raises:
        UnsupportedModelError: A layer cannot be read, there are none, or there are other reasons; the message lists
            them all, one per line.
    """
    layers, refused = [], list(reasons)
    for names, attention in places:
        try:
            layers.append(read(names, attention))
        except UnsupportedModelError as error:
            refused.append(f"{names[0]} ({type(attention).__name__}): {error}")
    if refused or not layers:
        listed = "\n".join(f"  {reason}" for reason in refused or [none])
        raise UnsupportedModelError(f"cannot initialise {type(model).__name__} as a convolution:\n{listed}")
    return tuple(layers)


def require_linear(attention: nn.Module, name: str) -> nn.Linear:
    """Returns a linear map of an attention layer, if neither has hooks of the user.

    Args:
        attention: The layer.
        name: Name of the map in it.

    Returns:
        The map.

    Raises:
        UnsupportedModelError: It is another module, its weight is computed, or one of the two has hooks.
    """
    linear = getattr(attention, name, None)
    if isinstance(linear, nn.Module) and parametrize.is_parametrized(linear):
        raise UnsupportedModelError(f"its {name} has a parametrised weight; make it permanent first")
    if type(linear) is not nn.Linear:
        raise UnsupportedModelError(f"its {name} must be an nn.Linear, but is a {type(linear).__name__}")
    for module, where in ((attention, "it"), (linear, f"its {name}")):
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *module._backward_hooks.values()]
        if any(getattr(hook, "__module__", None) != _RECORDERS for hook in hooks):
            raise UnsupportedModelError(f"{where} has hooks, which would be lost; remove them first")
    return linear
