"""Augmentation of whole batches on their device: crops and flips, and the views of a test image."""

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from convattn.errors import ArgumentError, must_be

Border = Literal["black", "reflect"]
"""Pixels outside of an image: black, or the image mirrored at its outermost pixels."""


def random_crop(
    images: UInt8[Tensor, "batch channels rows cols"],
    *,
    padding: int,
    generator: torch.Generator,
    border: Border = "black",
) -> UInt8[Tensor, "batch channels rows cols"]:
    """Shifts each image by a random number of whole pixels; pixels from outside are black or reflected.

    ``y[b, c, i, j] = x̃[b, c, i + r_b, j + s_b]`` with x̃ the image padded by `padding` pixels on every side and r_b,
    s_b uniform on 0 … 2·padding: the usual "pad, then crop at random".

    Args:
        images: Pixel values.
        padding: Largest shift along each axis, in pixels, at least 0.
        generator: Source of the shifts. They are drawn on its device, so one CPU generator gives one sequence
            everywhere.
        border: What the padding holds: black, or the image mirrored at its outermost pixels.

    Returns:
        The shifted images, of the same shape.

    Raises:
        ArgumentError: The padding is negative, or reaches beyond what an image can reflect.

    Example:
        >>> image = torch.full((1, 1, 2, 2), 7, dtype=torch.uint8)
        >>> random_crop(image, padding=0, generator=torch.Generator()).tolist()
        [[[[7, 7], [7, 7]]]]
    """
    if padding < 0:
        raise ArgumentError(f"padding must be an integer of at least 0, but is {padding}")
    batch, _, rows, cols = images.shape
    if border == "reflect" and padding >= min(rows, cols):
        limit = f"below {min(rows, cols)}, the images' shorter side, to reflect"
        raise ArgumentError(must_be("padding", limit, padding))
    drawn = torch.randint(
        0, 2 * padding + 1, (2, batch), generator=generator, device=generator.device
    )
    row_shift, col_shift = drawn.to(images.device)
    row_index = row_shift[:, None] + torch.arange(rows, device=images.device)
    col_index = col_shift[:, None] + torch.arange(cols, device=images.device)
    if border == "reflect":
        row_index, col_index = (
            _reflected(row_index - padding, rows),
            _reflected(col_index - padding, cols),
        )
    else:
        images = F.pad(images, (padding,) * 4)
    pixels = rearrange(images, "batch channels rows cols -> batch rows cols channels")
    image_index = torch.arange(batch, device=images.device)
    cropped = pixels[image_index[:, None, None], row_index[:, :, None], col_index[:, None, :]]
    return rearrange(cropped, "batch rows cols channels -> batch channels rows cols")


def _reflected(index: Int64[Tensor, "*places"], size: int) -> Int64[Tensor, "*places"]:
    """Mirrors places outside of 0 … size − 1 at the first and the last, back inside."""
    last = size - 1
    return last - (last - index.abs()).abs()


def horizontal_flip(
    images: UInt8[Tensor, "batch channels rows cols"], *, generator: torch.Generator
) -> UInt8[Tensor, "batch channels rows cols"]:
    """Mirrors each image left to right with probability one half.

    Args:
        images: Pixel values.
        generator: Source of the coin tosses, drawn on its device.

    Returns:
        The images, some of them mirrored.

    Example:
        >>> image = torch.tensor([[[[1, 2]]]], dtype=torch.uint8)
        >>> horizontal_flip(image, generator=torch.Generator().manual_seed(0)).tolist()
        [[[[2, 1]]]]
    """
    tossed = torch.rand(len(images), generator=generator, device=generator.device) < 0.5
    return mirror(images, tossed)


def mirror(
    images: UInt8[Tensor, "batch channels rows cols"], chosen: Bool[Tensor, " batch"]
) -> UInt8[Tensor, "batch channels rows cols"]:
    """Mirrors chosen images left to right.

    Args:
        images: Pixel values.
        chosen: Which images, on any device.

    Returns:
        All images, the chosen ones mirrored.

    Example:
        >>> images = torch.tensor([[[[1, 2]]], [[[3, 4]]]], dtype=torch.uint8)
        >>> mirror(images, torch.tensor([False, True])).flatten().tolist()
        [1, 2, 4, 3]
    """
    return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(-1), images)


def views(
    images: Float[Tensor, "batch channels rows cols"], kind: Literal["none", "mirror"]
) -> list[Float[Tensor, "batch channels rows cols"]]:
    """Returns views of normalised images, whose scores are averaged: the images, and with "mirror" their mirror images.

    Example:
        >>> len(views(torch.zeros(1, 1, 4, 4), "mirror"))
        2
    """
    return [images] if kind == "none" else [images, images.flip(-1)]
