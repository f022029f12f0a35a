"""How pictures become what a network takes: scaled, cropped and normalised as it was trained, or random numbers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from convattn.convert.network.running import draw_image
from convattn.data import load_digits, normalise
from convattn.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD
from convattn.errors import ArgumentError, MissingDependencyError
from convattn.networks import timm, torchvision
from convattn.networks.source import split_source

Prepare = Callable[[Any], Tensor]
"""Turns an RGB picture of pillow into a tensor."""

Colour = tuple[float, ...]
"""One number per channel."""


def preparation(source: str | None, network: nn.Module, folder: Path | None = None) -> Prepare:
    """Returns how a network's pictures are prepared.

    Args:
        source: What builds the network, or None. timm and torchvision say how the pictures of theirs are prepared.
        network: The network.
        folder: Its folder, or None. The record of a network that this library trained on CIFAR-10 or digits says what
            it saw.

    Returns:
        The function that turns a picture into a tensor.

    Raises:
        ArgumentError: Neither the source nor the folder says how.
        MissingDependencyError: The network was trained on digits, and scikit-learn is not installed.
    """
    data = trained_on(folder)
    if data == "cifar10":
        return _AsTrained("RGB", 32, CIFAR10_MEAN, CIFAR10_STD)
    if data == "digits":
        digits = load_digits()
        return _AsTrained("L", digits.image_shape[1], digits.mean, digits.std)
    home, name = split_source(source) if source else ("", "")
    if home == "timm":
        return timm.preparation(network)
    if home == "torchvision":
        return torchvision.preparation(name)
    raise ArgumentError(
        f"pictures cannot be prepared for this {type(network).__name__}: only timm, torchvision and the folder of a"
        " network trained on CIFAR-10 or digits say how; prepare them yourself, in an array (.npy) or from Python"
    )


@dataclass(frozen=True)
class _AsTrained:
    """Makes a picture what networks of this library were trained on."""

    mode: str  # of pillow: colours, or levels of grey
    size: int  # pixels along each axis
    mean: Colour
    std: Colour

    def __call__(self, picture: Any) -> Tensor:
        small, sizes = picture.convert(self.mode), (self.size, self.size)
        if small.size != sizes:
            small = small.resize(sizes, Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(small)).reshape(*sizes, -1).movedim(2, 0).contiguous()
        return normalise(pixels[None], self.mean, self.std)[0]


def trained_on(folder: Path | None) -> str | None:
    """Returns the name of the data that a network in a folder was trained on; None if nothing says it."""
    for file in () if folder is None else (folder / "card.json", folder / "record.json"):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return str((content.get("run") or content)["recipe"]["data"]["name"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return None


def normalisation(source: str | None, network: nn.Module, folder: Path | None) -> tuple[Colour, Colour] | None:
    """Returns the mean and the standard deviation with which pictures are normalised, where pixels are between 0 and 1.

    Args:
        source: What builds the network, or None.
        network: The network.
        folder: Its folder, or None.

    Returns:
        Both, or None where its preparation does not say them.
    """
    try:
        return _read_normalisation(preparation(source, network, folder))
    except (ArgumentError, MissingDependencyError):  # nobody says how its pictures are prepared
        return None


def _read_normalisation(prepare: Any) -> tuple[Colour, Colour] | None:
    """Reads the numbers of a transform, or of the last one in a chain."""
    for step in (prepare, *reversed(getattr(prepare, "transforms", ()))):
        mean, std = getattr(step, "mean", None), getattr(step, "std", None)
        if mean is not None and std is not None:
            return tuple(map(float, mean)), tuple(map(float, std))
    return None


def draw_images(network: nn.Module, shape: tuple[int, ...] | None = None) -> Float[Tensor, "images *sizes"]:
    """Draws one image of standard normal numbers in the network's dtype; `shape` leaves out the batch.

    Without a shape this is the size in `network.default_cfg`, for networks of this library the size that they were made
    for, or else 3 x 224 x 224.
    """
    own = getattr(network, "_hub_mixin_config", None)
    if shape is None and isinstance(own, Mapping) and not hasattr(network, "default_cfg"):
        shape = (own.get("in_channels", 3), *2 * (own.get("image_size", 32),))
    return draw_image(network, shape)
