"""Mixtures of two images and of their targets, for whole batches on the device that holds them.

All random numbers are drawn on the generator's device, so one CPU generator gives one sequence everywhere.
"""

import math

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from convattn.data.boxes import random_boxes
from convattn.errors import ArgumentError, ShapeError, must_be


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
        raise ArgumentError(must_be("images", "of floating point, because bytes would be rounded", images.dtype))
    _require_targets(targets, len(images))
    partner, share = _partners(len(images), alpha, generator)
    partner, share = partner.to(images.device), share.to(images.device)
    return _blend(images, partner, share), _blend(targets, partner.to(targets.device), share.to(targets.device))


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


def _require_targets(targets: Tensor, batch: int) -> None:
    """Raises unless the targets are shares of classes, one row per image."""
    if targets.ndim != 2 or len(targets) != batch:
        raise ShapeError(must_be("targets", f"of shape ({batch}, classes), one row per image", tuple(targets.shape)))
    if not targets.is_floating_point():
        raise ArgumentError(must_be("targets", "shares of floating point, one per class", targets.dtype))


def _partners(
    batch: int, alpha: float, generator: torch.Generator
) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Draws each image's partner π and share λ."""
    if not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
        raise ArgumentError(must_be("alpha", "a positive finite number", alpha))
    partner = torch.randperm(batch, generator=generator, device=generator.device)
    return partner, _symmetric_beta(batch, alpha, generator)


def _symmetric_beta(number: int, alpha: float, generator: torch.Generator) -> Float[Tensor, " number"]:
    """Draws numbers from Beta(α, α), in float64 and exactly for every α > 0, from two uniform numbers each.

    With U and V uniform on [0, 1), T = √(2α(U^(−1/α) − 1)) cos 2πV is Student's t of 2α degrees of freedom (Bailey,
    "Polar generation of random variates with the t-distribution", 1994), and ½(1 + T/√(2α + T²)) is Beta(α, α).
    """
    uniform, turn = torch.rand(2, number, generator=generator, device=generator.device, dtype=torch.float64)
    exponent = uniform.log() / alpha
    odds = exponent.exp() / -exponent.expm1()  # 1 / (U^(−1/α) − 1), which does not overflow
    cosine = (2 * math.pi * turn).cos()
    return (1 + cosine / (odds + cosine**2).sqrt()) / 2


def _blend(numbers: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Returns share · own + (1 − share) · partner's, with one share for each row."""
    shape = (-1,) + (1,) * (numbers.ndim - 1)
    own, other = (part.to(numbers.dtype).view(shape) for part in (share, 1 - share))
    return own * numbers + other * numbers[partner]
