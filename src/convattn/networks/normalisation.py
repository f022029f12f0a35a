"""The mean and the standard deviation with which a network's pictures are normalised."""

from pathlib import Path
from typing import Any

from torch import nn

from convattn.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD
from convattn.errors import ArgumentError
from convattn.networks.image_files import trained_on
from convattn.networks.images import preparation

Colour = tuple[float, ...]
"""One number per channel."""


def normalisation(source: str | None, network: nn.Module, folder: Path | None) -> tuple[Colour, Colour] | None:
    """Returns the mean and the standard deviation, in units where pixels are between 0 and 1.

    Args:
        source: What builds the network, or None.
        network: The network.
        folder: Its folder, or None.

    Returns:
        Both, or None where its preparation does not say them.
    """
    if trained_on(folder) == "cifar10":
        return CIFAR10_MEAN, CIFAR10_STD
    try:
        return _read(preparation(source, network))
    except ArgumentError:  # nobody says how its pictures are prepared
        return None


def _read(prepare: Any) -> tuple[Colour, Colour] | None:
    """Reads the numbers of a transform of torchvision, or of the last one in a chain."""
    for step in (prepare, *reversed(getattr(prepare, "transforms", ()))):
        mean, std = getattr(step, "mean", None), getattr(step, "std", None)
        if mean is not None and std is not None:
            return tuple(map(float, mean)), tuple(map(float, std))
    return None
