"""A user's own images as a data set: from a folder of pictures, or from tensors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from convattn.errors import ArgumentError, DataError, must_be
from convattn.files import AnyPath, as_path
from convattn.grid import whole_number
from convattn.networks.datasets import IMAGE_SIZES, ImageDataset, ImageSplit
from convattn.networks.pictures import picture_files, read_picture, to_square
from convattn.provenance import DataRecord

FOLDER_SIZE = 32
"""Rows and columns of the images of a folder, unless another size is asked for: those of CIFAR-10."""

_TEST_SHARE = 5
"""One in so many images of each class is held out to test where there are no test images."""

_SEED = 0


def load_folder(path: AnyPath, *, size: int = FOLDER_SIZE) -> ImageDataset:
    """Reads pictures in a folder for each class, or in folders "train" and "test" (or "val") with one for each class.

    A folder "test" without a folder for each class, as of a competition, is left out.

    Pictures are cropped at the middle to a square, and resized by bicubic interpolation. If all are grey, images have
    one channel, else three. Classes are numbered in the order of their names. Without a folder to test, images are held
    out as in `dataset_from_tensors`.

    Args:
        path: The folder.
        size: Rows and columns of an image.

    Returns:
        The data set, on the CPU.

    Raises:
        ArgumentError: `path` is no folder.
        DataError: There are fewer than two classes, a class has too few pictures or is only tested, or a picture cannot
            be read.
        MissingDependencyError: pillow is not installed.

    Example:
        >>> load_folder("no/such/folder")
        Traceback (most recent call last):
        convattn.errors.ArgumentError: path must be a folder of pictures, but is 'no/such/folder'
    """
    place = as_path(path, "path")
    size = whole_number("size", size)
    if not place.is_dir():
        raise ArgumentError(must_be("path", "a folder of pictures", str(path)))
    splits = [place]
    if _class_folders(place / "train"):
        tests = [place / name for name in ("test", "val") if _class_folders(place / name)]
        splits = [place / "train", *tests[:1]]
    classes = [folder.name for folder in _class_folders(splits[0])]
    if len(classes) < 2:
        raise DataError(
            f"{splits[0]} must hold a folder of pictures for each of two or more classes, but has"
            f" {len(classes)} folders"
        )
    pictures, labels, sizes = [], [], []
    for split in splits:
        for folder in _class_folders(split):
            if folder.name not in classes:
                raise DataError(f"{folder} is a class that {splits[0]} does not have")
            for file in picture_files(folder):
                pictures.append(to_square(read_picture(file, keep_grey=True), size))
                labels.append(classes.index(folder.name))
        sizes.append(len(labels) - sum(sizes))
    mode = "L" if all(picture.mode == "L" for picture in pictures) else "RGB"
    stacked = np.stack([np.array(picture.convert(mode)) for picture in pictures])
    images = torch.from_numpy(stacked).reshape(len(labels), size, size, -1).movedim(3, 1)
    train, *tests = zip(images.split(sizes), torch.tensor(labels).split(sizes), strict=True)
    name = f"folder {place.resolve().name}"
    return dataset_from_tensors(*train, test=next(iter(tests), None), classes=classes, name=name)


def _class_folders(place: Path) -> list[Path]:
    """Returns the folders of classes in a folder, which need not be there, by name."""
    return sorted(item for item in place.glob("[!.]*") if item.is_dir())


def dataset_from_tensors(
    images: Tensor,
    labels: Tensor,
    *,
    test: tuple[Tensor, Tensor] | None = None,
    classes: Sequence[str] = (),
    name: str = "own images",
) -> ImageDataset:
    """Makes a data set of images in memory; the training images give the mean and the standard deviation.

    Args:
        images: Training images (images, channels, rows, cols): bytes, or floating-point numbers in [0, 1], which are
            rounded to bytes.
        labels: Class of each, whole numbers from 0.
        test: Images and labels to measure on. Without them one in five images of each class is held out, at least one:
            the first of ``torch.randperm`` in the class, with the seed 0.
        classes: Name of each class; by default its number.
        name: Name of the data set, for its record; not one that the library knows ("cifar10", "digits").

    Returns:
        The data set, on the CPU.

    Raises:
        ArgumentError: The images or labels are of another form or range, or there are none; or the name is a known one.
        DataError: There is not a label from 0 on for each image, a class has one image, or all pixels of a channel are
            the same.

    Example:
        >>> images, labels = torch.rand(20, 3, 8, 8), torch.arange(20) % 2
        >>> data = dataset_from_tensors(images, labels)
        >>> data.record.counts, data.num_classes
        ({'train': 16, 'test': 4}, 2)
    """
    if name.partition(" (")[0] in IMAGE_SIZES:
        raise ArgumentError(must_be("name", "a name of your own, of no known data set", name))
    train, how = _as_split("images", images, labels), "as given"
    if test is None:
        train, held = _split_by_class(train)
        how = f"one in {_TEST_SHARE} of each class to test: torch.randperm, seed {_SEED}"
    else:
        held = _as_split("test", *test)
    names = tuple(classes) or tuple(map(str, range(int(train.labels.max()) + 1)))
    mean, std = _mean_and_std(train.images)
    hashes = {"train": train.sha256(), "test": held.sha256()}
    record = DataRecord(
        name=f"{name} (train {hashes['train'][:12]})",
        source="a user's own images",
        hashes=hashes,
        counts={"train": len(train), "test": len(held)},
        split=how,
    )
    return ImageDataset(train, held, len(names), mean, std, record, names)


def _as_split(argument: str, images: Tensor, labels: Tensor) -> ImageSplit:
    """Checks images and labels of a user, and returns them as bytes and whole numbers."""
    for name, numbers in ((argument, images), ("labels", labels)):
        if not isinstance(numbers, Tensor) or not numbers.numel():
            raise ArgumentError(must_be(name, "a tensor that is not empty", numbers))
    if images.is_floating_point() and images.min() >= 0 and images.max() <= 1:
        images = images.mul(255).round().to(torch.uint8)
    if images.ndim != 4 or images.dtype != torch.uint8:
        low, high = images.min().item(), images.max().item()
        raise ArgumentError(
            f"{argument} must be bytes, or floating-point numbers in [0, 1], of shape (images, channels, rows, cols),"
            f" but are {images.dtype} of shape {tuple(images.shape)} from {low:g} to {high:g}"
        )
    if labels.ndim != 1 or labels.is_floating_point():
        came = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ArgumentError(f"labels must be a whole number for each image, but are {came}")
    return ImageSplit(images.contiguous().cpu(), labels.to("cpu", torch.int64))


def _split_by_class(split: ImageSplit) -> tuple[ImageSplit, ImageSplit]:
    """Holds out a share of each class, drawn with a fixed seed; both parts keep the order of the images."""
    generator = torch.Generator().manual_seed(_SEED)
    is_test = torch.zeros(len(split), dtype=torch.bool)
    for label in split.labels.unique().tolist():
        rows = (split.labels == label).nonzero().flatten()
        if len(rows) < 2:
            raise DataError(f"class {label} has one image: it needs two, one of them to test")
        order = torch.randperm(len(rows), generator=generator, device="cpu")
        is_test[rows[order[: max(1, len(rows) // _TEST_SHARE)]]] = True
    return split.take(~is_test), split.take(is_test)


def _mean_and_std(
    images: UInt8[Tensor, "images channels rows cols"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel, in units of the full range."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    shares = torch.stack(counts).double() / images[:, 0].numel()
    means = (shares * levels).sum(dim=1)
    deviations = (shares * (levels - means[:, None]).square()).sum(dim=1).sqrt().tolist()
    if 0 in deviations:
        raise DataError(
            "the training images must vary in each channel, by which they are normalised, but all pixels of channel"
            f" {deviations.index(0)}, from 0, are the same: leave it out"
        )
    return tuple(means.tolist()), tuple(deviations)
