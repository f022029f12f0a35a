"""Images of a user: pictures of a folder or a parquet file, or an array; each is read when it is asked for."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from PIL import Image
from pyarrow import parquet
from torch import Tensor

from convattn.errors import ArgumentError, DataError, must_be
from convattn.networks.pictures import PictureError, decode_picture
from convattn.networks.preparation import Prepare

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of files that are read as pictures."""

_IMAGE_COLUMNS, _TOKEN_COLUMNS = ("image", "img"), ("input_ids", "tokens", "token_ids")


@final
class Pictures(Sequence[Tensor]):
    """Pictures that are decoded and prepared one by one."""

    def __init__(self, sources: Sequence[tuple[str, Callable[[], Any]]], prepare: Prepare) -> None:
        """Takes the name of each picture, for errors, with a function that returns a file or a path to open."""
        self._sources, self._prepare = sources, prepare

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each picture: of its file, or where it is in a table."""
        return tuple(Path(name).name for name, _ in self._sources)

    def __len__(self) -> int:
        """Returns the number of pictures."""
        return len(self._sources)

    def __getitem__(self, number: Any) -> Any:
        """Returns a prepared picture; one that cannot be read raises DataError."""
        name, source = self._sources[number]
        try:
            picture = decode_picture(source())
        except (OSError, PictureError) as error:
            raise DataError(f"cannot read the image {name}: {error}") from None
        return self._prepare(picture)


def open_images(path: Path, prepare: Callable[[], Prepare], *, limit: int | None = None) -> Sequence[Tensor] | Tensor:
    """Opens a folder of pictures, a parquet file of pictures or token ids, or an array of numpy.

    Args:
        path: A folder; a file that ends in .parquet, with a column image or img of pictures or a column input_ids of
            token ids; or one that ends in .npy: (images, rows, cols, 3) of bytes are pictures, whole numbers (texts,
            length) are token ids, and floating-point numbers are what the network takes.
        prepare: Returns how pictures are prepared; called only if there are any.
        limit: How many to take, in the order of their names or rows; None takes all.

    Returns:
        The images, most of them read when they are asked for.

    Raises:
        ArgumentError: There is nothing at the path, or a file of another ending.
        DataError: The file is damaged, or holds something else or nothing.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
        if not files:
            raise DataError(f"{path} holds no images ({', '.join(sorted(ENDINGS))})")
        return Pictures([(str(file), lambda file=file: file) for file in files[:limit]], prepare())
    if not path.is_file() or path.suffix.lower() not in (".parquet", ".npy"):
        raise ArgumentError(must_be("--images", "a folder, a .parquet or a .npy file", str(path)))
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, prepare, limit)
    return _read_array(path, prepare, limit)


def stack_images(opened: Sequence[Tensor] | Tensor, path: Path) -> Float[Tensor, "images channels rows cols"]:
    """Returns opened images as one batch; ArgumentError if they are of several sizes, or no images."""
    made = list(opened)
    if made[0].ndim != 3 or not made[0].is_floating_point():
        raise ArgumentError(f"--images must hold images, but {path} holds tensors of shape {tuple(made[0].shape)}")
    if len({tuple(image.shape) for image in made}) > 1:
        raise ArgumentError(f"the images in {path} have different sizes when prepared for this network")
    return torch.stack(made)


def _read_parquet(path: Path, prepare: Callable[[], Prepare], limit: int | None) -> Sequence[Tensor] | Tensor:
    try:
        names = parquet.read_schema(path).names
        chosen = next((name for name in (*_IMAGE_COLUMNS, *_TOKEN_COLUMNS) if name in names), None)
        if chosen is None:
            wanted = ", ".join((*_IMAGE_COLUMNS, *_TOKEN_COLUMNS))
            raise DataError(f"{path} must have a column {wanted}, but has {', '.join(names) or 'none'}")
        rows = parquet.read_table(path, columns=[chosen])[chosen].slice(0, limit).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from None
    if not rows:
        raise DataError(f"{path} has no rows")
    if chosen in _TOKEN_COLUMNS:
        return _token_ids(path, rows)
    encoded = [row.get("bytes") if isinstance(row, dict) else row for row in rows]
    sources = [(f"{path}, row {row}", lambda data=data: _file(data)) for row, data in enumerate(encoded)]
    return Pictures(sources, prepare())


def _file(data: Any) -> io.BytesIO:
    if not isinstance(data, bytes):
        raise OSError(f"no picture, but a {type(data).__name__}")
    return io.BytesIO(data)


def _token_ids(path: Path, rows: Sequence[Any]) -> Tensor:
    lengths = {len(row) if isinstance(row, list) else -1 for row in rows}
    if len(lengths) > 1 or -1 in lengths:
        raise DataError(f"{path}: token ids must be lists of one length; cut or sort the texts, without padding")
    try:
        return torch.tensor(rows, dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: token ids must be whole numbers ({error})") from None


def _read_array(path: Path, prepare: Callable[[], Prepare], limit: int | None) -> Sequence[Tensor] | Tensor:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - numpy may fail in any way on a damaged file
        raise DataError(f"{path}: not a readable array of numpy ({error})") from None
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "fiu":
        raise DataError(f"{path} must hold numbers of at least one image, but is {array.dtype} of shape {array.shape}")
    array = array[:limit]
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3:
        make = prepare()
        pictures = [(f"{path}, image {row}", lambda row=row: _encoded(array[row])) for row in range(len(array))]
        return Pictures(pictures, make)
    with np.errstate(over="ignore"):  # what is infinite then is refused later
        return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


def _encoded(pixels: np.ndarray) -> io.BytesIO:
    """Returns a picture as a file in memory, without loss."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "bmp")
    file.seek(0)
    return file
