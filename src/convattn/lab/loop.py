"""Trains by a recipe: `train` runs all epochs and returns the record."""

import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import SafetensorError

from convattn.errors import (
    ArgumentError,
    CheckpointError,
    DeviceError,
    MissingDependencyError,
    UnknownNameError,
    must_be,
    require_packages,
)
from convattn.lab.recipe import Recipe, command_for, flat_values
from convattn.lab.run_folder import Checkpoints, HeadTrace, RunFolder
from convattn.lab.run_setup import load_data, with_held_out
from convattn.lab.trainer import EpochResult, Trainer, forked_random_numbers, peak_memory
from convattn.networks.datasets import ImageDataset
from convattn.provenance import RunRecord, describe_hardware, describe_versions, find_revision

if TYPE_CHECKING:
    from accelerate import Accelerator


@final
class Ledger:
    """Wall time of a run; what was spent between the last checkpoint and an interruption is not counted."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")  # ISO 8601 in UTC
        self.resumed = 0  # Resumptions from a checkpoint
        self._began, self._earlier = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Wall time so far, in seconds."""
        return self._earlier + time.perf_counter() - self._began

    def state_dict(self) -> dict[str, Any]:
        """Returns time, number of resumptions and start."""
        return {"seconds": self.seconds, "resumed": self.resumed, "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._earlier, self.resumed, self.started = (
            state["seconds"],
            state["resumed"] + 1,
            state["started"],
        )


_MOMENTS = 200
"""Approximate number of times that the heads are recorded during a run, besides after each epoch."""


@final
class Session:
    """Runs the epochs of a trainer, and saves what is needed to resume.

    Every process has a folder if one does, but only the main process writes.
    """

    def __init__(
        self, trainer: Trainer, recipe: Recipe, accelerator: "Accelerator", folder: RunFolder | None
    ) -> None:
        self.trainer, self.ledger = trainer, Ledger()
        self.heads, self.results = (
            HeadTrace(trainer.network),
            list[EpochResult](),
        )  # one result for each epoch
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
        """Returns whether the heads are recorded after a step."""
        return step % self.trainer.steps_per_epoch == 0 or step % self._between_moments == 0

    def run(
        self, *, checkpoint_every: int | None, on_step: Callable[[], None]
    ) -> Iterator[EpochResult]:
        """Runs the remaining epochs, and yields the results of each after writing them.

        `checkpoint_every` is the number of steps between two checkpoints; None writes one after each epoch.
        """

        def after_step() -> None:
            on_step()
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
        """Turns errors in writing a checkpoint into one CheckpointError."""
        assert self._folder is not None
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            place = f"the checkpoint of step {self.trainer.step} to {self._folder.path}"
            raise CheckpointError(f"cannot write {place} ({error}); {otherwise}") from None

    def _save(self, checkpoints: Checkpoints | None) -> None:
        """Writes a checkpoint, all processes together; the main one opens and closes it."""
        from accelerate.utils import broadcast_object_list

        self.trainer.share_losses()
        processes = self._accelerator.num_processes
        with (
            nullcontext()
            if checkpoints is None
            else checkpoints.new(self.trainer.step, processes) as opened
        ):
            place = [None if opened is None else str(opened)]
            broadcast_object_list(place)
            self._accelerator.save_state(place[0])
            self._accelerator.wait_for_everyone()
        self._accelerator.wait_for_everyone()

    def _load(self, place: Path, processes: int) -> None:
        now = self._accelerator.num_processes
        if processes != now:
            raise CheckpointError(
                f"checkpoint {place.name} was written by {processes} processes, but there are {now}"
            )
        try:
            self._accelerator.load_state(str(place))
        except (OSError, RuntimeError, ValueError, KeyError, AttributeError, ImportError) as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CheckpointError(
                f"checkpoint {place.name} is complete, but this version cannot load it ({told})"
            ) from None


TRACKERS = {"tensorboard": "train", "wandb": "track", "trackio": "track"}
"""Trackers by the names of their packages, with the extra of convattn that installs each."""


