"""Small CIFAR-10 files, and every way that one can be wrong."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

FILES = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
SCHEMA = pa.schema(
    [("img", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())]
)


def png(rows: int = 32, cols: int = 32, seed: int = 0, mode: str = "RGB") -> bytes:
    """Encodes random pixels without loss."""
    pixels = np.random.default_rng(seed).integers(0, 256, (rows, cols, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format="PNG")
    return buffer.getvalue()


def of_size(side: int) -> bytes:
    """Encodes an image whose head claims so many rows and columns."""
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, format="BMP")
    content = buffer.getvalue()
    return content[:18] + 2 * side.to_bytes(4, "little") + content[26:]


def table(images: list[bytes | None], labels: list[int | None]) -> pa.Table:
    """Builds rows in the Hub's schema."""
    rows = [{"bytes": item, "path": f"{row}.png"} for row, item in enumerate(images)]
    return pa.table({"img": rows, "label": labels}, schema=SCHEMA)


def good(rows: int, seed: int = 0) -> pa.Table:
    """Builds rows that are right."""
    return table(
        [png(seed=seed + row) for row in range(rows)], [(3 * row) % 10 for row in range(rows)]
    )


def write(folder: Path, train: pa.Table, test: pa.Table) -> Path:
    """Writes both files."""
    for name, content in zip(FILES, (train, test), strict=True):
        parquet.write_table(content, folder / name)
    return folder


WRONG_TABLES = {
    "no rows": (good(0), "the file has no rows"),
    "column missing": (
        pa.table({"image": [b""], "label": [1]}),
        "path: string>', 'label': 'int64'}, but found {'image': 'binary'",
    ),
    "bytes are text": (
        pa.table({"img": [{"bytes": "a", "path": ""}], "label": [1]}),
        "but found {'img': 'struct<bytes: string, path: string>', 'label': 'int64'}",
    ),
    "no columns": (pa.table({}), "but found {}"),
    "damaged image": (table([png(), b"\x89PNG broken"], [0, 1]), "row 1: cannot decode the image"),
    "truncated image": (table([png()[:200]], [0]), "row 0: cannot decode the image"),
    "image that claims to be huge": (
        table([png(), of_size(60_000)], [0, 1]),
        "row 1: cannot decode the image",
    ),
    "no image": (table([None], [0]), "row 0: cannot decode the image"),
    "small image": (
        table([png(), png(), png(28, 30)], [0, 1, 2]),
        "row 2: the image must be 32 x 32 pixels, but is 28 x 30",
    ),
    "label too large": (
        table([png(), png()], [9, 10]),
        "test split: row 1: label must be from 0 to 9, but is 10$",
    ),
    "label negative": (
        table([png()], [-1]),
        "test split: row 0: label must be from 0 to 9, but is -1$",
    ),
    "label missing": (
        table([png(), png()], [None, 3]),
        "test split: row 0: label must be from 0 to 9, but is -1$",
    ),
}
