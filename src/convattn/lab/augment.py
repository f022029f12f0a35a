"""Augmentation of whole batches on their device: crops, flips, black squares, and mixtures of two images."""

import math
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from convattn.errors import ArgumentError, ShapeError, must_be


def random_boxes(
    size: Int[Tensor, "2 batch"], image: tuple[int, int], generator: torch.Generator
) -> Bool[Tensor, "batch rows cols"]:
    """Places a box in each image, its centre uniform over the pixels, and cuts it at the border.

    A box of r rows with its centre on row i covers rows i − ⌊r/2⌋ up to, but without, i − ⌊r/2⌋ + r; columns likewise.
    `size` holds rows and columns of each box, `image` those of the images; all is on the generator's device.

    Example:
        >>> random_boxes(torch.tensor([[9], [1]]), (4, 3), torch.Generator().manual_seed(0)).int().tolist()
        [[[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]]]
    """
    batch, device = size.shape[1], generator.device
    inside = []
    for pixels, sides in zip(image, size, strict=True):
        centre = torch.randint(pixels, (batch,), generator=generator, device=device)
        offset = torch.arange(pixels, device=device) - (centre - sides // 2)[:, None]
        inside.append((offset >= 0) & (offset < sides[:, None]))
    return inside[0][:, :, None] & inside[1][:, None, :]


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
        raise ArgumentError(
            must_be("size", f"an integer from 0 to {largest}, the images' shorter side", size)
        )
    sides = torch.full((2, batch), size, device=generator.device)
    hidden = random_boxes(sides, (rows, cols), generator).to(images.device)
    return images.masked_fill(hidden[:, None], 0)


def mixup(
    images: Float[Tensor, "batch channels rows cols"],
    targets: Float[Tensor, "batch classes"],
    *,
    alpha: float,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "batch channels rows cols"], Float[Tensor, "batch classes"]]:
    """Blends each image, and its target, with a partner: ``x̃_b = λ_b x_b + (1 − λ_b) x_π(b)``, ỹ likewise.

    π is a random permutation of the batch and λ_b ~ Beta(α, α), one for each image (the authors' code draws one for the
    whole batch). A small α leaves most images nearly as they are; with 1, λ is uniform. Normalise first: bytes would be
    rounded.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.

    Args:
        images: Images, normalised or not.
        targets: Share of each class; one-hot where the class is known.
        alpha: α > 0.
        generator: Source of π and λ.

    Returns:
        The blended images and targets, of the same shapes and dtypes.

    Raises:
        ArgumentError: α is out of range, or images or targets are not of floating point.
        ShapeError: The targets are not one row for each image.

    Example:
        >>> images, targets = torch.rand(3, 1, 2, 2), torch.eye(3)
        >>> blended, shares = mixup(images, targets, alpha=0.2, generator=torch.Generator())
        >>> torch.dist(blended, torch.einsum("bi,icrs->bcrs", shares, images)).item() < 1e-6
        True
    """
    if not images.is_floating_point():
        raise ArgumentError(
            must_be("images", "of floating point, because bytes would be rounded", images.dtype)
        )
    _require_targets(targets, len(images))
    partner, share = _partners(len(images), alpha, generator)
    partner, share = partner.to(images.device), share.to(images.device)
    return _blend(images, partner, share), _blend(
        targets, partner.to(targets.device), share.to(targets.device)
    )


