"""One network under training: its data on the device, its steps and its measurements."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from convattn.data import ImageDataset, ImageSplit, horizontal_flip, normalise, random_crop
from convattn.errors import RecipeError, TrainingError, must_be
from convattn.training.build import build_network, build_optimizer, learning_rate_factor
from convattn.training.recipe import Recipe

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["EpochResult", "Trainer"]

_STEPS_BETWEEN_CHECKS = 50
_TEST_BATCH = 500


@dataclass(frozen=True)
class EpochResult:
    """What one epoch gave.

    Attributes:
        epoch: Epochs done.
        step: Optimizer steps done.
        learning_rate: Learning rate of the last step.
        train_loss: Mean cross-entropy of the epoch's training batches, augmented, in nats.
        test_loss: Mean cross-entropy of the test images after the epoch, in nats.
        test_accuracy: Share of the test images classified rightly after the epoch, in [0, 1].
        seconds: Wall time of the epoch's training and test together, in seconds.
        images_per_second: Training images per second, the test left out.
    """

    epoch: int
    step: int
    learning_rate: float
    train_loss: float
    test_loss: float
    test_accuracy: float
    seconds: float
    images_per_second: float


@final
class Trainer:
    """Trains one network by one recipe; both splits lie on the device as bytes.

    The order of the images and their augmentation come from generators of their own, seeded by the recipe; weights and
    dropout from PyTorch's global random numbers. With several processes each takes its share of every batch.

    Attributes:
        network: The network, as built.
        steps_per_epoch: Full batches in an epoch.
        step: Optimizer steps done.
        epoch: Epochs done.
    """

    def __init__(self, recipe: Recipe, data: ImageDataset, accelerator: "Accelerator") -> None:
        """Builds the network and the optimizer and moves the images to the device.

        Args:
            recipe: What to do.
            data: Images to train and test on.
            accelerator: Device, precision and processes.

        Raises:
            RecipeError: A batch is larger than the training split, or smaller than the number of processes.
        """
        self._recipe, self._data, self._accelerator = recipe, data, accelerator
        size, limits = recipe.training.batch_size, (accelerator.num_processes, len(data.train))
        if not limits[0] <= size <= limits[1]:
            expectation = f"from {limits[0]} (processes) to {limits[1]} (training images)"
            raise RecipeError(must_be("training.batch_size", expectation, size))
        self.steps_per_epoch, self.step, self.epoch = len(data.train) // size, 0, 0
        self.network = build_network(recipe.model, data)
        optimizer = build_optimizer(recipe.optim, self.network)
        self._prepared, self._optimizer = accelerator.prepare(self.network, optimizer)
        self._train, self._test = data.train.to(accelerator.device), data.test.to(accelerator.device)
        self._order = torch.Generator().manual_seed(recipe.seed)
        self._augmentation = torch.Generator().manual_seed(recipe.seed + 1 + accelerator.process_index)

    def run_epoch(self, on_step: Callable[[], None] = lambda: None) -> EpochResult:
        """Trains on every training image once, but for an incomplete last batch, and tests.

        Args:
            on_step: Called after every step.

        Returns:
            What the epoch gave.

        Raises:
            TrainingError: The loss is not finite.
        """
        began = time.perf_counter()
        self._prepared.train()
        losses: list[Tensor] = []
        for rows in self._batches():
            losses.append(self._train_on(rows))
            self.step += 1
            on_step()
            if len(losses) % _STEPS_BETWEEN_CHECKS == 0 or len(losses) == self.steps_per_epoch:
                self._require_finite(losses)
        train_loss = self._sum_over_processes(torch.stack(losses).mean()).item() / self._accelerator.num_processes
        trained = time.perf_counter() - began
        self.epoch += 1
        test_loss, test_accuracy = self.evaluate(self._test)
        return EpochResult(
            epoch=self.epoch,
            step=self.step,
            learning_rate=self._learning_rate(self.step - 1),
            train_loss=train_loss,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            seconds=time.perf_counter() - began,
            images_per_second=self.steps_per_epoch * self._recipe.training.batch_size / trained,
        )

    @torch.inference_mode()
    def evaluate(self, split: ImageSplit) -> tuple[float, float]:
        """Measures the network on images as they are.

        Args:
            split: Images on the device.

        Returns:
            Mean cross-entropy in nats, and the share classified rightly.
        """
        self._prepared.eval()
        rank, processes = self._accelerator.process_index, self._accelerator.num_processes
        sums = torch.zeros(2, dtype=torch.float64, device=self._accelerator.device)
        for rows in torch.arange(rank, len(split), processes, device=sums.device).split(_TEST_BATCH):
            scores, labels = self._prepared(self._normalised(split, rows)), split.labels[rows]
            sums[0] += F.cross_entropy(scores, labels, reduction="sum")
            sums[1] += (scores.argmax(dim=1) == labels).sum()
        loss, right = (self._sum_over_processes(sums) / len(split)).tolist()
        return loss, right

    def _batches(self) -> Iterator[Int64[Tensor, " images"]]:
        """Yields this process's share of the rows of each full batch, in random order."""
        order = torch.randperm(len(self._train), generator=self._order).to(self._accelerator.device)
        size, rank, processes = (
            self._recipe.training.batch_size,
            self._accelerator.process_index,
            self._accelerator.num_processes,
        )
        for first in range(0, self.steps_per_epoch * size, size):
            yield order[first : first + size][rank::processes]

    def _train_on(self, rows: Int64[Tensor, " images"]) -> Float[Tensor, ""]:
        """Takes one step and returns the loss before it."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(self.step)
        loss = F.cross_entropy(self._prepared(self._augmented(rows)), self._train.labels[rows])
        self._optimizer.zero_grad()
        self._accelerator.backward(loss)
        self._optimizer.step()
        return loss.detach()

    def _augmented(self, rows: Int64[Tensor, " images"]) -> Float[Tensor, "images channels rows cols"]:
        recipe, images = self._recipe.data, self._train.images[rows]
        if recipe.crop_padding:
            images = random_crop(images, padding=recipe.crop_padding, generator=self._augmentation)
        if recipe.flip:
            images = horizontal_flip(images, generator=self._augmentation)
        return normalise(images, self._data.mean, self._data.std)

    def _normalised(
        self, split: ImageSplit, rows: Int64[Tensor, " images"]
    ) -> Float[Tensor, "images channels rows cols"]:
        return normalise(split.images[rows], self._data.mean, self._data.std)

    def _learning_rate(self, step: int) -> float:
        epochs, recipe = self._recipe.training.epochs, self._recipe
        factor = learning_rate_factor(recipe.schedule, step, epochs=epochs, steps_per_epoch=self.steps_per_epoch)
        return recipe.optim.learning_rate * factor

    def _sum_over_processes(self, values: Float[Tensor, "*values"]) -> Float[Tensor, "*values"]:
        return cast(Tensor, self._accelerator.reduce(values, "sum"))

    def _require_finite(self, losses: list[Tensor]) -> None:
        """Stops where a loss is inf or nan; asked seldom, because the question waits for the device."""
        wrong = (~torch.stack(losses).isfinite()).nonzero()
        if len(wrong):
            number = int(wrong[0])
            step = self.step - len(losses) + number
            raise TrainingError(
                f"{self._recipe.name}: the loss is {losses[number].item()} at step {step} (epoch {self.epoch + 1}, "
                f"learning rate {self._learning_rate(step):g}); lower optim.learning_rate or warm up for longer"
            )
