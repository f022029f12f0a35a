"""Image data sets in memory, and augmentation of whole batches on their device."""

from convattn.lab.augment import crop, mirror
from convattn.lab.cifar10 import load_cifar10
from convattn.lab.own_images import dataset_from_tensors, load_folder
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
