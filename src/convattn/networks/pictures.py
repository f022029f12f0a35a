"""Decodes pictures of files: within bounds, and with the colours and the upright position that a person sees."""

import threading
import warnings
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from convattn.errors import DataError

__all__ = ["FORMATS", "PictureError", "decode_picture"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats of pillow that are read; its others have readers that are seldom used, some of which start programs."""

PIXELS = 120_000_000
"""Pixels of one file; decoding takes up to 16 bytes for each."""

_LONGEST = 100
"""Length over width: a network's preparation may scale the shorter side up to hundreds of pixels."""

_one_at_a_time = threading.Lock()


class PictureError(DataError):
    """A picture cannot be read.

    Attributes:
        reason: Whether the file is no picture, is damaged, or is larger than what is read.
    """

    def __init__(self, reason: Literal["none", "damaged", "large"], message: str) -> None:
        """Takes the reason, and what was wrong."""
        self.reason: Literal["none", "damaged", "large"] = reason
        super().__init__(message)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Lets the error cross from one process to another."""
        return type(self), (self.reason, str(self))


def decode_picture(file: Any, *, formats: tuple[str, ...] = FORMATS, pixels: int = PIXELS) -> Any:
    """Decodes the first picture of a file.

    The size is read from the file's head, before anything is decoded. One picture is decoded at a time.

    Args:
        file: A path, or a file that is open.
        formats: Names of the formats that are read.
        pixels: The most pixels that are read.

    Returns:
        An RGB picture of pillow: upright where the file says how it was held, transparent parts on white.

    Raises:
        PictureError: It is none, is damaged, or is too large.
    """
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pillow, about large pictures and about odd but readable files
        try:
            with Image.open(file, formats=formats) as picture:
                _require_size(picture, pixels)
                return _colours(ImageOps.exif_transpose(picture))
        except UnidentifiedImageError:
            raise PictureError("none", f"this is no picture that can be read ({', '.join(formats)})") from None
        except Image.DecompressionBombError:
            raise PictureError("large", f"the picture has more than {pixels:,} pixels") from None
        except (PictureError, FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # noqa: BLE001 - decoders raise errors of every kind on damaged files
            raise PictureError("damaged", f"the picture is damaged ({type(error).__name__}: {error})") from None


def _require_size(picture: Image.Image, pixels: int) -> None:
    width, height = picture.size
    if not (width and height):
        raise PictureError("damaged", f"the picture has {width} × {height} pixels")
    if width * height > pixels:
        raise PictureError("large", f"the picture has {width} × {height} pixels; {pixels:,} may be read")
    if max(width, height) > _LONGEST * min(width, height):
        raise PictureError(
            "large", f"the picture has {width} × {height} pixels; one side may be {_LONGEST} times as long as the other"
        )


def _colours(picture: Image.Image) -> Image.Image:
    """Makes a picture RGB: what is transparent lies on white, and grey of 16 bits becomes grey of 8."""
    if picture.mode == "F":
        raise PictureError("none", "the picture has floating-point numbers, of which nobody says what is white")
    if picture.mode.startswith("I"):
        # Pillow's own conversion takes every value above 255 for white.
        grey = np.asarray(picture)
        if grey.min() < 0 or grey.max() > 65_535:
            raise PictureError("none", "the picture has numbers of 32 bits, of which nobody says what is white")
        return Image.fromarray(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        whole = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole)
    return picture.convert("RGB")
