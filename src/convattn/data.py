"""Image data sets in memory, and augmentation of whole batches on their device."""

from importlib import import_module
from typing import TYPE_CHECKING

from convattn.networks.datasets import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    ImageDataset,
    ImageSplit,
    SampleImages,
    load_digits,
    load_samples,
)
from convattn.networks.pictures import normalise

if TYPE_CHECKING:
    from convattn.lab.augment import horizontal_flip, mirror, random_crop
    from convattn.lab.cifar10 import load_cifar10

__all__ = [
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "ImageDataset",
    "ImageSplit",
    "SampleImages",
    "horizontal_flip",
    "load_cifar10",
    "load_digits",
    "load_samples",
    "mirror",
    "normalise",
    "random_crop",
]

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name at all

    def __getattr__(name: str) -> object:
        """Imports what belongs to the laboratory when it is first used."""
        if name not in __all__:
            message = f"module 'convattn.data' has no attribute {name!r}"
            raise AttributeError(message)
        home = "cifar10" if name == "load_cifar10" else "augment"
        return getattr(import_module(f"convattn.lab.{home}"), name)
