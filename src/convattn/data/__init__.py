"""Image data sets in memory, and augmentation of whole batches on their device."""

from convattn.data.augment import cutout, horizontal_flip, mirror, normalise, random_crop
from convattn.data.cifar10 import load_cifar10
from convattn.data.dataset import ImageDataset, ImageSplit
from convattn.data.digits import load_digits
from convattn.data.mixing import cutmix, mixup
from convattn.data.photograph import Photograph, load_photograph
from convattn.data.samples import SampleImages, load_samples

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
