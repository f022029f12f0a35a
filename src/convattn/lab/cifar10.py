"""CIFAR-10 from parquet files in the Hub's schema: a local folder, or the Hub's own copy.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

import io
from functools import partial
from pathlib import Path

import numpy as np
import torch

from convattn.errors import DataError, optional_module
from convattn.files import AnyPath
from convattn.networks.datasets import CIFAR10_MEAN, CIFAR10_STD, ImageDataset, ImageSplit
from convattn.provenance import DataRecord
from convattn.sealed import file_sha256

_FILES = {"train": "train-00000-of-00001.parquet", "test": "test-00000-of-00001.parquet"}
_REPOSITORY, _SUBFOLDER = "uoft-cs/cifar10", "plain_text"
_COLUMNS = {"img": "struct<bytes: binary, path: string>", "label": "int64"}
_SIZE = (32, 32)
_CLASSES = 10


def load_cifar10(folder: AnyPath | None = None) -> ImageDataset:
    """Loads CIFAR-10: 32 x 32 colour images of ten classes, 50,000 to train and 10,000 to test.

    Every row of ``train-00000-of-00001.parquet`` and ``test-00000-of-00001.parquet`` holds ``img`` (a struct of
    ``bytes``, an encoded image, and ``path``) and ``label`` (an integer). The splits are the files; the numbers of
    rows found and the SHA-256 of both files go into the record, because a copy with other pixels gives other
    accuracies. The normalisation is the paper's: mean (0.4914, 0.4822, 0.4465), standard deviation (0.2023, 0.1994,
    0.2010).

    Args:
        folder: Folder with the two files. Without one they come from the Hub (``uoft-cs/cifar10``, about 140 MB, kept
            in its cache).

    Returns:
        The data set, on the CPU.

    Raises:
        DataError: A file is missing or unreadable, has wrong columns, or holds a wrong image or label; or the Hub
            cannot be reached.
        MissingDependencyError: pyarrow, pillow, or for the Hub huggingface-hub, is not installed.

    Example:
        >>> load_cifar10("no/such/folder")
        Traceback (most recent call last):
        convattn.errors.DataError: CIFAR-10: there is no folder no/such/folder
    """
    find = _fetch if folder is None else partial(_existing, Path(folder))
    paths = {name: find(file) for name, file in _FILES.items()}
    origin = "local folder"
    if folder is None:
        revisions = sorted({path.parents[1].name for path in paths.values()})
        origin = f"Hugging Face Hub, {_REPOSITORY}, revision {' and '.join(revisions)}"
    splits = {name: _read_split(path) for name, path in paths.items()}
    hashes = {path.name: file_sha256(path) for path in paths.values()}
    record = DataRecord(
        name=f"cifar10 (train file {hashes[_FILES['train']][:12]})",
        source=origin,
        hashes=hashes,
        counts={name: len(split) for name, split in splits.items()},
        split="one parquet file for each split",
    )
    return ImageDataset(
        splits["train"], splits["test"], _CLASSES, CIFAR10_MEAN, CIFAR10_STD, record
    )


def holds_cifar10(folder: Path) -> bool:
    """Returns whether a folder has a file of CIFAR-10."""
    return any((folder / file).is_file() for file in _FILES.values())


def _fetch(name: str) -> Path:
    """Fetches a file into the Hub's cache, unless it is there."""
    hub = optional_module("huggingface_hub", "train")
    place = f"{_SUBFOLDER}/{name}"
    try:
        return Path(hub.hf_hub_download(_REPOSITORY, place, repo_type="dataset"))
    except OSError as error:
        raise DataError(
            f"cannot fetch {place} of {_REPOSITORY} from the Hub ({type(error).__name__}: {error}); "
            f"give a local folder that holds {' and '.join(_FILES.values())} instead"
        ) from None


def _existing(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"CIFAR-10: there is no folder {folder}")
    if not (folder / name).is_file():
        raise DataError(
            f"CIFAR-10: {folder} has no file {name}; expected {' and '.join(_FILES.values())}"
        )
    return folder / name


def _read_split(path: Path) -> ImageSplit:
    pa = optional_module("pyarrow.parquet", "train")
    try:
        table = pa.parquet.read_table(path)
        columns = {field.name: str(field.type) for field in table.schema}
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from None
    if {**columns, **_COLUMNS} != columns:
        raise DataError(f"{path}: expected the columns {_COLUMNS}, but found {columns}")
    if table.num_rows == 0:
        raise DataError(f"{path}: the file has no rows")
    encoded = table["img"].combine_chunks().field("bytes").to_pylist()
    # in one thread: so small an image is Python's work
    pixels = np.stack([_decode(path, row, item) for row, item in enumerate(encoded)])
    images = torch.from_numpy(pixels).movedim(-1, 1).contiguous()
    labels = torch.tensor(table["label"].fill_null(-1).to_pylist())  # -1 is refused with others
    return ImageSplit(images, labels)


def _decode(path: Path, row: int, encoded: bytes | None) -> np.ndarray:
    """Decodes one image to (rows, cols, 3) bytes."""
    pil = optional_module("PIL.Image", "train")
    try:
        with pil.Image.open(io.BytesIO(encoded or b"")) as image:
            pixels = np.asarray(image.convert("RGB"))
    except Exception as error:  # noqa: BLE001 - decoders raise errors of every kind on damaged files
        raise DataError(f"{path}: row {row}: cannot decode the image ({error})") from None
    if pixels.shape[:2] != _SIZE:
        rows, cols = pixels.shape[:2]
        raise DataError(
            f"{path}: row {row}: the image must be 32 x 32 pixels, but is {rows} x {cols}"
        )
    return pixels
