"""Trains by a recipe: `train` runs all epochs and returns the record."""

import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import SafetensorError

from convattn.data import ImageDataset
from convattn.errors import (
    ArgumentError,
    CheckpointError,
    DeviceError,
    MissingDependencyError,
    UnknownNameError,
    must_be,
)
from convattn.provenance import describe_hardware, describe_versions, find_revision
from convattn.records import RunRecord
from convattn.training.build import Network, load_data, with_held_out
from convattn.training.memory import peak_memory
from convattn.training.recipe import Recipe
from convattn.training.recipe_file import command_for, flat_values
from convattn.training.run_folder import RunFolder
from convattn.training.session import Session
from convattn.training.trainer import EpochResult, Trainer, forked_random_numbers

if TYPE_CHECKING:
    from accelerate import Accelerator

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
        progress: Whether to print the expected memory and to show a progress bar; on a terminal only.
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
        CheckpointError: The folder holds no run to resume, or a run of another recipe, or is used by another process; a
            checkpoint or the results cannot be written; or the network to start from cannot be loaded.
        DataError: The images cannot be loaded.
        DeviceError: This process has already trained with another precision.
        MissingDependencyError: The packages for training, or those of a tracker, are not installed.
        RecipeError: The batch does not fit the data, or no training image is left beside those held out.
        TrainingError: The loss is not finite.

    Warns:
        CheckpointWarning: A checkpoint is damaged, and the one before it is used.

    Example:
        >>> from convattn.training.recipe_file import load_recipe
        >>> small = {"model.width": "8", "model.depth": "1", "model.heads": "4", "model.ffn": "8", "model.patch": "1"}
        >>> recipe = load_recipe("digits-quadratic", overrides={**small, "training.epochs": "1"})
        >>> record = train(recipe, progress=False)
        >>> record.parameters, record.data.counts["train"]
        (630, 1437)
    """
    if not isinstance(recipe, Recipe):
        raise ArgumentError(must_be("recipe", "a Recipe, as load_recipe(NAME) returns it", recipe))
    if output is None and (resume or trackers):
        raise ArgumentError(must_be("output", "the run's folder, because resume or trackers is given", output))
    folder = None if output is None else RunFolder(output)
    if folder is not None and not resume:
        folder.require_new()
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ArgumentError(must_be("checkpoint_every", "an integer of at least 1", checkpoint_every))
    _require_trackers(trackers)
    if resume and folder is not None and (finished := folder.find_unfinished(recipe)) is not None:
        return finished
    try:
        return _train(
            recipe, folder, data, progress=progress, resume=resume, every=checkpoint_every, trackers=trackers, tell=tell
        )
    finally:
        if folder is not None:
            folder.release()


def _train(
    recipe: Recipe,
    folder: RunFolder | None,
    data: ImageDataset | None,
    *,
    progress: bool,
    resume: bool,
    every: int | None,
    trackers: Sequence[str],
    tell: Callable[[str], None] | None,
) -> RunRecord:
    """Trains; the folder is new, or holds an unfinished run of the recipe."""
    accelerator = _start_accelerator(recipe.training.precision, trackers, folder)
    console, revision = Console(stderr=True, highlight=False), find_revision()
    progress = progress and accelerator.is_main_process and console.is_terminal
    data = load_data(recipe.data) if data is None else with_held_out(data, recipe.data)
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(accelerator.device)
    with _seeded(recipe.seed, accelerator.device):
        session = Session(Trainer(recipe, data, accelerator), recipe, accelerator, folder)
        estimate = session.trainer.estimate_memory()
        if progress:
            console.print(str(estimate))
        session.resume() if resume else session.start()
        _run_epochs(session, recipe, accelerator, every, progress=progress, tell=tell)
    record = RunRecord(
        name=recipe.name,
        claim=recipe.claim,
        command=command_for(recipe),
        recipe=recipe.to_dict(),
        seed=recipe.seed,
        data=data.record,
        parameters=sum(p.numel() for p in session.trainer.network.parameters() if p.requires_grad),
        results=session.summary(),
        seconds=session.ledger.seconds,
        peak_memory=peak_memory(accelerator.device),
        memory_estimate=estimate.total,
        energy=session.ledger.energy,
        resumed=session.ledger.resumed,
        hardware={**describe_hardware(accelerator.device), "processes": str(accelerator.num_processes)},
        versions=describe_versions(),
        started=session.ledger.started,
        revision=revision,
        not_covered=_not_covered(session, accelerator.num_processes),
    )
    if folder is not None and accelerator.is_main_process:
        _write_results(folder, session.trainer.result, record)
    accelerator.wait_for_everyone()
    return record


def _require_trackers(names: Sequence[str]) -> None:
    """Raises if a tracker is unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError(name, TRACKERS[name])


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
    bar = Progress(*columns, TextColumn("{task.fields[result]}"), console=Console(stderr=True), disable=not progress)
    with _tracked(accelerator, recipe), bar:
        total = recipe.training.epochs * trainer.steps_per_epoch
        task = bar.add_task(recipe.name, total=total, completed=trainer.step, result="")
        for result in session.run(checkpoint_every=checkpoint_every, on_step=lambda: bar.advance(task)):
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
        for tracker in accelerator.trackers:  # end_training would part the processes, which meet once more
            tracker.finish()


def _write_results(folder: RunFolder, network: Network, record: RunRecord) -> None:
    try:
        folder.finish(network, record)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write the network and the record to {folder.path} ({error}); resume the run to write them again"
        ) from None


def _not_covered(session: Session, processes: int) -> tuple[str, ...]:
    items = ["the spread over seeds: this is one run"]
    if session.ledger.resumed:
        items.append("peak memory before the run was last resumed")
    if processes > 1:
        items.append("peak memory of the other processes, and energy of other devices than the first process's")
    return tuple(items)


def _start_accelerator(precision: str, trackers: Sequence[str], folder: RunFolder | None) -> "Accelerator":
    """Starts accelerate, which allows one precision per process."""
    try:
        from accelerate import Accelerator
    except ImportError:
        raise MissingDependencyError("accelerate", "train") from None
    try:
        place = None if folder is None else folder.path
        return Accelerator(mixed_precision=precision, log_with=list(trackers) or None, project_dir=place)
    except ValueError as error:
        raise DeviceError(f"training.precision {precision!r} is not possible in this process: {error}") from None


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
