"""Labelled images in memory, their normalisation, and images that need no download.

`load_samples` has twenty images of CIFAR-10; `load_digits` takes its own from scikit-learn.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64, UInt8
from torch import Tensor

from convattn.errors import DataError, optional_module, require
from convattn.networks.pictures import Preparation, pillow
from convattn.provenance import DataRecord

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)
"""Mean and standard deviation of the channels of CIFAR-10, with which the paper normalises."""

_HELD_OUT_SEED = 0


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images and their labels, in one fixed order.

    Raises:
        DataError: The split is empty, or the numbers of images and labels differ.
    """

    # Pixel values 0 to 255, (images, channels, rows, cols)
    images: UInt8[Tensor, "images channels rows cols"]
    labels: Int64[Tensor, " labels"]  # Class of each image, from 0

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or len(self.images) == 0:
            raise DataError(
                f"a split needs at least one image and one label for each: "
                f"it has {len(self.images)} images and {len(self.labels)} labels"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def sha256(self) -> str:
        """Returns the SHA-256 of the pixels followed by the labels (int64, little endian)."""
        digest = hashlib.sha256(self.images.contiguous().cpu().numpy().tobytes())
        digest.update(self.labels.cpu().numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def take(self, rows: Any) -> "ImageSplit":
        """Returns the images at an index of tensors: their numbers, or for each whether it is taken."""
        return ImageSplit(self.images[rows], self.labels[rows])

    def to(self, device: torch.device | str) -> "ImageSplit":
        """Returns the split with both tensors on a device."""
        return ImageSplit(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A training and a test split of labelled images.

    Raises:
        DataError: A label is outside [0, num_classes), or the splits differ in image shape.
    """

    train: ImageSplit  # Images to learn from
    test: ImageSplit  # Images to measure on: of the test split, or held-out training images
    num_classes: int  # Number of classes; labels are below it
    # Mean of each channel that normalises, in units of the full range [0, 1]
    mean: tuple[float, ...]
    std: tuple[float, ...]  # Standard deviation of each channel, in the same units
    record: DataRecord  # Name, source, hashes, counts and how the splits were made
    classes: tuple[str, ...] = ()  # Name of every class of one's own images

    def __post_init__(self) -> None:
        for name, split in (("train", self.train), ("test", self.test)):
            wrong = ((split.labels < 0) | (split.labels >= self.num_classes)).nonzero()
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"{self.record.name}, {name} split: row {row}: label must be from 0 to {self.num_classes - 1}, "
                    f"but is {int(split.labels[row])}"
                )
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise DataError(
                f"{self.record.name}: both splits must hold images of one shape, but train has "
                f"{tuple(self.train.images.shape[1:])} and test {tuple(self.test.images.shape[1:])}"
            )

    def held_out(self, count: int) -> "ImageDataset":
        """Returns a data set whose test split is `count` of the training images, and not in the training split.

        They are the first of ``torch.randperm(len(train))`` with the seed 0; the others keep their order. The record
        calls them "validation", and has their SHA-256; its others are of the splits as they were. No image of the real
        test split is left. A count that leaves no image in one of the splits raises ArgumentError.

        Example:
            >>> from convattn.data import load_digits
            >>> held = load_digits().held_out(400)
            >>> len(held.train), len(held.test), held.record.counts
            (1037, 400, {'train': 1037, 'validation': 400})
        """
        expected = f"from 1 to {len(self.train) - 1}, to leave some to train"
        require(0 < count < len(self.train), "held_out", expected, count)
        order = torch.randperm(
            len(self.train),
            generator=torch.Generator().manual_seed(_HELD_OUT_SEED),
            device="cpu",
        )
        measured, learnt = order[:count], order[count:].sort().values
        train, validation = self.train.take(learnt), self.train.take(measured)
        record = replace(
            self.record,
            hashes={**self.record.hashes, "validation": validation.sha256()},
            counts={"train": len(train), "validation": len(validation)},
            split=f"{self.record.split}; {count} training images held out: torch.randperm, seed {_HELD_OUT_SEED}",
        )
        return replace(self, train=train, test=validation, record=record)

    @property
    def name(self) -> str:
        """Name of the data set and the copy."""
        return self.record.name

    @property
    def preparation(self) -> Preparation | None:
        """How pictures are prepared as these images; None unless they are square, and one's own."""
        _, rows, cols = self.image_shape
        if not self.classes or rows != cols:
            return None
        return Preparation(rows, self.mean, self.std, self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of every image."""
        channels, rows, cols = self.train.images.shape[1:]
        return channels, rows, cols


TEST_IMAGES = 360
SPLIT_SEED = 0


def load_digits() -> ImageDataset:
    """Loads the 1797 grey 8 x 8 digits of the UCI test set, with a fixed split: 1437 to train, 360 to test.

    The split is stratified by class (`sklearn.model_selection.train_test_split`, ``random_state=0``). Grey levels 0
    to 16 are scaled to 0 to 255 by ``round(255 · level / 16)``, which loses nothing. The mean and the standard
    deviation are those of the training split.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998.

    Returns:
        The data set, on the CPU.

    Raises:
        MissingDependencyError: scikit-learn is not installed.

    Example:
        >>> digits = load_digits()
        >>> digits.image_shape, len(digits.train), len(digits.test), digits.num_classes
        ((1, 8, 8), 1437, 360, 10)
    """
    sklearn = optional_module("sklearn.datasets", "train")
    optional_module("sklearn.model_selection", "train")
    levels, labels = sklearn.datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(levels).mul(255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    whole = ImageSplit(images, torch.from_numpy(labels).to(torch.int64))
    both = sklearn.model_selection.train_test_split(
        np.arange(len(whole)), test_size=TEST_IMAGES, random_state=SPLIT_SEED, stratify=labels
    )
    train, test = map(whole.take, both)
    scaled = train.images.double() / 255
    record = DataRecord(
        name="digits",
        source=f"scikit-learn {sklearn.__version__}, datasets.load_digits",
        hashes={"train": train.sha256(), "test": test.sha256()},
        counts={"train": len(train), "test": len(test)},
        split=f"stratified by class, train_test_split(test_size={TEST_IMAGES}, random_state={SPLIT_SEED})",
    )
    return ImageDataset(train, test, 10, (float(scaled.mean()),), (float(scaled.std()),), record)


IMAGE_SIZES = {"cifar10": 32, "digits": 8}
"""Rows and columns of the images of the data sets that the library knows by name."""

IMAGES, DESCRIPTION = "cifar10-samples.png", "cifar10-samples.json"
"""Files of the package: the images below one another, and their labels, rows and credit."""

_SIZE = 32


@dataclass(frozen=True, eq=False)
class SampleImages:
    """A few labelled images of a data set."""

    split: ImageSplit  # The images and the class of each
    classes: tuple[str, ...]  # Name of every class
    rows: tuple[int, ...]  # Row of each image in the file that it is from
    credit: str  # Where the images are from; to be shown with them


def load_samples() -> SampleImages:
    """Loads the first two images of each class in the test file of a copy of CIFAR-10, in the order of the classes.

    Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

    Returns:
        The images, 32 x 32 and in colour, on the CPU.

    Raises:
        MissingDependencyError: pillow is not installed.

    Example:
        >>> samples = load_samples()
        >>> samples.split.images.shape, samples.classes[0]
        (torch.Size([20, 3, 32, 32]), 'airplane')
    """
    folder = resources.files("convattn.networks")
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    with (folder / IMAGES).open("rb") as file, pillow().Image.open(file) as image:
        pixels = torch.from_numpy(np.array(image))
    images = rearrange(
        pixels, "(images rows) cols channels -> images channels rows cols", rows=_SIZE
    ).contiguous()
    split = ImageSplit(images, torch.tensor(description["labels"]))
    return SampleImages(
        split, tuple(description["classes"]), tuple(description["rows"]), description["credit"]
    )
