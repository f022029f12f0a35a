"""Hooks on modules whose parameters are read without a call: they are run, or refused."""

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from convattn.errors import ArgumentError

_COMPUTING = (BasePruningMethod, SpectralNorm, WeightNorm)
"""Hooks of torch that compute a parameter before its module is called."""


def compute_parameters(module: nn.Module) -> None:
    """Runs the hooks that compute a module's parameters, as calling the module would; refuses all other hooks."""
    # Call this before reading the parameters of a module that is not called. Parametrisations need nothing.
    for hook in module._forward_pre_hooks.values():
        if not isinstance(hook, _COMPUTING):
            raise ArgumentError(_refusal(module, "forward pre-hook", hook))
        hook(module, None)
    others = {
        "forward hook": module._forward_hooks,
        "backward pre-hook": module._backward_pre_hooks,
        "backward hook": module._backward_hooks,
    }
    for kind, hooks in others.items():
        for hook in hooks.values():
            raise ArgumentError(_refusal(module, kind, hook))


def _refusal(module: nn.Module, kind: str, hook: object) -> str:
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return (
        f"the {kind} {name} on {type(module).__name__} would be ignored, because a layer reads this module and does not"
        " call it: put the hook on the layer"
    )
