"""Pictures that come from outside: how large they may be, and how they are read."""

import io
import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from convattn.viewer.refused import RefusedError

__all__ = ["Limits", "read_picture"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Formats of pillow that are read; its others have readers that are seldom used, some of which start programs."""


@dataclass(frozen=True)
class Limits:
    """Bounds on what is uploaded and held."""

    file_bytes: int = 10 * 2**20  # Of one file
    pixels: int = 24_000_000  # Of one picture, before it is scaled for the network
    pictures: int = 100  # Uploaded pictures that are held, as the network sees them
    uploads: int = 4  # Uploads that are read at a time; others wait
    seconds: float = 30.0  # For the body of one upload
    map_bytes: int = 256 * 2**20  # Attention maps that are held; the image asked for longest ago goes first


_one_at_a_time = threading.Lock()


def read_picture(data: bytes, limits: Limits) -> Any:
    """Decodes a picture, or raises RefusedError: 415 if it is none, 413 if it is too large, 400 if it is damaged.

    The size is read from the file's head, before anything is decoded. One picture is decoded at a time.
    """
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of pillow, about what the pixel limit refuses and about odd but readable files
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                if picture.width * picture.height > limits.pixels:
                    raise RefusedError(
                        413,
                        f"the picture has {picture.width} × {picture.height} pixels; {limits.pixels:,} may be read",
                    )
                return _colours(ImageOps.exif_transpose(picture))
        except UnidentifiedImageError:
            raise RefusedError(415, f"this is no picture that can be read ({', '.join(FORMATS)})") from None
        except Image.DecompressionBombError:
            raise RefusedError(413, f"the picture has more than {limits.pixels:,} pixels") from None
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - decoders raise errors of every kind on damaged files
            raise RefusedError(400, f"the picture is damaged ({type(error).__name__}: {error})") from None


def _colours(picture: Image.Image) -> Image.Image:
    """Makes a picture RGB: what is transparent lies on white, and grey of 16 bits becomes grey of 8."""
    if picture.mode.startswith("I"):
        # Pillow's own conversion takes every value above 255 for white.
        return Image.fromarray((np.asarray(picture).clip(0, 65535) / 257).round().astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        whole = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole)
    return picture.convert("RGB")
