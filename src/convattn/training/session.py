"""A run that can be interrupted at any moment: trainer, folder and checkpoints, in all processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast, final

from safetensors import SafetensorError

from convattn.errors import CheckpointError
from convattn.training.checkpoint import Checkpoint, Checkpoints
from convattn.training.energy import Ledger
from convattn.training.heads import HeadTrace
from convattn.training.recipe import Recipe
from convattn.training.run_folder import RunFolder
from convattn.training.trainer import EpochResult, Trainer

if TYPE_CHECKING:
    from accelerate import Accelerator

_MOMENTS = 200
"""Approximate number of times that the heads are recorded during a run, besides after each epoch."""


@final
class Session:
    """Runs the epochs of a trainer, and saves what is needed to resume.

    Every process has a folder if one does, but only the main process writes.
    """

    def __init__(self, trainer: Trainer, recipe: Recipe, accelerator: "Accelerator", folder: RunFolder | None) -> None:
        self.trainer, self.ledger = trainer, Ledger(accelerator.device)
        self.heads, self.results = HeadTrace(trainer.network), list[EpochResult]()  # one result for each epoch
        self._recipe, self._accelerator, self._folder = recipe, accelerator, folder
        self._between_moments = -(-recipe.training.epochs * trainer.steps_per_epoch // _MOMENTS)
        accelerator.register_for_checkpointing(self.ledger)

    def start(self) -> None:
        """Makes the folder, with a first checkpoint at step 0; if that fails, nothing is left of it."""
        self.heads.record(step=0, epoch=0)
        if self._folder is None:
            return
        with self._written("the folder is not made"):
            if self._accelerator.is_main_process:
                with self._folder.new(self._recipe) as folder:
                    self._save(Checkpoints(folder / "checkpoints"))
                self._folder.hold()
            else:
                self._save(None)
        self._accelerator.wait_for_everyone()

    def resume(self) -> None:
        """Continues the run from its newest checkpoint, written by this version and as many processes."""
        assert self._folder is not None
        if self._accelerator.is_main_process:
            self._folder.hold()
        self._folder.checkpoints.load_newest(self._load)
        measured = self._recipe.data.measured
        steps = [step for step in range(self.trainer.step + 1) if self._is_moment(step)]
        self.results = self._folder.rewind(steps, self.trainer.epoch, measured, self.heads)
        if self.trainer.step == 0 and not self.heads.rows:
            self.heads.record(step=0, epoch=0)
        self._accelerator.wait_for_everyone()  # the main process may now replace what all have read

    def _is_moment(self, step: int) -> bool:
        """Tells whether the heads are recorded after a step."""
        return step % self.trainer.steps_per_epoch == 0 or step % self._between_moments == 0

    def run(self, *, checkpoint_every: int | None, on_step: Callable[[], None]) -> Iterator[EpochResult]:
        """Runs the remaining epochs, and yields the results of each after writing them.

        `checkpoint_every` is the number of steps between two checkpoints; None writes one after each epoch.
        """

        def after_step() -> None:
            on_step()
            self.ledger.watch()
            step, trainer = self.trainer.step, self.trainer
            if step % trainer.steps_per_epoch == 0:
                return
            if self._is_moment(step):
                self.heads.record(step=step, epoch=trainer.epoch)
            if checkpoint_every is not None and step % checkpoint_every == 0:
                self._write()

        while self.trainer.epoch < self._recipe.training.epochs:
            result = self.trainer.run_epoch(after_step)
            self.heads.record(step=result.step, epoch=result.epoch)
            self.results.append(result)
            self._write(result)
            yield result

    def summary(self) -> dict[str, float]:
        """Returns the last epoch's numbers, those of views of the test images, and the throughput over all epochs."""
        last = self.results[-1]
        rates = [result.images_per_second for result in self.results]
        return {
            f"{self._recipe.data.measured}_accuracy": last.accuracy,
            f"{self._recipe.data.measured}_loss": last.loss,
            "train_loss": last.train_loss,
            **self.trainer.evaluate_views(),
            "images_per_second": len(rates) / sum(1 / rate for rate in rates),
        }

    def _write(self, result: EpochResult | None = None) -> None:
        """Writes an epoch's metrics, the heads and a checkpoint."""
        if self._folder is None:
            return
        main = self._accelerator.is_main_process
        checkpoints = self._folder.checkpoints if main else None
        with self._written("earlier ones are kept"):
            if main and result is not None:
                self._folder.add_epoch(result.metrics(self._recipe.data.measured))
            if main:
                self._folder.write_heads(self.heads)
            self._save(checkpoints)

    @contextmanager
    def _written(self, otherwise: str) -> Iterator[None]:
        """Turns errors in writing a checkpoint into one CheckpointError, and removes the unfinished checkpoint."""
        assert self._folder is not None
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            if self._accelerator.is_main_process:
                self._folder.checkpoints.clear()
            place = f"the checkpoint of step {self.trainer.step} to {self._folder.path}"
            raise CheckpointError(f"cannot write {place} ({error}); {otherwise}") from None

    def _save(self, checkpoints: Checkpoints | None) -> None:
        """Writes a checkpoint, all processes together; the main one opens and closes it."""
        from accelerate.utils import broadcast_object_list

        self.trainer.share_losses()
        step = self.trainer.step
        place = [None if checkpoints is None else str(checkpoints.begin(step))]
        broadcast_object_list(place)
        written = Path(cast(str, place[0]))
        self._accelerator.save_state(str(written))
        self._accelerator.wait_for_everyone()
        if checkpoints is not None:
            checkpoints.finish(written, step=step, processes=self._accelerator.num_processes)
        self._accelerator.wait_for_everyone()

    def _load(self, place: Path, checkpoint: Checkpoint) -> None:
        processes = self._accelerator.num_processes
        if checkpoint.processes != processes:
            raise CheckpointError(
                f"checkpoint {place.name} was written by {checkpoint.processes} processes, but there are {processes}"
            )
        try:
            self._accelerator.load_state(str(place))
        except (OSError, RuntimeError, ValueError, KeyError, AttributeError, ImportError) as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CheckpointError(
                f"checkpoint {place.name} is complete, but this version cannot load it ({told})"
            ) from None
