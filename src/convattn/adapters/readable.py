"""Checks of the modules of another library, before an adapter reads their numbers."""

from collections.abc import Callable, Collection, Sequence

from torch import nn
from torch.nn.utils import parametrize

from convattn.adapters.native import NativeAttention
from convattn.convert.classes import full_name
from convattn.convert.network.modules import names_by_module
from convattn.errors import UnsupportedModelError

_RECORDERS = "transformers.utils.output_capturing"
"""Module of the hooks by which transformers records outputs; they belong to the network, not to its user."""


def read_layers(
    model: nn.Module,
    kinds: Collection[str],
    read: Callable[[tuple[str, ...], nn.Module], NativeAttention],
    *,
    within: str,
    reasons: Sequence[str] = (),
    none: str,
) -> tuple[NativeAttention, ...]:
    """Reads the attention layers of a network, or raises UnsupportedModelError with all reasons why it cannot.

    These are the modules of the classes `kinds`, given by full name, whose names begin with `within`. `read` reads one
    layer or raises the reason alone; `reasons` are further ones, `none` is that of a network without attention layers.
    """
    layers, refused = [], list(reasons)
    for module, names in names_by_module(model).items():
        inside = tuple(name for name in names if name.startswith(within))
        if not inside or full_name(type(module)) not in kinds:
            continue
        try:
            layers.append(read(inside, module))
        except UnsupportedModelError as error:
            refused.append(f"{inside[0]} ({type(module).__name__}): {error}")
    if refused or not layers:
        listed = "\n".join(f"  {reason}" for reason in refused or [none])
        raise UnsupportedModelError(f"cannot initialise {type(model).__name__} as a convolution:\n{listed}")
    return tuple(layers)


def require_linear(attention: nn.Module, name: str) -> nn.Linear:
    """Returns a linear map of an attention layer, or raises UnsupportedModelError.

    The map must be an `nn.Linear` itself and its weight not computed; neither of the two may have hooks of the user.
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
