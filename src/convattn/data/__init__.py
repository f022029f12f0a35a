"""Image data sets in memory, and augmentation of whole batches on their device."""

from convattn.data.augment import cutmix, cutout, horizontal_flip, mirror, mixup, normalise, random_crop
from convattn.data.cifar10 import load_cifar10
from convattn.data.dataset import ImageDataset, ImageSplit
from convattn.data.embedded import Photograph, SampleImages, load_digits, load_photograph, load_samples

__all__ = [
    "ImageDataset",
    "ImageSplit",
    "Photograph",
    "SampleImages",
    "cutmix",
    "cutout",
    "horizontal_flip",
    "load_cifar10",
    "load_digits",
    "load_photograph",
    "load_samples",
    "mirror",
    "mixup",
    "normalise",
    "random_crop",
]
