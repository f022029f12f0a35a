"""Images that need no download: twenty of CIFAR-10, and the digits and photographs of scikit-learn."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from convattn.data.dataset import ImageDataset, ImageSplit
from convattn.errors import MissingDependencyError, UnknownNameError
from convattn.provenance import DataRecord

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
    try:
        import sklearn
        from sklearn import datasets, model_selection
    except ImportError:
        raise MissingDependencyError("scikit-learn", "train") from None
    levels, labels = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(levels).mul(255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    classes = torch.from_numpy(labels).to(torch.int64)
    train_rows, test_rows = model_selection.train_test_split(
        np.arange(len(classes)), test_size=TEST_IMAGES, random_state=SPLIT_SEED, stratify=labels
    )
    train, test = (ImageSplit(images[rows], classes[rows]) for rows in (train_rows, test_rows))
    scaled = train.images.double() / 255
    record = DataRecord(
        name="digits",
        source=f"scikit-learn {sklearn.__version__}, datasets.load_digits",
        hashes={"train": train.sha256(), "test": test.sha256()},
        counts={"train": len(train), "test": len(test)},
        split=f"stratified by class, train_test_split(test_size={TEST_IMAGES}, random_state={SPLIT_SEED})",
    )
    return ImageDataset(train, test, 10, (float(scaled.mean()),), (float(scaled.std()),), record)


PHOTOGRAPHS: Mapping[str, str] = MappingProxyType(
    {
        "china": "danielbuechele, flickr.com/photos/danielbuechele/6061409035, CC BY 2.0",
        "flower": "vultilion, flickr.com/photos/vultilion/6056698931, CC BY 2.0",
    }
)
"""Photographer, page and licence of each photograph, by its name."""


@dataclass(frozen=True, eq=False)
class Photograph:
    """A colour photograph."""

    pixels: UInt8[Tensor, "3 rows cols"]  # Values 0 to 255, (channels, rows, cols), channels red, green, blue
    name: str  # A key of `PHOTOGRAPHS`
    credit: str  # Photographer, page and licence; to be shown with the photograph


def load_photograph(name: str = "china") -> Photograph:
    """Loads a photograph of 427 rows and 640 columns.

    Args:
        name: "china" (a pagoda by a lake) or "flower" (a dahlia).

    Returns:
        The photograph, on the CPU.

    Raises:
        UnknownNameError: There is no photograph of that name.
        MissingDependencyError: scikit-learn is not installed.

    Example:
        >>> load_photograph("china").pixels.shape
        torch.Size([3, 427, 640])
    """
    if name not in PHOTOGRAPHS:
        raise UnknownNameError("photograph", name, PHOTOGRAPHS)
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingDependencyError("scikit-learn", "train") from None
    rows = torch.from_numpy(datasets.load_sample_image(f"{name}.jpg").copy())
    return Photograph(rearrange(rows, "rows cols channels -> channels rows cols").contiguous(), name, PHOTOGRAPHS[name])


IMAGES, DESCRIPTION = "cifar10-samples.png", "cifar10-samples.json"
"""Files of the package: the images below one another, and what they show."""

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

    Example:
        >>> samples = load_samples()
        >>> samples.split.images.shape, samples.classes[0]
        (torch.Size([20, 3, 32, 32]), 'airplane')
    """
    folder = resources.files("convattn.data")
    told = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    with (folder / IMAGES).open("rb") as file, Image.open(file) as image:
        pixels = torch.from_numpy(np.array(image))
    images = rearrange(pixels, "(images rows) cols channels -> images channels rows cols", rows=_SIZE).contiguous()
    split = ImageSplit(images, torch.tensor(told["labels"]))
    return SampleImages(split, tuple(told["classes"]), tuple(told["rows"]), told["credit"])
