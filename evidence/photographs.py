"""The photographs that trained networks are measured on, prepared as ImageNet's usually are."""

import io
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from convattn.errors import optional_module

Colours = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of the pictures of a network, by channel."""

IMAGENET: Colours = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def photographs(
    folder: Path,
    count: int,
    size: int,
    first: int = 0,
    colours: Colours = IMAGENET,
    most: int | None = None,
) -> tuple[Float[Tensor, "images 3 size size"], list[int]]:
    """Reads photographs, spread evenly over the classes, and their classes.

    Args:
        folder: Folder of photographs.parquet, whose column img.bytes holds files of 256 × 256 pixels.
        count: How many.
        size: Rows and columns.
        first: Number of the first; others are as far apart.
        colours: Mean and deviation that are taken out.
        most: Read only so many of the count; None for all.

    Returns:
        Pictures with mean and deviation taken out, and the numbers of their classes.
    """
    parquet = optional_module("pyarrow.parquet", "parquet").parquet
    image = optional_module("PIL.Image", "pictures").Image
    rows = parquet.read_table(folder / "photographs.parquet").to_pylist()
    pictures = []
    labels = []
    for number in range(count if most is None else most):
        row = rows[first + number * len(rows) // count]
        picture = image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB")
        pictures.append(prepared(picture, size, colours)[0])
        labels.append(row["label"])
    return torch.stack(pictures), labels


def prepared(
    picture: Any, size: int, colours: Colours = IMAGENET
) -> tuple[Float[Tensor, "3 size size"], Any]:
    """Prepares a picture of Pillow as `photographs` does; also returns what is seen of it.

    The shorter side is scaled to 8/7 of `size`, and the central square is cut out.
    """
    image = optional_module("PIL.Image", "pictures").Image
    scale = (size * 8 // 7) / min(picture.size)
    width, height = round(picture.width * scale), round(picture.height * scale)
    picture = picture.resize((width, height), image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    picture = picture.crop((left, top, left + size, top + size))
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(size, size, 3).permute(2, 0, 1).float() / 255
    mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in colours)
    return (pixels - mean) / deviation, picture
