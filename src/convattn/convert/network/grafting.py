"""Replaces modules of a network by others."""

from collections.abc import Mapping

from torch import nn

from convattn.convert.network.plain_convolution import is_own_hook

__all__ = ["graft"]

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


def graft(root: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replaces old modules by new ones wherever they are registered, and gives the old ones' hooks to the new.

    Hooks by which torch computes a weight are not passed on. Returns the network, or the module that replaced it.
    """
    for old, new in replaced.items():
        own = [key for key, hook in old._forward_pre_hooks.items() if is_own_hook(hook)]
        for name in _CALLS:
            hooks = getattr(old, name)
            setattr(new, name, type(hooks)((key, hook) for key, hook in hooks.items() if key not in own))
        new._is_full_backward_hook = old._is_full_backward_hook
    for parent in list(root.modules()):
        for key, child in parent._modules.items():
            if child is not None and child in replaced:
                parent._modules[key] = replaced[child]
    return replaced.get(root, root)
