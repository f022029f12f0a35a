"""Trains one network: steps, tests, and the state for a checkpoint."""

import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from convattn.errors import CheckpointError, RecipeError, TrainingError, must_be
from convattn.fields import read
from convattn.lab.augment import horizontal_flip, mirror, random_crop, views
from convattn.lab.recipe import DataRecipe, LookaheadRecipe, Recipe, Views
from convattn.lab.run_setup import (
    Network,
    build_network,
    build_optimizer,
    learning_rate_factor,
    rate_of_group,
)
from convattn.networks.datasets import ImageDataset, ImageSplit, normalise

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_average(network: nn.Module, recipe: Recipe, total: int) -> AveragedModel | None:
    """Returns the average of the weights that a recipe asks for, at first a copy of the network; None without one."""
    if recipe.lookahead is not None:
        return AveragedModel(
            network, multi_avg_fn=_return_to(recipe.lookahead, total), use_buffers=True
        )
    decay = recipe.training.ema
    return (
        None if decay is None else AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))
    )


def update_average(
    average: AveragedModel, network: nn.Module, recipe: Recipe, *, step: int, total: int
) -> None:
    """Updates an average after a step; a lookahead only every few steps, and then the network takes its values."""
    if recipe.lookahead is None:
        average.update_parameters(network)
    elif step % recipe.lookahead.steps == 0 or step == total:
        average.update_parameters(network)
        for own, averaged in zip(
            network.state_dict().values(), average.module.state_dict().values(), strict=True
        ):
            own.copy_(averaged)


