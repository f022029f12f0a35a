"""Pictures that come from outside: their colours."""

import io

import numpy as np
import pytest
from PIL import Image

from convattn.viewer.live import Limits, read_picture


def _read(picture, kind="PNG"):
    file = io.BytesIO()
    picture.save(file, kind)
    return read_picture(file.getvalue(), Limits())


def test_grey_of_16_bits_is_scaled():
    grey = np.array([[0, 257, 25_700, 65_535]], dtype=np.uint16)
    read = _read(Image.fromarray(grey))
    assert read.mode == "RGB"
    assert np.asarray(read)[0, :, 0].tolist() == [0, 1, 100, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(mode):
    """What stands behind a transparent pixel in the file is not seen, and often black."""
    picture = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    picture.putpixel((1, 0), (0, 0, 0, 255))
    read = _read(picture.convert(mode))
    assert [read.getpixel((n, 0)) for n in range(2)] == [(255, 255, 255), (0, 0, 0)]


def test_cmyk_and_moving_pictures_are_read():
    read = _read(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")
    assert np.abs(np.asarray(read).astype(int) - [255, 0, 0]).max() < 16  # JPEG rounds
    file = io.BytesIO()
    first, second = Image.new("RGB", (3, 2), "red"), Image.new("RGB", (3, 2), "blue")
    first.save(file, "GIF", save_all=True, append_images=[second])
    assert read_picture(file.getvalue(), Limits()).getpixel((0, 0)) == (255, 0, 0)