def train(
    recipe: Recipe,
    *,
    output: str | os.PathLike[str] | None = None,
    data: ImageDataset | None = None,
    progress: bool = True,
    resume: bool = False,
    checkpoint_every: int | None = None,
    trackers: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> RunRecord:
    """Trains the network of a recipe, and records everything needed to repeat the run.

    On the CPU, the same recipe, versions and number of threads give the same weights bit for bit, even if the run was
    interrupted and resumed. The caller's random state does not change. Under ``accelerate launch`` or ``torchrun`` each
    process takes a share of every batch; all of them must see the output folder.

    Args:
        recipe: The recipe, from `load_recipe` or built in Python.
        output: Folder to make, or an empty one, for the run's files: ``recipe.toml``, ``metrics.jsonl``,
            ``heads.parquet`` if heads have centres, ``model.safetensors``, ``config.json``, ``README.md`` (the card),
            ``checkpoints`` during the run, and, last, ``record.json``. None writes nothing.
        data: Images to use instead of those that the recipe names.
        progress: Whether to show a progress bar; on a terminal only.
        resume: Whether to continue the run in the output folder from its newest checkpoint. A finished run is left as
            it is, and its record is returned.
        checkpoint_every: Steps between two checkpoints, at least 1; None writes one after each epoch.
        trackers: Names of trackers ("tensorboard", "wandb", "trackio") to which the metrics are sent after each epoch.
        tell: Called with a line of text after each epoch, which says when the run will be done.

    Returns:
        The record; its results are "test_accuracy", "test_loss" and "train_loss" of the last epoch,
        "images_per_second" over all of them, and, where the recipe has `test_views`, "views_accuracy" and
        "views_loss" of the mean scores of several views. Where the recipe holds out training images, these are measured
        in place of the test images, and the names begin with "validation" in place of "test".

    Raises:
        ArgumentError: `recipe` is not a Recipe; the output folder is not empty; no output folder is given but `resume`
            or `trackers` needs one; `checkpoint_every` is below 1; or a size of the network does not fit the images.
        CheckpointError: The folder holds no run to resume, or one of another recipe or on other data, or is used by
            another process; a checkpoint or the results cannot be written; or the network to start from cannot be read.
        DataError: The images cannot be loaded.
        DeviceError: This process has already trained with another precision.
        MissingDependencyError: The packages for training, or those of a tracker, are not installed.
        RecipeError: Batch or reflected border do not fit the data, or all training images are held out.
        TrainingError: The loss is not finite.

    Warns:
        CheckpointWarning: A checkpoint is damaged, and the one before it is used.

    Example:
        >>> from convattn.lab.recipe import load_recipe
        >>> small = {"model.width": "8", "model.depth": "1", "model.heads": "4", "model.ffn": "8", "model.patch": "1"}
        >>> recipe = load_recipe("digits-quadratic", overrides={**small, "training.epochs": "1"})
        >>> record = train(recipe, progress=False)
        >>> record.parameters, record.data.counts["train"]
        (630, 1437)
    """
    if not isinstance(recipe, Recipe):
        raise ArgumentError(must_be("recipe", "a Recipe, as load_recipe(NAME) returns it", recipe))
    if output is None and (resume or trackers):
        raise ArgumentError(
            must_be("output", "the run's folder, because resume or trackers is given", output)
        )
    require_packages(
        "accelerate", *(() if output is None else ("huggingface_hub", "pyarrow", "tomli_w"))
    )
    folder = None if output is None else RunFolder(output)
    if folder is not None and not resume:
        folder.require_new()
    if checkpoint_every is not None and (type(checkpoint_every) is not int or checkpoint_every < 1):
        raise ArgumentError(
            must_be("checkpoint_every", "an integer of at least 1", checkpoint_every)
        )
    for name in trackers:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError(name, TRACKERS[name])
    if resume and folder is not None and (finished := folder.find_finished(recipe)) is not None:
        return finished
    try:
        accelerator = _start_accelerator(recipe.training.precision, trackers, folder)
        revision = find_revision()
        progress = progress and accelerator.is_main_process and Console(stderr=True).is_terminal
        data = load_data(recipe.data) if data is None else with_held_out(data, recipe.data)
        if accelerator.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(accelerator.device)
        with _seeded(recipe.seed, accelerator.device):
            session = Session(Trainer(recipe, data, accelerator), recipe, accelerator, folder)
            session.resume() if resume else session.start()
            _run_epochs(
                session, recipe, accelerator, checkpoint_every, progress=progress, tell=tell
            )
        record = RunRecord(
            name=recipe.name,
            claim=recipe.claim,
            command=command_for(recipe),
            recipe=recipe.to_dict(),
            seed=recipe.seed,
            data=data.record,
            parameters=sum(
                p.numel() for p in session.trainer.network.parameters() if p.requires_grad
            ),
            results=session.summary(),
            seconds=session.ledger.seconds,
            peak_memory=peak_memory(accelerator.device),
            resumed=session.ledger.resumed,
            hardware={
                **describe_hardware(accelerator.device),
                "processes": str(accelerator.num_processes),
            },
            versions=describe_versions(),
            started=session.ledger.started,
            revision=revision,
            not_covered=_not_covered(session, accelerator.num_processes),
        )
        if folder is not None and accelerator.is_main_process:
            folder.finish(session.trainer.result, record)
        accelerator.wait_for_everyone()
        return record
    finally:
        if folder is not None:
            folder.release()


def _run_epochs(
    session: Session,
    recipe: Recipe,
    accelerator: "Accelerator",
    checkpoint_every: int | None,
    *,
    progress: bool,
    tell: Callable[[str], None] | None,
) -> None:
    """Runs the remaining epochs, and reports each to the progress bar, `tell` and the trackers."""
    trainer, measured = session.trainer, recipe.data.measured
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(
        *columns,
        TextColumn("{task.fields[result]}"),
        console=Console(stderr=True),
        disable=not progress,
    )
    with _tracked(accelerator, recipe), bar:
        total = recipe.training.epochs * trainer.steps_per_epoch
        task = bar.add_task(recipe.name, total=total, completed=trainer.step, result="")
        for result in session.run(
            checkpoint_every=checkpoint_every, on_step=lambda: bar.advance(task)
        ):
            shown = f"epoch {result.epoch}: loss {result.train_loss:.3f}, {measured} {result.accuracy:.2%}"
            bar.update(task, result=shown)
            if tell is not None and accelerator.is_main_process:
                tell(shown + _time_left(session.results, recipe.training.epochs, time.time()))
            if accelerator.log_with:
                accelerator.log(result.metrics(measured), step=result.step)


def _time_left(results: Sequence[EpochResult], epochs: int, now: float) -> str:
    """Says when a run will be done, if its other epochs take as long as those before; nothing after the last."""
    left = (epochs - len(results)) * sum(result.seconds for result in results) / len(results)
    if not left:
        return ""
    shown = f"{left / 60:.0f} min" if left >= 60 else f"{left:.0f} s"
    until = time.strftime("%a %H:%M", time.localtime(now + left))
    return f"; {epochs - len(results)} to go, about {shown}, until {until}"


@contextmanager
def _tracked(accelerator: "Accelerator", recipe: Recipe) -> Iterator[None]:
    """Starts the trackers, and closes them at the end, also after an error."""
    if not accelerator.log_with:
        yield
        return
    accelerator.init_trackers(recipe.name, config=flat_values(recipe))
    try:
        yield
    finally:
        for (
            tracker
        ) in accelerator.trackers:  # end_training would part the processes, which meet once more
            tracker.finish()


def _not_covered(session: Session, processes: int) -> tuple[str, ...]:
    items = ["the spread over seeds: this is one run"]
    if session.ledger.resumed:
        items.append("peak memory, hardware, versions and revision before the run was last resumed")
    if processes > 1:
        items.append("peak memory of the other processes")
    return tuple(items)


def _start_accelerator(
    precision: str, trackers: Sequence[str], folder: RunFolder | None
) -> "Accelerator":
    """Starts accelerate, which allows one precision per process."""
    from accelerate import Accelerator

    try:
        place = None if folder is None else folder.path
        return Accelerator(
            mixed_precision=precision, log_with=list(trackers) or None, project_dir=place
        )
    except ValueError as error:
        raise DeviceError(
            f"training.precision {precision!r} is not possible in this process: {error}"
        ) from None


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds PyTorch's global random numbers, and restores the caller's afterwards.

    Those of Python and numpy are restored too: nothing here uses them, but accelerate saves and loads them.
    """
    import numpy as np

    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with forked_random_numbers(device):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
