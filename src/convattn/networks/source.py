"""Where the architecture of a network comes from: a name in timm or torchvision, or a class of this library."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from convattn.errors import ArgumentError, CheckpointError, ConvAttnError, UnknownNameError, must_be, without_trace
from convattn.models import NETWORKS
from convattn.models.classifier import ImageClassifier
from convattn.networks import timm, torchvision

HOMES = ("convattn", "timm", "torchvision")
"""What may stand before the colon of a source."""


def split_source(source: str) -> tuple[str, str]:
    """Splits a source such as "timm:NAME" into home and name.

    A source of another form raises ArgumentError, an unknown home UnknownNameError.
    """
    home, colon, name = source.partition(":")
    if not (colon and name):
        raise ArgumentError(must_be("source", '"timm:NAME", "torchvision:NAME" or "convattn:CLASS"', source))
    if home not in HOMES:
        raise UnknownNameError("source", home, HOMES)
    return home, name


def create_network(source: str, options: Mapping[str, Any] | None = None, *, pretrained: bool = False) -> nn.Module:
    """Builds a network by its source.

    torch's random numbers are left as they were.

    Args:
        source: "timm:NAME", "torchvision:NAME" or "convattn:CLASS".
        options: Further arguments of its builder.
        pretrained: Whether to fetch the weights that its home has for it; otherwise they are drawn.

    Returns:
        The network, in training mode like any new module.

    Raises:
        ArgumentError: There is no such network, or it does not take the options, or there are no weights for it.
        CheckpointError: The weights cannot be fetched.
        UnknownNameError: There is no such class in this library.
        ConvAttnError: As its builder raises it, for instance where timm or torchvision is not installed.

    Example:
        >>> create_network("convattn:ConvNet", {"width": 8, "depth": 1}).width
        8
    """
    home, name = split_source(source)
    chosen = dict(options or {})
    if home == "convattn" and name not in NETWORKS:
        raise UnknownNameError("network", name, NETWORKS)
    if home == "convattn" and pretrained:
        raise ArgumentError(f"{source} has no pretrained weights")
    try:
        with torch.random.fork_rng(devices=[]):
            if home == "convattn":
                return NETWORKS[name](**chosen)
            return (timm if home == "timm" else torchvision).create(name, chosen, pretrained=pretrained)
    except ConvAttnError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {without_trace(error)}"
        if pretrained:
            raise CheckpointError(f"cannot fetch the weights of {source}: {reason}") from error
        raise ArgumentError(f"options must fit {source}, but with {chosen} it raised {reason}") from error


def own_source(network: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """Returns the source and the options of a network of this library; None of any other."""
    name = type(network).__name__
    if not isinstance(network, ImageClassifier) or NETWORKS.get(name) is not type(network):
        return None
    return f"convattn:{name}", dict(network.arguments)
