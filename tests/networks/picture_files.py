"""Picture files as people and attackers make them."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encoded(picture, kind="PNG", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def black_png(width: int, height: int) -> bytes:
    """Returns a small file of a large black picture, of one bit for each pixel."""
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + (width + 7) // 8) * height), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")
    )


def gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """Returns a file of some bytes that claims these sizes."""
    head = b"GIF89a" + struct.pack("<HH", *screen) + b"\x80\0\0\xff\0\0\0\0\xff,"
    return head + struct.pack("<HHHH", 0, 0, *frame) + b"\0\x02\x02\x4c\x01\0;"


def _with_profile() -> bytes:
    """Returns a file whose colour profile unpacks to 80 MB."""
    content = encoded(Image.new("RGB", (4, 3), "red"))
    return (
        content[:33]
        + _chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(80 * 2**20), 9))
        + content[33:]
    )


def _turned() -> bytes:
    """Returns a photograph of a camera that was held upright: its upper right corner is red when it is seen so."""
    picture = Image.new("RGB", (64, 32), "white")
    picture.paste((255, 0, 0), (0, 0, 32, 16))
    exif = picture.getexif()
    exif[0x0112] = 6
    return encoded(picture, "JPEG", exif=exif, quality=95)


_SMALL = Image.new("RGB", (40, 30), "red")
_LARGE = Image.new("RGB", (12_000, 12_000))
_FRAMES = [Image.new("RGB", (8, 8), (number % 256, number // 256, 9)) for number in range(2000)]
_GREY = np.array([[0, 257, 25_700, 65_535]], dtype=np.uint16)

REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "none", "no picture"),
    "text": (b"<svg onload=alert(1)>", "none", "no picture"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "none", "no picture"),
    "no pixels": (black_png(0, 5), "none", "no picture"),
    "float": (encoded(Image.new("F", (4, 3), 0.5), "TIFF"), "none", "floating-point numbers"),
    "32 bits": (encoded(Image.new("I", (4, 3), 10**6), "TIFF"), "none", "numbers of 32 bits"),
    "cut png": (encoded(_SMALL)[:70], "damaged", "damaged"),
    "cut jpeg": (_turned()[:700], "damaged", "damaged"),
    "profile": (_with_profile(), "damaged", "Decompressed data too large"),
    "large png": (black_png(20_000, 20_000), "large", "more than 120,000,000 pixels"),
    "large webp": (
        encoded(_LARGE, "WEBP", lossless=True, method=0),
        "large",
        "has 12000 × 12000 pixels; 120,000,000",
    ),
    "large gif": (gif((65_535, 65_535), (65_535, 65_535)), "large", "more than 120,000,000 pixels"),
    "large frame": (gif((10, 10), (30_000, 30_000)), "large", "more than 120,000,000 pixels"),
    "thin": (
        encoded(Image.new("RGB", (1, 101))),
        "large",
        "one side may be 100 times as long as the other",
    ),
}
"""Content, the reason for which it is refused, and what the message says."""

READ: dict[str, tuple[bytes, tuple[int, int], tuple[int, int, int]]] = {
    "one pixel": (encoded(Image.new("RGB", (1, 1), "blue")), (1, 1), (0, 0, 255)),
    "gif": (
        encoded(_FRAMES[0], "GIF", save_all=True, append_images=_FRAMES[1:]),
        (8, 8),
        (0, 0, 9),
    ),
    "webp": (
        encoded(_FRAMES[0], "WEBP", save_all=True, append_images=_FRAMES[1:], lossless=True),
        (8, 8),
        (0, 0, 9),
    ),
    "apng": (
        encoded(_SMALL, save_all=True, append_images=[Image.new("RGB", (40, 30))]),
        (40, 30),
        (255, 0, 0),
    ),
    "16 bits": (encoded(Image.fromarray(_GREY)), (4, 1), (255, 255, 255)),
    "transparent": (encoded(Image.new("RGBA", (3, 2), (0, 0, 0, 0))), (3, 2), (255, 255, 255)),
    "turned": (_turned(), (32, 64), (255, 0, 0)),
    "cmyk": (
        encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100),
        (8, 8),
        (254, 0, 0),
    ),
}
"""Content, the size when it is read, and the colour of the upper right corner."""