def cutmix(
    images: UInt8[Tensor, "batch channels rows cols"] | Float[Tensor, "batch channels rows cols"],
    targets: Float[Tensor, "batch classes"],
    *,
    alpha: float,
    generator: torch.Generator,
) -> tuple[
    UInt8[Tensor, "batch channels rows cols"] | Float[Tensor, "batch channels rows cols"],
    Float[Tensor, "batch classes"],
]:
    """Pastes a box of a partner into each image, and mixes the targets by the share of pixels.

    π is a random permutation of the batch and λ_b ~ Beta(α, α), one for each image (the authors' code draws one for the
    whole batch). The box has ⌊rows · √(1 − λ_b)⌋ rows, columns likewise, and its centre uniform over the image; the
    border cuts it. The target is ``ỹ_b = s_b y_b + (1 − s_b) y_π(b)`` with s_b the share of pixels that are the image's
    own, counted after the cut.

    Source: Yun, Han, Oh, Chun, Choe, Yoo, "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable
    Features", ICCV 2019.

    Args:
        images: Images, as bytes or normalised.
        targets: Share of each class; one-hot where the class is known.
        alpha: α > 0; 1 in the paper.
        generator: Source of π, λ and the centres.

    Returns:
        The images and targets, of the same shapes and dtypes.

    Raises:
        ArgumentError: α is out of range, or the targets are not of floating point.
        ShapeError: The targets are not one row for each image.

    Example:
        >>> images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8)
        >>> pasted, shares = cutmix(images, torch.eye(2), alpha=1.0, generator=torch.Generator())
        >>> torch.equal(pasted.mean(dim=(1, 2, 3)), shares[:, 1])
        True
    """
    _require_targets(targets, len(images))
    rows, cols = images.shape[2:]
    partner, share = _partners(len(images), alpha, generator)
    side = (1 - share).sqrt()
    size = torch.stack([(rows * side).long(), (cols * side).long()])
    pasted = random_boxes(size, (rows, cols), generator)
    own = 1 - pasted.double().mean(dim=(1, 2))
    shown = partner.to(images.device)
    mixed = torch.where(pasted.to(images.device)[:, None], images[shown], images)
    return mixed, _blend(targets, partner.to(targets.device), own.to(targets.device))


def views(
    images: Float[Tensor, "batch channels rows cols"],
    kind: Literal["none", "mirror", "mirror_shift"],
) -> list[tuple[float, Float[Tensor, "batch channels rows cols"]]]:
    """Returns views of normalised images, each with the weight of its scores in their mean.

    "mirror" adds the mirror images; "mirror_shift" adds to these two, which then count a quarter each, both moved by
    one pixel down and right and up and left, an eighth each, with reflected borders.

    Example:
        >>> [share for share, _ in views(torch.zeros(1, 1, 4, 4), "mirror_shift")]
        [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    """
    if kind == "none":
        return [(1.0, images)]
    if kind == "mirror":
        return [(0.5, images), (0.5, images.flip(-1))]
    rows, cols = images.shape[2:]
    framed = F.pad(images, (1, 1, 1, 1), mode="reflect")
    moved = [framed[..., start : start + rows, start : start + cols] for start in (0, 2)]
    shares = [(0.25, images), *((0.125, part) for part in moved)]
    return [(share, view) for share, part in shares for view in (part, part.flip(-1))]


def _require_targets(targets: Tensor, batch: int) -> None:
    """Raises unless the targets are shares of classes, one row per image."""
    if targets.ndim != 2 or len(targets) != batch:
        raise ShapeError(
            must_be(
                "targets", f"of shape ({batch}, classes), one row per image", tuple(targets.shape)
            )
        )
    if not targets.is_floating_point():
        raise ArgumentError(
            must_be("targets", "shares of floating point, one per class", targets.dtype)
        )


def _partners(
    batch: int, alpha: float, generator: torch.Generator
) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Draws each image's partner π and share λ."""
    if not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
        raise ArgumentError(must_be("alpha", "a positive finite number", alpha))
    partner = torch.randperm(batch, generator=generator, device=generator.device)
    return partner, _symmetric_beta(batch, alpha, generator)


def _symmetric_beta(
    number: int, alpha: float, generator: torch.Generator
) -> Float[Tensor, " number"]:
    """Draws numbers from Beta(α, α), in float64 and exactly for every α > 0, from two uniform numbers each.

    With U and V uniform on [0, 1), T = √(2α(U^(−1/α) − 1)) cos 2πV is Student's t of 2α degrees of freedom (Bailey,
    "Polar generation of random variates with the t-distribution", 1994), and ½(1 + T/√(2α + T²)) is Beta(α, α).
    """
    uniform, turn = torch.rand(
        2, number, generator=generator, device=generator.device, dtype=torch.float64
    )
    exponent = uniform.log() / alpha
    odds = exponent.exp() / -exponent.expm1()  # 1 / (U^(−1/α) − 1), which does not overflow
    cosine = (2 * math.pi * turn).cos()
    return (1 + cosine / (odds + cosine**2).sqrt()) / 2


def _blend(numbers: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Returns share · own + (1 − share) · partner's, with one share for each row."""
    shape = (-1,) + (1,) * (numbers.ndim - 1)
    own, other = (part.to(numbers.dtype).view(shape) for part in (share, 1 - share))
    return own * numbers + other * numbers[partner]
