"""The training images of a run, in a random order that can be resumed in the middle of an epoch."""

from collections.abc import Iterator
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from convattn.data import ImageDataset, cutmix, cutout, horizontal_flip, mirror, mixup, normalise, random_crop
from convattn.training.recipe import DataRecipe


@final
class Batches:
    """Augmented batches of a training split that lies on the device as bytes.

    Order and augmentation have their own generators on the CPU. So they are the same on every device and for any number
    of processes: each process makes the whole batch and takes its share.

    Example:
        >>> from convattn.data import load_digits
        >>> batches = Batches(load_digits(), DataRecipe("digits", flip=False), size=32, seed=0, device="cpu")
        >>> batches.per_epoch, batches.position
        (44, 0)
        >>> images, targets = next(iter(batches))
        >>> images.shape, targets.shape, batches.position
        (torch.Size([32, 1, 8, 8]), torch.Size([32, 10]), 1)
    """

    def __init__(
        self, data: ImageDataset, recipe: DataRecipe, *, size: int, seed: int, device: torch.device | str
    ) -> None:
        self._data, self._recipe, self._size = data, recipe, size
        self._split = data.train.to(device)
        self._augmentation = torch.Generator().manual_seed(seed + 1)
        self._order = torch.Generator().manual_seed(seed)
        self._order_of_epoch = self._order.get_state()
        self.per_epoch = len(self._split) // size  # images that do not fill a batch are left out
        self.position = 0  # batches used in the current epoch
        self.epoch = 0  # epochs used whole
        tossed = torch.rand(len(self._split), generator=torch.Generator().manual_seed(seed + 2)) < 0.5
        self._mirrored_first = tossed.to(device)

    def __iter__(self) -> Iterator[tuple[Float[Tensor, "batch channels rows cols"], Float[Tensor, "batch classes"]]]:
        """Yields the remaining batches of the epoch: normalised images, and the probability of each class."""
        self._order.set_state(self._order_of_epoch)
        order = torch.randperm(len(self._split), generator=self._order).to(self._split.labels.device)
        for number in range(self.position, self.per_epoch):
            rows = order[number * self._size : (number + 1) * self._size]
            self.position = number + 1
            yield self._augmented(rows)
        self._order_of_epoch, self.position, self.epoch = self._order.get_state(), 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, the epoch and the states of both generators."""
        return {
            "position": self.position,
            "epoch": self.epoch,
            "order_of_epoch": self._order_of_epoch,
            "augmentation": self._augmentation.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.position, self.epoch, self._order_of_epoch = state["position"], state["epoch"], state["order_of_epoch"]
        self._augmentation.set_state(state["augmentation"])

    def _augmented(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Varies the images of some rows as the recipe says."""
        recipe, images, generator = self._recipe, self._split.images[rows], self._augmentation
        targets = F.one_hot(self._split.labels[rows], self._data.num_classes)
        if recipe.crop_padding:
            border = recipe.crop_border
            images = random_crop(images, padding=recipe.crop_padding, generator=generator, border=border)
        if recipe.alternate_flip:
            images = mirror(images, self._mirrored_first[rows] ^ (self.epoch % 2 == 1))
        elif recipe.flip:
            images = horizontal_flip(images, generator=generator)
        if recipe.cutout:
            images = cutout(images, size=recipe.cutout, generator=generator)
        pixels = normalise(images, self._data.mean, self._data.std)
        blends = [(mixup, recipe.mixup), (cutmix, recipe.cutmix)]
        chosen = [(blend, alpha) for blend, alpha in blends if alpha]
        if not chosen:
            return pixels, targets.to(pixels.dtype)
        toss = int(torch.randint(len(chosen), (), generator=generator))
        blend, alpha = chosen[toss]
        return blend(pixels, targets.to(pixels.dtype), alpha=alpha, generator=generator)
