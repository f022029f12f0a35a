"""Augmentation of whole batches on their device: crops and flips, and the views of a test image."""

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from convattn.errors import require_name


def crop(
    images: UInt8[Tensor, "batch channels rows cols"],
    shifts: Int64[Tensor, "2 batch"],
    border: Literal["black", "reflect"] = "black",
) -> UInt8[Tensor, "batch channels rows cols"]:
    """Shifts each image by whole pixels; pixels from outside are black or reflected.

    ``y[b, c, i, j] = x[b, c, i + r_b, j + s_b]``; with shifts drawn from −p … p this is the usual "pad by p, then crop
    at random".

    Args:
        images: Pixel values.
        shifts: r and s of each image, in pixels, on the images' device.
        border: What is outside of an image: black, or the image mirrored at its outermost pixels, again and again.

    Returns:
        The shifted images, of the same shape.

    Example:
        >>> image = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)
        >>> crop(image, torch.tensor([[0], [1]])).tolist()
        [[[[2, 3, 0]]]]
    """
    require_name("border", border, ("black", "reflect"))
    batch, _, rows, cols = images.shape
    row_index = shifts[0, :, None] + torch.arange(rows, device=images.device)
    col_index = shifts[1, :, None] + torch.arange(cols, device=images.device)
    row, col = _reflected(row_index, rows), _reflected(col_index, cols)
    pixels = rearrange(images, "batch channels rows cols -> batch rows cols channels")
    image_index = torch.arange(batch, device=images.device)
    cropped = pixels[image_index[:, None, None], row[:, :, None], col[:, None, :]]
    if border == "black":
        inside = (row == row_index)[:, :, None] & (col == col_index)[:, None, :]
        cropped = cropped * inside[..., None]
    return rearrange(cropped, "batch rows cols channels -> batch channels rows cols")


def _reflected(index: Int64[Tensor, "*places"], size: int) -> Int64[Tensor, "*places"]:
    """Mirrors places outside of 0 … size − 1 at the first and the last, back inside; those inside stay."""
    last = size - 1
    return last - (index.remainder(max(2 * last, 1)) - last).abs()


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
