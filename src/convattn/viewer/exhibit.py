"""A network with its images, as a scene shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a
from convattn.heads.head_report import HeadReport
from convattn.heads.head_snapshots import HeadSnapshot

_ROUNDING = 1 / 510
"""Rounding error of a picture that is stored in bytes."""

_CLIPPED = (
    "{:.3g}% of this image's numbers lie outside 0 to 1 before normalisation (from {:.3g} to {:.3g}). The picture shows"
    " them cut off, and what is computed in the page is of the picture."
)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """One of the networks that a scene shows side by side.

    Attributes:
        network: The network.
        images: The images prepared for it, (images, channels, rows, cols), on its device.
        name: Short name, which no other network of the scene has.
        title: What the page calls it; "" takes the class.
        note: A sentence about it.
        mean: Mean per channel that was taken from pixels between 0 and 1 when the images were prepared; () if unknown.
        std: Standard deviation per channel, by which they were then divided; () if unknown.
        classes: Names of the classes that it scores; () if unknown.
        report: What its heads look at, measured before; or None.
        heads: Where its heads looked while it was trained.
        layers: Names of the layers to show, or patterns as in `fnmatch`; None shows all that can be read.
    """

    network: nn.Module
    images: Float[Tensor, "images channels rows cols"]
    name: str = "network"
    title: str = ""
    note: str = ""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    classes: tuple[str, ...] = ()
    report: HeadReport | None = None
    heads: Sequence[HeadSnapshot] = ()
    layers: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Checks the network and the images."""
        if not isinstance(self.network, nn.Module):
            raise ArgumentError(must_be_a("network", "a network (torch.nn.Module)", self.network))
        _require_images(self.images)
        channels = self.images.shape[1]
        object.__setattr__(self, "mean", _as_floats("mean", self.mean, channels))
        object.__setattr__(self, "std", _as_floats("std", self.std, channels))
        positive = all(value > 0 for value in self.std)
        if len(self.mean) != len(self.std) or not positive:
            raise ArgumentError(
                must_be("std", "positive numbers, given together with mean", self.std)
            )

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the images."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def shows_pictures(self) -> bool:
        """Whether a picture says all of an image: mean and std are known, and the channels are grey or colours."""
        return bool(self.mean) and self.images.shape[1] in (1, 3)

    def pictures(self) -> UInt8[Tensor, "images rows cols 3"]:
        """Returns the images as pictures; without mean and std, each is stretched between its extremes."""
        images = self._before_normalisation()
        if not self.mean:
            images = _stretched(images)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        levels = (images.clamp(0, 1) * 255).round()
        pixels = levels.to(torch.uint8).movedim(1, -1)
        return pixels.expand(-1, -1, -1, 3).contiguous()

    def notes(self) -> list[str]:
        """Returns a note for each image: which numbers outside 0 to 1 its picture cuts off; "" if there are none."""
        notes = []
        for image in self._before_normalisation():
            outside = (image < -_ROUNDING) | (image > 1 + _ROUNDING)
            note = ""
            if self.mean and outside.any():
                share = 100 * outside.double().mean().item()
                note = _CLIPPED.format(share, image.min().item(), image.max().item())
            notes.append(note)
        return notes

    def _before_normalisation(self) -> Tensor:
        """Returns the images with the mean and deviation put back, where they are known."""
        images = self.images.detach().cpu().double()
        if not self.mean:
            return images
        mean = images.new_tensor(self.mean).view(-1, 1, 1)
        std = images.new_tensor(self.std).view(-1, 1, 1)
        return images * std + mean


def _require_images(images: Any) -> None:
    """Raises ArgumentError unless images are a batch of finite numbers."""
    expected = "of shape (images, channels, rows, cols), with at least one"
    if not isinstance(images, Tensor):
        raise ArgumentError(must_be_a("images", f"a tensor {expected}", images))
    if images.ndim != 4 or not images.numel():
        raise ShapeError(must_be("images", expected, tuple(images.shape)))
    if not images.is_floating_point() or not torch.isfinite(images).all():
        raise ArgumentError("images must be finite floating-point numbers")


def _as_floats(name: str, values: Any, channels: int) -> tuple[float, ...]:
    """Returns a list or a tensor of a number for each channel, or of none, as floats."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.tensor(torch.nan)
    finite = bool(numbers.isfinite().all())
    if not finite or numbers.shape not in ((0,), (channels,)):
        raise ArgumentError(
            must_be(name, f"one finite number for each of {channels} channels", values)
        )
    return tuple(numbers.tolist())


def _stretched(images: Tensor) -> Tensor:
    """Maps the lowest number of each image to 0 and the highest to 1."""
    low = images.amin((1, 2, 3), keepdim=True)
    high = images.amax((1, 2, 3), keepdim=True)
    return (images - low) / torch.where(high > low, high - low, 1)
