"""Trains one network: its batches, steps and epochs, and the state that a checkpoint holds."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from convattn.errors import CheckpointError, RecipeError, TrainingError, must_be
from convattn.lab.augment import crop, mirror, views
from convattn.lab.head_trace import HeadTrace
from convattn.lab.recipe import DataRecipe, LookaheadRecipe, Recipe, Views
from convattn.lab.run_setup import Network, build_network, build_optimizer, learning_rate_factor
from convattn.networks.datasets import ImageDataset
from convattn.networks.pictures import normalise

if TYPE_CHECKING:
    from accelerate import Accelerator


@final
class Batches:
    """Augmented batches of a training split that lies on the device as bytes.

    Order and augmentation have their own generators on the CPU, from which all of an epoch is drawn before its first
    batch, and copied to the device once. So it is the same on every device and for any number of processes: each
    process makes the whole batch and takes its share. Images that do not fill a batch are left out.

    Example:
        >>> from convattn.data import load_digits
        >>> batches = Batches(load_digits(), DataRecipe("digits", flip=False), size=32, seed=0, device="cpu")
        >>> images, targets = next(batches.of_epoch(0))
        >>> images.shape, targets.shape, batches.per_epoch
        (torch.Size([32, 1, 8, 8]), torch.Size([32, 10]), 44)
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
        self._recipe = recipe
        self._size = size
        self._split = data.train.to(device)
        self._classes = torch.arange(data.num_classes, device=device)
        self.statistics = torch.tensor([data.mean, data.std], device=device)
        seeds = (seed, seed + 1)  # Of the order and of the augmentation
        self._generators = [torch.Generator().manual_seed(number) for number in seeds]
        # At the start of the current epoch; what a checkpoint keeps
        self.states = [generator.get_state() for generator in self._generators]
        coins = torch.rand(len(self._split), generator=torch.Generator().manual_seed(seed + 2))
        self._mirrored_first = coins < 0.5
        self.per_epoch = len(self._split) // size

    def of_epoch(
        self, epoch: int, done: int = 0
    ) -> Iterator[tuple[Float[Tensor, "batch channels rows cols"], Float[Tensor, "batch classes"]]]:
        """Yields the batches of an epoch, counted from 0, after so many: normalised images, and the targets.

        Targets are the probability of each class.
        """
        rows, shifts, mirrored = self._draw_epoch(epoch)
        for number in range(done, self.per_epoch):
            batch = slice(number * self._size, (number + 1) * self._size)
            images = self._split.images[rows[batch]]
            if self._recipe.crop_padding:
                images = crop(images, shifts[:, batch], self._recipe.crop_border)
            if self._recipe.flip:
                images = mirror(images, mirrored[batch])
            images = normalise(images, *self.statistics)
            targets = self._split.labels[rows[batch], None] == self._classes
            yield images, targets.to(images.dtype)
        self.states = [generator.get_state() for generator in self._generators]

    def _draw_epoch(
        self, epoch: int
    ) -> tuple[Int64[Tensor, " rows"], Int64[Tensor, "2 shifted"], Bool[Tensor, " tossed"]]:
        """Draws rows, shifts and which images are mirrored, batch after batch, and copies them to the device."""
        for generator, state in zip(self._generators, self.states, strict=True):
            generator.set_state(state)
        of_rows, augmentation = self._generators
        rows = torch.randperm(len(self._split), generator=of_rows, device="cpu")
        recipe, size, most = self._recipe, self._size, self._recipe.crop_padding
        shifts = [torch.zeros(2, 0, dtype=torch.int64)]
        coins = [torch.zeros(0)]
        for _ in range(self.per_epoch):
            if most:
                shifts.append(torch.randint(-most, most + 1, (2, size), generator=augmentation))
            if recipe.flip and not recipe.alternate_flip:
                coins.append(torch.rand(size, generator=augmentation))
        mirrored = torch.cat(coins) < 0.5
        if recipe.alternate_flip:
            mirrored = self._mirrored_first[rows] ^ (epoch % 2 == 1)
        device = self._classes.device
        return rows.to(device), torch.cat(shifts, dim=1).to(device), mirrored.to(device)


@final
class Lookahead(AveragedModel):
    """The average of a `LookaheadRecipe`, at first a copy of the network, over so many steps in all."""

    def __init__(self, network: nn.Module, recipe: LookaheadRecipe, total: int) -> None:
        super().__init__(network, avg_fn=self._average, use_buffers=True)
        self._recipe, self._total = recipe, total

    def follow(self, network: nn.Module, step: int) -> None:
        """Updates the average every few steps and after the last; the network then takes its values."""
        recipe = self._recipe
        if step % recipe.steps == 0 or step == self._total:
            self._kept = recipe.decay**recipe.steps * (step / self._total) ** 3
            self.update_parameters(network)
            network.load_state_dict(self.module.state_dict())

    def _average(self, mean: Tensor, weight: Tensor, _: Tensor | int) -> Tensor:
        return mean.lerp(weight, 1 - self._kept) if mean.is_floating_point() else weight


_MOMENTS = 200
"""Approximate number of times that the heads are recorded during a run, besides after each epoch."""

