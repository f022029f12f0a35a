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
    from convattn.lab.augment import crop, mirror
    from convattn.lab.cifar10 import load_cifar10
    from convattn.lab.own_images import dataset_from_tensors, load_folder

__all__ = [
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "ImageDataset",
    "ImageSplit",
    "SampleImages",
    "crop",
    "dataset_from_tensors",
    "load_cifar10",
    "load_digits",
    "load_folder",
    "load_samples",
    "mirror",
    "normalise",
]

_HOMES = {
    "dataset_from_tensors": "own_images",
    "load_cifar10": "cifar10",
    "load_folder": "own_images",
}
"""Files of the laboratory of the names that are not in `augment`."""

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name at all

    def __getattr__(name: str) -> object:
        """Imports what belongs to the laboratory when it is first used."""
        if name not in __all__:
            message = f"module 'convattn.data' has no attribute {name!r}"
            raise AttributeError(message)
        home = _HOMES.get(name, "augment")
        return getattr(import_module(f"convattn.lab.{home}"), name)
