"""Pictures that come from outside: how large they may be, and how they are read."""

import io
from dataclasses import dataclass
from typing import Any

from convattn.networks.pictures import PictureError, decode_picture
from convattn.viewer.refused import RefusedError

__all__ = ["Limits", "read_picture"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Formats that are read: those that browsers show."""

_STATUS = {"none": 415, "large": 413, "damaged": 400}


@dataclass(frozen=True)
class Limits:
    """Bounds on what is uploaded and held."""

    file_bytes: int = 10 * 2**20  # Of one file
    pixels: int = 24_000_000  # Of one picture, before it is scaled for the network
    pictures: int = 100  # Uploaded pictures that are held, as the network sees them
    uploads: int = 4  # Uploads that are read at a time; others wait
    seconds: float = 30.0  # For the body of one upload
    map_bytes: int = 256 * 2**20  # Attention maps that are held; the image asked for longest ago goes first


def read_picture(data: bytes, limits: Limits, name: str = "") -> Any:
    """Decodes a picture, or raises RefusedError: 415 if it is none, 413 if it is too large, 400 if it is damaged.

    Where the file has a name, the message begins with it.
    """
    try:
        return decode_picture(io.BytesIO(data), formats=FORMATS, pixels=limits.pixels)
    except PictureError as error:
        raise RefusedError(_STATUS[error.reason], f"{name}: {error}" if name else str(error)) from None
