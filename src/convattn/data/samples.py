"""Twenty test images of CIFAR-10 that come with the package: real images of ten classes, no download.

They show what a network does with real images; an accuracy on so few says little. `python scripts/samples.py FOLDER`
makes the two files from a copy of CIFAR-10.
"""

import json
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from convattn.data.dataset import ImageSplit

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
