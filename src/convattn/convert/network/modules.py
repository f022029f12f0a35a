"""The modules of a network: their names, patterns that choose among them, and replacing them."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from convattn.convert.network.plain_convolution import is_own_hook
from convattn.errors import ArgumentError, must_be

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
