"""Networks of torchvision: built by name, and images prepared as their weights expect them."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from convattn.errors import ArgumentError, MissingDependencyError

_REFUSED = ("weights", "weights_backbone")
"""Arguments by which weights would be fetched."""


def create(name: str, options: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    """Builds a network of `torchvision.models.list_models()`, with the default weights or with drawn ones.

    Drawn are also the weights of a backbone. ArgumentError says that there is no such network, or that an option would
    fetch weights.
    """
    models = _models()
    if name not in models.list_models():
        nearest = difflib.get_close_matches(name, models.list_models(), n=3)
        hint = f" did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        raise ArgumentError(f"unknown torchvision model {name!r}:{hint} torchvision.models.list_models() has them all")
    wrong = sorted(options.keys() & set(_REFUSED))
    if wrong:
        raise ArgumentError(f"options must be those of the architecture, but {', '.join(wrong)} would fetch weights")
    builder = models.get_model_builder(name)
    if pretrained:
        return builder(weights="DEFAULT", **options)
    chosen = dict(options)
    known = inspect.signature(builder).parameters
    if "weights_backbone" in known:
        chosen["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        chosen.setdefault("init_weights", True)  # said, or torchvision warns
    return builder(weights=None, **chosen)


def preparation(name: str) -> Callable[[Any], Tensor]:
    """Returns the function that prepares an RGB picture of pillow for the default weights of a network.

    A network without weights raises ArgumentError.
    """
    weights = _models().get_model_weights(name)
    if not len(weights):
        raise ArgumentError(f"torchvision has no weights for {name}, and so does not say how to prepare images")
    return weights["DEFAULT"].transforms()


def _models() -> ModuleType:
    try:
        import torchvision.models
    except ImportError:
        raise MissingDependencyError("torchvision", "timm") from None
    return torchvision.models
