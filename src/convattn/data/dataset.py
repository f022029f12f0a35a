"""Labelled images in memory, with hashes that tell later exactly which ones they were."""

import hashlib
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from convattn.errors import DataError
from convattn.provenance import DataRecord

_HELD_OUT_SEED = 0


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images and their labels, in one fixed order.

    Raises:
        DataError: The split is empty, or the numbers of images and labels differ.
    """

    images: UInt8[Tensor, "images channels rows cols"]  # Pixel values 0 to 255, (images, channels, rows, cols)
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
    mean: tuple[float, ...]  # Mean of each channel that normalises, in units of the full range [0, 1]
    std: tuple[float, ...]  # Standard deviation of each channel, in the same units
    record: DataRecord  # Name, source, hashes, counts and how the splits were made

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
        calls them "validation", and has their SHA-256. No image of the real test split is left.

        Example:
            >>> from convattn.data import load_digits
            >>> held = load_digits().held_out(400)
            >>> len(held.train), len(held.test), held.record.counts
            (1037, 400, {'train': 1037, 'validation': 400})
        """
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(_HELD_OUT_SEED))
        measured, learnt = order[:count], order[count:].sort().values
        train, validation = (
            ImageSplit(self.train.images[rows], self.train.labels[rows]) for rows in (learnt, measured)
        )
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
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of every image."""
        channels, rows, cols = self.train.images.shape[1:]
        return channels, rows, cols
