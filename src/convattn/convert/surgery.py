"""Surgery on networks: names, patterns of names, hooks and grafts."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn
from torch.nn.utils import parametrize

from convattn.errors import ArgumentError, must_be, must_be_a, require
from convattn.structure import is_own_hook, replaced_methods

Patterns: TypeAlias = str | Sequence[str] | None
"""A pattern of names, or several; None where nothing is asked."""

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


def require_network(argument: str, value: object) -> None:
    """Raises ArgumentError unless an argument is a module of torch."""
    if not isinstance(value, nn.Module):
        raise ArgumentError(must_be_a(argument, "an nn.Module", value))


def names_by_module(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Lists all names of each module, in the order of the network; a module used in several places has several."""
    named: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        named.setdefault(module, []).append(name)
    return named


def patterns(
    argument: str, value: Patterns, names: Sequence[str], kind: str | None
) -> tuple[str, ...] | None:
    """Reads the name patterns given as `argument`: one, several or None.

    Raises ArgumentError for other values, and if one matches none of the `names` of `kind`, which is probably a typo.
    """
    if value is None:
        return None
    several = (value,) if isinstance(value, str) else value
    are_texts = isinstance(several, Sequence) and all(isinstance(item, str) for item in several)
    expectation = "a name pattern or a sequence of them"
    require(are_texts and several, argument, expectation, value)
    for pattern in several:
        if names and not matches(names, (pattern,)):
            example = get_close_matches(pattern, names, n=1, cutoff=0.0)[0] or "*"
            expectation = f"a pattern that matches {kind} in the network, for instance {example!r}"
            raise ArgumentError(must_be(argument, expectation, pattern))
    return tuple(several)


def matches(names: Sequence[str], wildcards: Sequence[str]) -> bool:
    """Tells whether a pattern matches one of a module's names."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in wildcards)


def first_change(layer: nn.Module, holding: Collection[nn.Module] = ()) -> str | None:
    """Returns what makes a layer compute something else than its class does with its parameters; None if nothing does.

    That is a method that was replaced on one of its modules, a hook, or a parametrisation. Hooks and parametrisations
    by which torch computes weights count only in modules that must be `holding` theirs.
    """
    for name, part in layer.named_modules():
        reasons = [f"another {method}" for method in replaced_methods(part)]
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        if part not in holding:
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


def graft(root: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replaces old modules by new ones wherever they are registered, and adds the old ones' hooks to the new.

    Returns the network, or what replaced it.
    """
    for old, new in replaced.items():
        if old in set(new.modules()):
            continue  # a new module that holds the old one calls its hooks
        for name in _CALLS:
            hooks = getattr(old, name)
            setattr(new, name, type(hooks)({**getattr(new, name), **hooks}))
        if old._is_full_backward_hook is not None:
            new._is_full_backward_hook = old._is_full_backward_hook
    for parent in list(root.modules()):
        for key, child in parent._modules.items():
            if child is not None:
                parent._modules[key] = replaced.get(child, child)
    return replaced.get(root, root)
