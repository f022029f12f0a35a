"""What an adapter asks of the modules of another library before it reads their numbers."""

from collections.abc import Collection

from torch import nn
from torch.nn.utils import parametrize

from convattn.errors import UnsupportedModelError

__all__ = ["attention_places", "full_name", "require_linear"]

_RECORDERS = "transformers.utils.output_capturing"
"""Module of the hooks by which transformers writes outputs down; they belong to the network, not to its user."""


def full_name(module: nn.Module) -> str:
    """Returns the name of a module's class with that of the file that defines it."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def attention_places(
    model: nn.Module, attention: str, others: Collection[str], within: str
) -> list[tuple[tuple[str, ...], nn.Module]]:
    """Finds the layers of attention in a network, known or known to be something else.

    Args:
        model: The network.
        attention: Full name of the class that is known.
        others: Full names of classes that stand in its place.
        within: How the names of places begin.

    Returns:
        Each layer with all its names.
    """
    named: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name.startswith(within) and full_name(module) in (attention, *others):
            named.setdefault(module, []).append(name)
    return [(tuple(names), module) for module, names in named.items()]


def require_linear(attention: nn.Module, name: str) -> nn.Linear:
    """Returns a linear map of a layer of attention whose hooks, and the layer's, are known.

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
        raise UnsupportedModelError(f"its {name} is no nn.Linear but a {type(linear).__name__}")
    for module, where in ((attention, "it"), (linear, f"its {name}")):
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *module._backward_hooks.values()]
        if any(getattr(hook, "__module__", None) != _RECORDERS for hook in hooks):
            raise UnsupportedModelError(f"{where} has hooks, which would be lost; remove them first")
    return linear
