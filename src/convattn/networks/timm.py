"""Networks of timm: built by name, and images prepared as their weights expect them."""

import difflib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from convattn.errors import ArgumentError, MissingDependencyError

_REFUSED = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Arguments by which weights would be read from somewhere."""


def create(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    """Builds a network of `timm.list_models()`, with fetched or drawn weights.

    ArgumentError says that there is no such network, or that an option would read weights.
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
    """Tells whether timm is installed and has this network; what follows a point in the name is a tag of weights."""
    try:
        timm = _timm()
    except MissingDependencyError:
        return False
    return timm.is_model_pretrained(name) if "." in name else timm.is_model(name)


def preparation(network: nn.Module) -> Callable[[Any], Tensor]:
    """Returns the function that prepares an RGB picture of pillow as the configuration of a network says.

    The size is that for which the network was built, which options may have changed.
    """
    _timm()
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    config = resolve_model_data_config(network)
    built_for = getattr(getattr(network, "patch_embed", None), "img_size", None)
    if built_for is not None:
        config["input_size"] = (config["input_size"][0], *built_for)
    return create_transform(**config, is_training=False)  # type: ignore[return-value]


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError:
        raise MissingDependencyError("timm", "timm") from None
    return timm
