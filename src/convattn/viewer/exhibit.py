"""A network as it is shown: what is said of it, and how its images were prepared."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from convattn.analysis.heads import HeadSnapshot
from convattn.errors import ArgumentError, ShapeError, must_be, must_be_a
from convattn.records import HeadReport
from convattn.viewer.texts import require_texts

_ROUNDING = 1 / 510
"""What a picture in bytes may be off."""

_CLIPPED = (
    "{:.1%} of this image's numbers lie outside 0 to 1 before normalisation (from {:.3g} to {:.3g}). The picture shows"
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
        std: What they were divided by then; () if unknown.
        classes: Names of the classes that it scores; () if unknown.
        report: What its heads look at, measured before; or None.
        heads: Where its heads looked while it was trained.
        layers: Names of the layers to show; None shows all that can be read.
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
    heads: Sequence[HeadSnapshot] = field(default=())
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Checks the network and the images."""
        if not isinstance(self.network, nn.Module):
            raise ArgumentError(must_be_a("network", "a network (torch.nn.Module)", self.network))
        images = self.images
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.numel():
            found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise ShapeError(must_be("images", "of shape (images, channels, rows, cols), with at least one", found))
        if images.is_meta:
            raise ArgumentError(must_be("images", "on a device that holds numbers", images.device))
        if not images.is_floating_point() or not bool(torch.isfinite(images).all()):
            raise ArgumentError("images must be finite floating-point numbers")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), images.shape[1]))
        if bool(self.mean) != bool(self.std) or not all(value > 0 for value in self.std):
            raise ArgumentError(must_be("std", "positive numbers, given together with mean", self.std))
        require_texts("classes", self.classes)
        for name in ("name", "title", "note"):
            if not isinstance(given := getattr(self, name), str):
                raise ArgumentError(must_be(name, "text", given))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the images."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def shows_pictures(self) -> bool:
        """Whether a picture says all of an image: mean and std are known, and the channels are grey or colours."""
        return bool(self.mean) and self.images.shape[1] in (1, 3)

    def pictures(self) -> UInt8[Tensor, "images rows cols 3"]:
        """Returns the images as one sees them; where mean and std are unknown, each between its extremes."""
        images = self._before_normalisation()
        if not self.mean:
            low, high = (images.flatten(1).aminmax(dim=1)[n].view(-1, 1, 1, 1) for n in (0, 1))
            images = (images - low) / torch.where(high > low, high - low, 1)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        return (images.clamp(0, 1) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1).movedim(1, -1).contiguous()

    def notes(self) -> list[str]:
        """Says of each image what its picture does not show: numbers outside 0 to 1; "" where it shows all."""
        if not self.mean:
            return [""] * len(self.images)
        images = self._before_normalisation().flatten(1)
        outside = (images < -_ROUNDING) | (images > 1 + _ROUNDING)
        extremes = zip(outside.double().mean(1).tolist(), *(images.aminmax(dim=1)), strict=True)
        return [_CLIPPED.format(share, low.item(), high.item()) if share else "" for share, low, high in extremes]

    def _before_normalisation(self) -> Tensor:
        """Returns the images with the mean and deviation put back, where they are known."""
        images = self.images.detach().cpu().double()
        if not self.mean:
            return images
        mean, std = (torch.tensor(value, dtype=torch.float64).view(-1, 1, 1) for value in (self.mean, self.std))
        return images * std + mean


def _numbers(name: str, given: Any, channels: int) -> tuple[float, ...]:
    """Returns a list or a tensor of numbers as floats."""
    try:
        numbers = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = None
    if numbers is None or numbers.shape not in ((0,), (channels,)) or not bool(numbers.isfinite().all()):
        raise ArgumentError(must_be(name, f"one finite number for each of {channels} channels", given))
    return tuple(numbers.tolist())
