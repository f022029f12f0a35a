"""Networks of timm: built by name, and images prepared as their weights expect them."""

import difflib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from convattn.errors import ArgumentError, MissingDependencyError

__all__ = ["create", "is_known", "preparation"]

_REFUSED = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Arguments by which weights would be read from somewhere."""


def create(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    """Builds a network.

    Args:
        name: One of `timm.list_models()`, with a tag of weights or without.
        options: Arguments of `timm.create_model`.
        pretrained: Whether to fetch weights, or to draw them.

    Returns:
        The network.

    Raises:
        ArgumentError: There is no such network, or an option is one by which weights are read.
        MissingDependencyError: timm is not installed.
    """
    timm = _timm()
    if not timm.is_model(name):
        nearest = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f" did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        raise ArgumentError(f"unknown timm model {name!r}:{hint} timm.list_models() has all {len(timm.list_models())}")
    wrong = sorted(options.keys() & set(_REFUSED))
    if wrong:
        raise ArgumentError(f"options must be those of the architecture, but {', '.join(wrong)} would read weights")
    return timm.create_model(name, pretrained=pretrained, **options)


def is_known(name: str) -> bool:
    """Tells whether timm is installed and has a network of a name; after a point a name has a tag that timm knows."""
    try:
        timm = _timm()
    except MissingDependencyError:
        return False
    return timm.is_model_pretrained(name) if "." in name else timm.is_model(name)


def preparation(network: nn.Module) -> Callable[[Any], Tensor]:
    """Returns what makes a tensor of a picture, by the configuration that timm keeps with the network.

    Args:
        network: A network that `create` built, converted or not.

    Returns:
        A function of an RGB picture of pillow.
    """
    _timm()
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    return create_transform(**resolve_model_data_config(network), is_training=False)  # type: ignore[return-value]


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError:
        raise MissingDependencyError("timm", "timm") from None
    return timm