_KEPT = ("step", "epoch", "history", "started", "_epoch_seconds")
"""Attributes of a `Trainer` that a checkpoint keeps as they are."""

_STEPS_BETWEEN_CHECKS = 50


@final
class Trainer:
    """Trains one network by one recipe; both splits lie on the device as bytes.

    The order of the images and their augmentation have their own generators, seeded by the recipe; weights and dropout
    use PyTorch's global random numbers. Each of several processes takes its share of every batch, and the gradient is
    that of the whole batch.

    Attributes:
        recipe: The recipe.
        data: The images.
        accelerator: What places the network on devices and processes.
        network: The network in training.
        steps_per_epoch: Full batches in an epoch.
        total_steps: Steps of the whole run.
        step: Optimizer steps done.
        epoch: Epochs done.
        history: Numbers of each epoch done, by the names in ``metrics.jsonl``.
        heads: Where the heads of quadratic layers looked, so far.
        started: Start of the run, ISO 8601 in UTC.
        resumed: Resumptions from a checkpoint.
    """

    def __init__(self, recipe: Recipe, data: ImageDataset, accelerator: "Accelerator") -> None:
        """Seeds PyTorch's global random numbers, and builds the network and the optimizer.

        If the recipe does not fit them or the data, this raises RecipeError.
        """
        least, most = accelerator.num_processes, len(data.train)
        size = recipe.training.batch_size
        if not least <= size <= most:
            limits = f"from {least} (processes) to {most} (training images)"
            raise RecipeError(must_be("training.batch_size", limits, size))
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.accelerator = accelerator
        self.network = build_network(recipe, data)
        if accelerator.device.type == "cuda":
            self.network.to(memory_format=torch.channels_last)
        self.step = 0
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self.heads = HeadTrace(self.network)
        self.heads.record(step=0, epoch=0)
        optimizer = build_optimizer(recipe, self.network)
        self._prepared, self._optimizer = accelerator.prepare(self.network, optimizer)
        self._forward = self._prepared
        if recipe.training.compile:
            self._forward = torch.compile(self._prepared)
        self._batches = Batches(
            data, recipe.data, size=size, seed=recipe.seed, device=accelerator.device
        )
        self.steps_per_epoch = self._batches.per_epoch
        self.total_steps = recipe.training.epochs * self.steps_per_epoch
        self.data = data
        self._test = data.test.to(accelerator.device)
        self._losses: list[Tensor] = []
        self._epoch_seconds = 0.0
        accelerator.register_for_checkpointing(self)
        self._average = None
        if recipe.lookahead is not None:
            self._average = Lookahead(self.network, recipe.lookahead, self.total_steps)
            accelerator.register_for_checkpointing(self._average)
        if accelerator.process_index:  # dropout of its own in each process
            torch.manual_seed(recipe.seed + accelerator.process_index)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.resumed = 0
        self._began = time.perf_counter()  # the start, as if the run had never been interrupted

    @property
    def seconds(self) -> float:
        """Wall time of the run, without what was spent between the last checkpoint and an interruption."""
        return time.perf_counter() - self._began

    @property
    def result(self) -> Network:
        """The network to be saved: with averaged weights if the recipe asks for them, and in torch's usual layout."""
        network = self.network if self._average is None else self._average.module
        return cast(Network, network.to(memory_format=torch.contiguous_format))

    def run_epoch(self, on_step: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Trains on the remaining full batches of an epoch, calls `on_step` after each, and measures.

        The numbers, which are added to `history`, include the part of the epoch before a checkpoint. A loss that is not
        finite raises TrainingError.
        """
        began = time.perf_counter() - self._epoch_seconds
        self._prepared.train()
        for images, targets in self._batches.of_epoch(self.epoch, len(self._losses)):
            self._losses.append(self._train_on(images, targets))
            self.step += 1
            ended = len(self._losses) == self.steps_per_epoch
            if ended or len(self._losses) % _STEPS_BETWEEN_CHECKS == 0:
                self.require_finite()
            if not ended and self.step % -(-self.total_steps // _MOMENTS) == 0:
                self.heads.record(step=self.step, epoch=self.epoch)
            self._epoch_seconds = time.perf_counter() - began
            on_step()
        trained = time.perf_counter() - began
        self.share_losses()
        train_loss = torch.stack(self._losses).mean().item()
        self.epoch += 1
        loss, accuracy = self.evaluate()
        self.heads.record(step=self.step, epoch=self.epoch)
        self._losses = []
        self._epoch_seconds = 0.0
        measured = self.recipe.data.measured
        if not math.isfinite(loss):
            raise self._diverged(f"the {measured} loss is {loss} after epoch {self.epoch}")
        metrics = {
            "epoch": self.epoch,
            "step": self.step,
            "learning_rate": self._learning_rate(self.step - 1),
            "train_loss": train_loss,
            f"{measured}_loss": loss,
            f"{measured}_accuracy": accuracy,
            "seconds": time.perf_counter() - began,
            "images_per_second": self.steps_per_epoch * self.recipe.training.batch_size / trained,
        }
        self.history.append(metrics)
        return metrics

    def summary(self) -> dict[str, float]:
        """Returns the last epoch's numbers, those of views of the test images, and the throughput over all epochs.

        Every process must call it.
        """
        measured, last = self.recipe.data.measured, self.history[-1]
        names = (f"{measured}_accuracy", f"{measured}_loss", "train_loss")
        results = {name: last[name] for name in names}
        views_of_images = self.recipe.training.test_views
        if views_of_images != "none":
            loss, accuracy = self.evaluate(views_of_images)
            results |= {"views_loss": loss, "views_accuracy": accuracy}
        rates = [metrics["images_per_second"] for metrics in self.history]
        return {**results, "images_per_second": statistics.harmonic_mean(rates)}

    @torch.inference_mode()
    def evaluate(self, kind: Views = "none") -> tuple[float, float]:
        """Returns mean cross-entropy in nats and accuracy, from the mean scores of views of each test image."""
        split = self._test
        network = self._forward
        if self._average is None:
            self._prepared.eval()
        else:
            network = self._average.eval()
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        device, loss, right = self.accelerator.device, 0.0, 0.0
        own_rows = torch.arange(rank, len(split), processes, device=device)
        batches = -(-len(split) // self.recipe.training.batch_size)  # in every process as many
        for rows in own_rows.tensor_split(batches):
            images = normalise(split.images[rows], *self._batches.statistics)
            scores = torch.stack([network(view) for view in views(images, kind)]).mean(dim=0)
            labels = split.labels[rows]
            loss += F.cross_entropy(scores, labels, reduction="sum").item()
            right += (scores.argmax(dim=1) == labels).sum().item()
        sums = cast(
            Tensor, self.accelerator.reduce(torch.tensor([loss, right], device=device), "sum")
        )
        loss, right = sums.tolist()
        return loss / len(split), right / len(split)

    def share_losses(self) -> None:
        """Sums the losses of the epoch so far over all processes; every process must call it.

        It comes before a checkpoint, which keeps the state of the main process alone.
        """
        if self._losses:
            losses = torch.stack(self._losses)
            self._losses = list(cast(Tensor, self.accelerator.reduce(losses, "mean")))

    def state_dict(self) -> dict[str, Any]:
        """Returns counters, losses and what was recorded; accelerate saves weights, optimizer and random numbers."""
        return {
            "own": {name: getattr(self, name) for name in _KEPT},
            "losses": torch.tensor(self._losses),
            "batches": self._batches.states,
            "data": self.data.record.hashes,
            "heads": self.heads.rows,
            "resumed": self.resumed,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; that of a run on other data raises CheckpointError."""
        before, here = state["data"], self.data.record.hashes
        if before != here:
            raise CheckpointError(
                f"the run cannot go on with other data: it has seen {before}, but there is {here}"
            )
        vars(self).update(state["own"])
        self._losses = list(state["losses"].to(self.accelerator.device))
        self._batches.states = state["batches"]
        self.heads.rows = state["heads"]
        self.resumed = state["resumed"] + 1
        self._began = time.perf_counter() - state["seconds"]

    def _train_on(
        self,
        images: Float[Tensor, "batch channels rows cols"],
        targets: Float[Tensor, "batch classes"],
    ) -> Float[Tensor, ""]:
        """Takes one step and returns the loss before it, of this process's share of the batch."""
        rate = self._learning_rate(self.step)
        for group in self._optimizer.param_groups:
            learns = group["epochs"] is None or self.epoch < group["epochs"]
            group["lr"] = rate * (group["rate"] if learns else 0.0)
        recipe, accelerator = self.recipe.training, self.accelerator
        rank, processes = accelerator.process_index, accelerator.num_processes
        own_images, own_targets = images[rank::processes], targets[rank::processes]
        self._optimizer.zero_grad()
        scores = self._forward(own_images)
        loss = F.cross_entropy(
            scores, own_targets, reduction="sum", label_smoothing=recipe.label_smoothing
        )
        loss = loss * (processes / len(images))
        accelerator.backward(loss)
        self._optimizer.step()
        if self._average is not None:
            self._average.follow(self.network, self.step + 1)
        return loss.detach()

    def _learning_rate(self, step: int) -> float:
        factor = learning_rate_factor(
            self.recipe.schedule,
            step,
            epochs=self.recipe.training.epochs,
            steps_per_epoch=self.steps_per_epoch,
        )
        return self.recipe.optim.learning_rate * factor

    def require_finite(self) -> None:
        """Raises if a loss of the epoch is inf or nan; called seldom, because it waits for the device."""
        wrong = (~torch.stack(self._losses).isfinite()).nonzero()
        if not len(wrong):
            return
        number = int(wrong[0])
        step = self.step - len(self._losses) + number
        loss, rate = self._losses[number].item(), self._learning_rate(step)
        raise self._diverged(
            f"the loss is {loss} at step {step} (epoch {self.epoch + 1}, learning rate {rate:g})"
        )

    def _diverged(self, what: str) -> TrainingError:
        advice = "lower optim.learning_rate, or use a longer warm-up"
        return TrainingError(f"{self.recipe.name}: {what}; {advice}")