def _return_to(recipe: LookaheadRecipe, total: int) -> Callable[[Any, Any, Any], None]:
    """Returns the update of an average; before its first call, `AveragedModel` copies the weights."""

    def update(averages: list[Tensor], weights: list[Tensor], number: Tensor) -> None:
        step = min(recipe.steps * (int(number) + 1), total)
        decay = recipe.decay**recipe.steps * (step / total) ** 3
        for average, weight in zip(averages, weights, strict=True):
            if average.is_floating_point():
                average.lerp_(weight, 1 - decay)
            else:
                average.copy_(weight)

    return torch.no_grad()(update)


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
        self,
        data: ImageDataset,
        recipe: DataRecipe,
        *,
        size: int,
        seed: int,
        device: torch.device | str,
    ) -> None:
        side = min(data.image_shape[1:])
        if recipe.crop_border == "reflect" and recipe.crop_padding >= side:
            limit = f"at most {side - 1} for images of {side} pixels"
            raise RecipeError(must_be("data.crop_padding", limit, recipe.crop_padding))
        self._data, self._recipe, self._size = data, recipe, size
        self._split = data.train.to(device)
        self._augmentation = torch.Generator().manual_seed(seed + 1)
        self._order = torch.Generator().manual_seed(seed)
        self._order_of_epoch = self._order.get_state()
        self.per_epoch = len(self._split) // size  # images that do not fill a batch are left out
        self.position = 0  # batches used in the current epoch
        self.epoch = 0  # epochs used whole
        tossed = (
            torch.rand(len(self._split), generator=torch.Generator().manual_seed(seed + 2)) < 0.5
        )
        self._mirrored_first = tossed.to(device)

    def __iter__(
        self,
    ) -> Iterator[tuple[Float[Tensor, "batch channels rows cols"], Float[Tensor, "batch classes"]]]:
        """Yields the remaining batches of the epoch: normalised images, and the probability of each class."""
        self._order.set_state(self._order_of_epoch)
        order = torch.randperm(len(self._split), generator=self._order).to(
            self._split.labels.device
        )
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
        self.position, self.epoch, self._order_of_epoch = (
            state["position"],
            state["epoch"],
            state["order_of_epoch"],
        )
        self._augmentation.set_state(state["augmentation"])

    def _augmented(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Varies the images of some rows as the recipe says."""
        recipe, images, generator = self._recipe, self._split.images[rows], self._augmentation
        targets = F.one_hot(self._split.labels[rows], self._data.num_classes)
        if recipe.crop_padding:
            border = recipe.crop_border
            images = random_crop(
                images, padding=recipe.crop_padding, generator=generator, border=border
            )
        if recipe.alternate_flip:
            images = mirror(images, self._mirrored_first[rows] ^ (self.epoch % 2 == 1))
        elif recipe.flip:
            images = horizontal_flip(images, generator=generator)
        pixels = normalise(images, self._data.mean, self._data.std)
        return pixels, targets.to(pixels.dtype)


def peak_memory(device: torch.device) -> int:
    """Returns the largest memory so far, in bytes: of the device where it is CUDA, or else of the process.

    On Linux it is the kernel's VmHWM: ru_maxrss is inherited, and may be that of the program which started this one.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    peak = (
        re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if status.exists()
        else None
    )
    if peak is not None:
        return int(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_STEPS_BETWEEN_CHECKS = 50
_TEST_BATCH = 500
_MEASURED = ("loss", "accuracy")


@dataclass(frozen=True)
class EpochResult:
    """Results of one epoch."""

    epoch: int  # Epochs done
    step: int  # Optimizer steps done
    learning_rate: float  # Learning rate of the last step
    train_loss: float  # Mean cross-entropy of the epoch's training batches, augmented, in nats
    loss: float  # Mean cross-entropy of the measured images after the epoch, in nats
    accuracy: float  # Share of the measured images classified correctly after the epoch, in [0, 1]
    seconds: float  # Wall time of the epoch's training and measurement together, in seconds
    images_per_second: float  # Training images per second, without the measurement

    def metrics(self, measured: str) -> dict[str, float]:
        """Returns the numbers by name; loss and accuracy carry the name of the measured split."""
        return {
            f"{measured}_{key}" if key in _MEASURED else key: value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_metrics(cls, metrics: dict[str, float], measured: str) -> "EpochResult":
        """Reads what `metrics` returned; numbers of another split raise ArgumentError."""
        names = {f"{measured}_{key}": key for key in _MEASURED}
        return read(cls, {names.get(key, key): value for key, value in metrics.items()})


@final
class Trainer:
    """Trains one network by one recipe; both splits lie on the device as bytes.

    The order of the images and their augmentation have their own generators, seeded by the recipe; weights and dropout
    use PyTorch's global random numbers. Each of several processes takes its share of every batch, and the gradient is
    that of the whole batch.
    """

    def __init__(self, recipe: Recipe, data: ImageDataset, accelerator: "Accelerator") -> None:
        """Builds the network and the optimizer; if the recipe does not fit them or the data, raises RecipeError."""
        self._recipe, self._data, self._accelerator = recipe, data, accelerator
        size, limits = recipe.training.batch_size, (accelerator.num_processes, len(data.train))
        if not limits[0] <= size <= limits[1]:
            expectation = f"from {limits[0]} (processes) to {limits[1]} (training images)"
            raise RecipeError(must_be("training.batch_size", expectation, size))
        self.step, self.epoch = 0, 0
        self.network = build_network(recipe, data)
        optimizer = build_optimizer(
            recipe.optim, self.network, stem_epochs=recipe.training.stem_epochs
        )
        self._prepared, self._optimizer = accelerator.prepare(self.network, optimizer)
        self._forward = torch.compile(self._prepared) if recipe.training.compile else self._prepared
        self._batches = Batches(
            data, recipe.data, size=size, seed=recipe.seed, device=accelerator.device
        )
        self._total = recipe.training.epochs * self._batches.per_epoch
        self._average = make_average(self.network, recipe, self._total)
        self._test = data.test.to(accelerator.device)
        self._losses: list[Tensor] = []
        self._seconds = 0.0
        accelerator.register_for_checkpointing(*filter(None, (self, self._average)))
        if accelerator.process_index:
            torch.manual_seed(
                recipe.seed + accelerator.process_index
            )  # dropout of its own in each process

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch."""
        return self._batches.per_epoch

    @property
    def result(self) -> Network:
        """The network that is tested and saved: with averaged weights if the recipe asks for them."""
        return self.network if self._average is None else cast(Network, self._average.module)

    def run_epoch(self, on_step: Callable[[], None] = lambda: None) -> EpochResult:
        """Trains on the remaining full batches of an epoch, calls `on_step` after each, and tests.

        The results include the part of the epoch before a checkpoint. A loss that is not finite raises TrainingError.
        """
        clock, before = time.perf_counter(), self._seconds
        self._prepared.train()
        for images, targets in self._batches:
            self._losses.append(self._train_on(images, targets))
            self.step += 1
            if (
                len(self._losses) % _STEPS_BETWEEN_CHECKS == 0
                or len(self._losses) == self.steps_per_epoch
            ):
                self._require_finite(self._losses)
            self._seconds = before + time.perf_counter() - clock
            on_step()
        trained = before + time.perf_counter() - clock
        self.share_losses()
        train_loss = torch.stack(self._losses).mean().item()
        self.epoch += 1
        loss, accuracy = self.evaluate(self._test)
        self._losses, self._seconds = [], 0.0
        return EpochResult(
            epoch=self.epoch,
            step=self.step,
            learning_rate=self._learning_rate(self.step - 1),
            train_loss=train_loss,
            loss=loss,
            accuracy=accuracy,
            seconds=before + time.perf_counter() - clock,
            images_per_second=self.steps_per_epoch * self._recipe.training.batch_size / trained,
        )

    @torch.inference_mode()
    def evaluate(self, split: ImageSplit, kind: Views = "none") -> tuple[float, float]:
        """Returns mean cross-entropy in nats and accuracy, from the mean scores of views of each image in a split."""
        (self._prepared if self._average is None else self._average).eval()
        network = self._forward if self._average is None else self._average
        rank, processes = self._accelerator.process_index, self._accelerator.num_processes
        sums = torch.zeros(2, dtype=torch.float64, device=self._accelerator.device)
        for rows in torch.arange(rank, len(split), processes, device=sums.device).split(
            _TEST_BATCH
        ):
            images = normalise(split.images[rows], self._data.mean, self._data.std)
            scores = torch.stack(
                [share * network(view) for share, view in views(images, kind)]
            ).sum(dim=0)
            labels = split.labels[rows]
            sums[0] += F.cross_entropy(scores, labels, reduction="sum")
            sums[1] += (scores.argmax(dim=1) == labels).sum()
        means = self._mean_over_processes(sums) * processes / len(split)
        return means[0].item(), means[1].item()

    def evaluate_views(self) -> dict[str, float]:
        """Returns "views_loss" and "views_accuracy" if the recipe asks for views; every process must call it."""
        kind = self._recipe.training.test_views
        if kind == "none":
            return {}
        return dict(
            zip(("views_loss", "views_accuracy"), self.evaluate(self._test, kind), strict=True)
        )

    def share_losses(self) -> None:
        """Sums the losses of the epoch so far over all processes; every process must call it.

        It comes before a checkpoint, which keeps the state of the main process alone.
        """
        if self._losses:
            self._losses = list(self._mean_over_processes(torch.stack(self._losses)))

    def state_dict(self) -> dict[str, Any]:
        """Returns counters and losses; accelerate saves weights, optimizer and random numbers beside them."""
        losses = torch.stack(self._losses) if self._losses else torch.zeros(0)
        place = {
            "step": self.step,
            "epoch": self.epoch,
            "seconds": self._seconds,
            "data": self._data.record.hashes,
        }
        return {**place, "losses": losses.cpu(), "batches": self._batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; that of a run on other data raises CheckpointError."""
        seen, here = state.get("data", self._data.record.hashes), self._data.record.hashes
        if seen != here:
            raise CheckpointError(
                f"the run cannot go on with other data: it has seen {seen}, but there is {here}"
            )
        self.step, self.epoch, self._seconds = state["step"], state["epoch"], state["seconds"]
        self._losses = list(state["losses"].to(self._accelerator.device))
        self._batches.load_state_dict(state["batches"])

    def _train_on(
        self,
        images: Float[Tensor, "batch channels rows cols"],
        targets: Float[Tensor, "batch classes"],
    ) -> Float[Tensor, ""]:
        """Takes one step and returns the loss before it, of this process's share of the batch."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(self.step) * rate_of_group(group, self.epoch)
        recipe, accelerator = self._recipe.training, self._accelerator
        rank, processes = accelerator.process_index, accelerator.num_processes
        mine, wanted = images[rank::processes], targets[rank::processes]
        portion = recipe.micro_batch or len(mine)
        portions = list(zip(mine.split(portion), wanted.split(portion), strict=True))
        self._optimizer.zero_grad()
        total = torch.zeros((), device=images.device)
        for number, (part, classes) in enumerate(portions, start=1):
            with nullcontext() if number == len(portions) else accelerator.no_sync(self._prepared):
                scores = self._forward(part)
                loss = F.cross_entropy(
                    scores, classes, reduction="sum", label_smoothing=recipe.label_smoothing
                )
                loss = loss * (processes / len(images))
                accelerator.backward(loss)
            total += loss.detach()
        self._optimizer.step()
        if self._average is not None:
            update_average(
                self._average, self.network, self._recipe, step=self.step + 1, total=self._total
            )
        return total

    def _learning_rate(self, step: int) -> float:
        epochs, recipe = self._recipe.training.epochs, self._recipe
        factor = learning_rate_factor(
            recipe.schedule, step, epochs=epochs, steps_per_epoch=self.steps_per_epoch
        )
        return recipe.optim.learning_rate * factor

    def _mean_over_processes(self, values: Float[Tensor, "*values"]) -> Float[Tensor, "*values"]:
        return cast(Tensor, self._accelerator.reduce(values, "mean"))

    def _require_finite(self, losses: list[Tensor]) -> None:
        """Raises if a loss is inf or nan; called seldom, because it waits for the device."""
        wrong = (~torch.stack(losses).isfinite()).nonzero()
        if len(wrong):
            number = int(wrong[0])
            step = self.step - len(losses) + number
            raise TrainingError(
                f"{self._recipe.name}: the loss is {losses[number].item()} at step {step} (epoch {self.epoch + 1}, "
                f"learning rate {self._learning_rate(step):g}); lower optim.learning_rate, or use a longer warm-up"
            )


def forked_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """Returns a context that restores PyTorch's global random numbers at its end.

    With CUDA, those of every device, because seeding and loading a checkpoint change every device.
    """
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    return cast(AbstractContextManager[None], torch.random.fork_rng(devices=list(devices)))
