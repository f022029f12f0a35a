"""Files of pictures: which they are, how they are read, and how a network's own preparation makes images of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from convattn.errors import DataError, ShapeError, optional_module
from convattn.record import Record

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of files that are read as pictures."""

PREPARATION = "pictures.json"
"""File in the folder of a run on one's own images: how pictures are prepared for its network."""


def picture_files(place: Path) -> list[Path]:
    """Returns a picture file itself, or those in a folder and in the folders below, by name.

    Hidden files and folders are left out. No picture raises DataError.
    """
    files = [place] if place.suffix.lower() in ENDINGS and not place.is_dir() else []
    for path in sorted(place.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if path.suffix.lower() in ENDINGS and not path.is_dir() and not is_hidden:
            files.append(path)
    if not files:
        raise DataError(f"{place} holds no images ({', '.join(sorted(ENDINGS))})")
    return files


def pillow() -> Any:
    """Returns pillow, with its modules Image and ImageOps; raises MissingDependencyError if it is not installed."""
    return optional_module("PIL.ImageOps", "pictures")


def read_picture(file: Path, *, keep_grey: bool = False) -> Any:
    """Reads the first picture of a file, upright, in colours of a byte each, or in levels of grey if it has no colours.

    Raises DataError, which names the file, if it cannot be read, or nothing says what its numbers mean.
    """
    pil = pillow()
    try:
        with pil.Image.open(file) as picture:
            upright = pil.ImageOps.exif_transpose(picture)
            if upright.mode[0] in "IF":  # of 16 or 32 bits, which pillow would cut off at 255
                upright = pil.Image.fromarray(_to_bytes(np.asarray(upright)))
            grey = keep_grey and upright.mode in ("1", "L", "LA")
            return _on_white(upright).convert("L" if grey else "RGB")
    except Exception as error:  # noqa: BLE001 - decoders raise errors of every kind on damaged files
        reason = str(error)
        if not isinstance(error, DataError):
            reason = f"{type(error).__name__}: {error}"
        raise DataError(f"cannot read the image {file}: {reason}") from None


def _on_white(picture: Any) -> Any:
    """Lays what is transparent in a picture of pillow on white, as browsers do; pillow would show hidden colours."""
    if not picture.has_transparency_data:
        return picture
    pil, seen = pillow(), picture.convert("RGBA")
    return pil.Image.alpha_composite(pil.Image.new("RGBA", seen.size, "white"), seen)


def _to_bytes(levels: np.ndarray) -> np.ndarray:
    """Scales whole numbers of 16 bits, or floating-point numbers in [0, 1], to bytes."""
    low, high = levels.min(), levels.max()
    if levels.dtype.kind == "f":
        largest, is_clear = 1, low >= 0 and high <= 1
    else:
        largest = 65535
        is_clear = levels.dtype.itemsize == 2 or (low >= 0 and 255 < high <= largest)
    if not is_clear:
        raise DataError(
            f"its levels of grey must be whole numbers of 8 or 16 bits, or floating-point numbers in [0, 1], but are"
            f" {levels.dtype} from {low:g} to {high:g}: save it with 8 bits"
        )
    return np.round(levels * (255 / largest)).astype(np.uint8)


@dataclass(frozen=True)
class Preparation(Record):
    """How pictures become images for a network: cropped at the middle to a square, resized, and normalised."""

    size: int  # Rows and columns of an image
    mean: tuple[float, ...]  # Of each channel, in units of the full range [0, 1]; one is grey
    std: tuple[float, ...]  # In the same units
    classes: tuple[str, ...] = ()  # Name of each class; () where they are unknown

    def __call__(self, picture: Any) -> Float[Tensor, "channels rows cols"]:
        """Prepares a picture of pillow."""
        mode = "L" if len(self.mean) == 1 else "RGB"
        small = np.array(to_square(_on_white(picture).convert(mode), self.size))
        pixels = torch.from_numpy(small).reshape(self.size, self.size, -1)
        return normalise(pixels.movedim(2, 0).contiguous()[None], self.mean, self.std)[0]


def to_square(picture: Any, size: int) -> Any:
    """Crops a picture of pillow to its largest central square, and resizes that by bicubic interpolation."""
    pil = pillow()
    return pil.ImageOps.fit(picture, (size, size), pil.Image.Resampling.BICUBIC)


def normalise(
    images: UInt8[Tensor, "batch channels rows cols"],
    mean: tuple[float, ...] | Float[Tensor, " channels"],
    std: tuple[float, ...] | Float[Tensor, " channels"],
) -> Float[Tensor, "batch channels rows cols"]:
    """Scales bytes to numbers of about zero mean and unit variance, ``(x / 255 − mean_c) / std_c``, in float32.

    Args:
        images: Pixel values.
        mean: Mean of each channel, in units of the full range [0, 1]; a tensor on the images' device saves a copy from
            the host in every call.
        std: Standard deviation of each channel, positive, in the same units.

    Returns:
        Normalised images, of the same shape.

    Raises:
        ShapeError: The mean or the standard deviation has not one value for each channel.

    Example:
        >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), (0.5,), (0.25,)).tolist()
        [[[[-2.0, 2.0]]]]
    """
    channels = images.shape[1]
    if not len(mean) == len(std) == channels:
        raise ShapeError(
            f"mean and std need one value for each of {channels} channels: got {len(mean)} and {len(std)}"
        )
    shift = torch.as_tensor(mean, dtype=torch.float32, device=images.device)[:, None, None] * 255
    scale = torch.as_tensor(std, dtype=torch.float32, device=images.device)[:, None, None] * 255
    return (images - shift) / scale
