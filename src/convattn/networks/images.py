"""Images that a network is measured on: pictures prepared as its weights expect them, or one of random numbers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.convert.network.running import draw_image
from convattn.errors import ArgumentError, DataError
from convattn.networks import timm, torchvision
from convattn.networks.pictures import PictureError, decode_picture
from convattn.networks.source import split_source

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of files that are read as pictures."""


def read_images(folder: Path, prepare: Callable[[Any], Tensor], *, limit: int) -> Float[Tensor, "images *sizes"]:
    """Reads at most `limit` pictures of a folder and the folders inside, in the order of their names.

    `prepare` turns an RGB picture into a tensor. An unreadable picture or an empty folder raises DataError, tensors of
    different shapes raise ArgumentError.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not files:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(ENDINGS))})")
    made = []
    for file in files[:limit]:
        try:
            picture = decode_picture(file)
        except (OSError, PictureError) as error:
            raise DataError(f"cannot read the image {file}: {error}") from None
        made.append(prepare(picture))
    if len({tuple(image.shape) for image in made}) > 1:
        raise ArgumentError(f"the images in {folder} have different sizes when prepared for this network")
    return torch.stack(made)


def preparation(source: str | None, network: nn.Module) -> Callable[[Any], Tensor]:
    """Returns the function that turns an RGB picture of pillow into a tensor for the network that `source` builds.

    Where its library does not tell how, this raises ArgumentError.
    """
    home, name = split_source(source) if source else ("", "")
    if home == "timm":
        return timm.preparation(network)
    if home == "torchvision":
        return torchvision.preparation(name)
    raise ArgumentError(
        f"images of a folder cannot be prepared for a {type(network).__name__}: only timm and torchvision say how;"
        " leave them out, or measure from Python"
    )


def draw_images(network: nn.Module, shape: tuple[int, ...] | None = None) -> Float[Tensor, "images *sizes"]:
    """Draws one image of standard normal numbers in the network's dtype; `shape` leaves out the batch.

    Without a shape this is the size in `network.default_cfg`, for networks of this library the size that they were made
    for, or else 3 x 224 x 224.
    """
    own = getattr(network, "_hub_mixin_config", None)
    if shape is None and isinstance(own, Mapping) and not hasattr(network, "default_cfg"):
        shape = (own.get("in_channels", 3), *2 * (own.get("image_size", 32),))
    return draw_image(network, shape)
