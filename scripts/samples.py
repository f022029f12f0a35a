"""Writes the test images of CIFAR-10 that come with the package: python scripts/samples.py FOLDER.

FOLDER holds a copy of CIFAR-10, as `convattn.data.load_cifar10` reads it. Taken are the first two images of each class
in the test file, whatever they show. The pixels are written as PNG, which loses nothing.
"""

import io
import json
import sys
from pathlib import Path

import torch
from einops import rearrange
from PIL import Image

from convattn.data import ImageDataset, load_cifar10
from convattn.files import write_atomically
from convattn.networks.datasets import DESCRIPTION, IMAGES

TARGET = Path(__file__).parents[1] / "src" / "convattn" / "networks"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
OF_EACH = 2
CREDIT = (
    'CIFAR-10, test images (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009); the data set'
    " states no licence and asks to be cited"
)


def first_of_each(labels: torch.Tensor, count: int) -> list[int]:
    """Returns the first rows of each class, class by class."""
    return [
        row for label in labels.unique() for row in (labels == label).nonzero()[:count, 0].tolist()
    ]


def write(data: ImageDataset, folder: Path) -> None:
    """Writes the images and their description into a folder."""
    rows = first_of_each(data.test.labels, OF_EACH)
    pixels = rearrange(
        data.test.images[rows], "images channels rows cols -> (images rows) cols channels"
    )
    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, format="png", optimize=True)
    write_atomically(folder / IMAGES, buffer.getvalue())
    told = {
        "credit": CREDIT,
        "test_file_sha256": data.record.hashes["test-00000-of-00001.parquet"],
        "rows": rows,
        "labels": data.test.labels[rows].tolist(),
        "classes": CLASSES,
    }
    write_atomically(folder / DESCRIPTION, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    write(load_cifar10(sys.argv[1]), TARGET)
