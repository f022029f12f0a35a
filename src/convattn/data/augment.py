"""Random crops, flips and black squares of whole batches, on the device that holds them, from an explicit generator.

Pixels stay as they are stored (bytes), so that padding is black as in the paper's code. Normalise afterwards.
"""

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from convattn.data.boxes import random_boxes
from convattn.errors import ArgumentError, ShapeError, must_be

Border = Literal["black", "reflect"]
"""What is outside of an image: black, or the image mirrored at its outermost pixels."""


def random_crop(
    images: UInt8[Tensor, "batch channels rows cols"],
    *,
    padding: int,
    generator: torch.Generator,
    border: Border = "black",
) -> UInt8[Tensor, "batch channels rows cols"]:
    """Shifts each image by a random number of whole pixels; what comes in from outside is black, or reflected.

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
    drawn = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator, device=generator.device)
    row_shift, col_shift = drawn.to(images.device)
    row_index = row_shift[:, None] + torch.arange(rows, device=images.device)
    col_index = col_shift[:, None] + torch.arange(cols, device=images.device)
    if border == "reflect":
        row_index, col_index = _reflected(row_index - padding, rows), _reflected(col_index - padding, cols)
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
        The images, those mirrored.

    Example:
        >>> images = torch.tensor([[[[1, 2]]], [[[3, 4]]]], dtype=torch.uint8)
        >>> mirror(images, torch.tensor([False, True])).flatten().tolist()
        [1, 2, 4, 3]
    """
    return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(-1), images)


def cutout(
    images: UInt8[Tensor, "batch channels rows cols"], *, size: int, generator: torch.Generator
) -> UInt8[Tensor, "batch channels rows cols"]:
    """Blackens a square at a random place of each image; its centre is uniform over the pixels, so borders may cut it.

    The authors' code masks after normalisation, which fills with the mean colour; here it is black, as the borders of
    `random_crop` are.

    Source: DeVries, Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017.

    Args:
        images: Pixel values.
        size: Side of the square in pixels, from 0 (which changes nothing) to the images' shorter side.
        generator: Source of the centres, drawn on its device.

    Returns:
        The images, each with its square.

    Raises:
        ArgumentError: The size is out of range.

    Example:
        >>> image = torch.ones(1, 1, 3, 4, dtype=torch.uint8)
        >>> cutout(image, size=2, generator=torch.Generator().manual_seed(0)).tolist()
        [[[[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]]]
    """
    batch, _, rows, cols = images.shape
    largest = min(rows, cols)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= largest:
        raise ArgumentError(must_be("size", f"an integer from 0 to {largest}, the images' shorter side", size))
    sides = torch.full((2, batch), size, device=generator.device)
    hidden = random_boxes(sides, (rows, cols), generator).to(images.device)
    return images.masked_fill(hidden[:, None], 0)


def normalise(
    images: UInt8[Tensor, "batch channels rows cols"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "batch channels rows cols"]:
    """Scales bytes to numbers of about zero mean and unit variance, ``(x / 255 − mean_c) / std_c``, in float32.

    Args:
        images: Pixel values.
        mean: Mean of each channel, in units of the full range [0, 1].
        std: Standard deviation of each channel, positive, in the same units.

    Returns:
        What a network takes.

    Raises:
        ShapeError: The mean or the standard deviation has not one value for each channel.

    Example:
        >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), (0.5,), (0.25,)).tolist()
        [[[[-2.0, 2.0]]]]
    """
    channels = images.shape[1]
    if not len(mean) == len(std) == channels:
        raise ShapeError(f"mean and std need one value for each of {channels} channels: got {len(mean)} and {len(std)}")
    shift = torch.tensor(mean, dtype=torch.float32, device=images.device).mul(255)[:, None, None]
    scale = torch.tensor(std, dtype=torch.float32, device=images.device).mul(255)[:, None, None]
    return (images - shift) / scale
