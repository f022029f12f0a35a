"""Packs colour images into few large lossless files, which a machine without network reads with Pillow alone.

    python -m evidence.card.packed FOLDER --parts 2    # CIFAR-10, from the folder that CONVATTN_CIFAR10 names

WebP finds what neighbours have in common, so that images lie below one another, 500 in a file. Files are dealt out to
the folders FOLDER/0, FOLDER/1 and so on. `unpacked` puts all parts together again, and compares hashes of the pixels.
"""

import io
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from convattn.data import ImageDataset, ImageSplit
from convattn.errors import DataError
from convattn.files import write_atomically
from convattn.provenance import DataRecord
from evidence.results import cifar10, new_parser

EACH = 500
"""Images in a file: WebP allows 16,383 rows, and an image has 32."""

DESCRIPTION = "data.json"
"""File of each part with labels, hashes and the record of the data."""

_THREADS = 2
_COLUMN = "images channels rows cols -> (images rows) cols channels"


def pack(data: ImageDataset, folder: Path, parts: int) -> list[int]:
    """Writes images and their description, and returns the bytes of each part.

    Args:
        data: Images of three channels.
        folder: Where the folders of the parts are made.
        parts: Number of parts, at least 1.

    Returns:
        The size of each part's files together.
    """
    places = [folder / str(number) for number in range(parts)]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / DESCRIPTION, json.dumps(_description(data)))
    with ThreadPoolExecutor(_THREADS) as pool:
        files = list(pool.map(_encoded, _columns(data)))
    for number, (name, content) in enumerate(files):
        write_atomically(places[number % parts] / name, content)
    return [sum(file.stat().st_size for file in place.iterdir()) for place in places]


def _description(data: ImageDataset) -> dict[str, object]:
    """Describes the data in JSON types."""
    splits = {"train": data.train, "test": data.test}
    return {
        "record": asdict(data.record),
        "num_classes": data.num_classes,
        "mean": data.mean,
        "std": data.std,
        "labels": {name: split.labels.tolist() for name, split in splits.items()},
        "hashes": {name: split.sha256() for name, split in splits.items()},
    }


def _columns(data: ImageDataset) -> Iterator[tuple[str, Tensor]]:
    """Yields the name of each file and its images."""
    for name, split in (("train", data.train), ("test", data.test)):
        for number, images in enumerate(split.images.split(EACH)):
            yield f"{name}-{number:05d}.webp", images


def _encoded(column: tuple[str, Tensor]) -> tuple[str, bytes]:
    """Encodes the images of a file without loss."""
    name, images = column
    pixels = np.ascontiguousarray(rearrange(images, _COLUMN).numpy())
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", lossless=True, quality=75, method=4)
    return name, buffer.getvalue()


def unpacked(folders: Sequence[Path]) -> ImageDataset:
    """Reads the images of all parts.

    Args:
        folders: Folders of the parts, in any order.

    Returns:
        The images that were packed, with their record.

    Raises:
        DataError: The pixels or labels are not those that were packed, as where a part is missing.
    """
    described = json.loads((folders[0] / DESCRIPTION).read_text(encoding="utf-8"))
    files: list[Path] = []
    for folder in folders:
        files += folder.glob("*.webp")
    files.sort(key=lambda file: file.name)
    with ThreadPoolExecutor() as pool:
        decoded = list(pool.map(_decoded, files))
    splits = {}
    for name, labels in described["labels"].items():
        columns = [images for file, images in zip(files, decoded, strict=True) if name in file.name]
        found = sum(map(len, columns))
        if found != len(labels):
            raise DataError(
                f"the {name} split must have {len(labels)} images, but the parts hold {found}: is one missing?"
            )
        splits[name] = ImageSplit(torch.cat(columns), torch.tensor(labels))
        if splits[name].sha256() != described["hashes"][name]:
            raise DataError(f"the images of the {name} split are not those that were packed")
    return ImageDataset(
        splits["train"],
        splits["test"],
        described["num_classes"],
        tuple(described["mean"]),
        tuple(described["std"]),
        DataRecord(**described["record"]),
    )


def _decoded(file: Path) -> Tensor:
    """Decodes the images of a file, square as they are."""
    with Image.open(file) as image:
        pixels = torch.from_numpy(np.array(image))
    return rearrange(
        pixels,
        "(images rows) cols channels -> images channels rows cols",
        rows=pixels.shape[1],
    ).contiguous()


def main() -> None:
    """Packs CIFAR-10."""
    parser = new_parser(__doc__, "folder")
    parser.add_argument("--parts", type=int, default=2, help="folders to deal the files out to")
    options = parser.parse_args()
    sizes = pack(cifar10(), options.folder, options.parts)
    print(*[f"part {number}: {size / 2**20:.1f} MiB" for number, size in enumerate(sizes)])


if __name__ == "__main__":
    main()
