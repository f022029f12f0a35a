"""Training by a recipe, from the images to the record."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from convattn.data import ImageDataset
from convattn.errors import DeviceError, MissingDependencyError
from convattn.records import RunRecord
from convattn.training.build import load_data
from convattn.training.environment import describe_hardware, describe_versions, find_revision, peak_memory
from convattn.training.heads import HeadTrace
from convattn.training.recipe import Recipe
from convattn.training.recipe_file import command_for
from convattn.training.run_folder import RunFolder
from convattn.training.trainer import EpochResult, Trainer

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["train"]


def train(
    recipe: Recipe,
    *,
    output: str | os.PathLike[str] | None = None,
    data: ImageDataset | None = None,
    progress: bool = True,
) -> RunRecord:
    """Trains the recipe's network and records all that is needed to repeat the run.

    On the CPU the same recipe, versions and number of threads give the same weights, bit for bit; the caller's random
    state is left as it was. Under ``accelerate launch`` each process takes a share of every batch.

    Args:
        recipe: What to do; from `load_recipe` or built in Python.
        output: Folder to make, or an empty one, for the run's files: ``recipe.toml``, ``metrics.jsonl``,
            ``heads.parquet`` where heads have centres, ``model.safetensors``, ``config.json`` and, last,
            ``record.json``. None leaves nothing behind but the record returned.
        data: Images to use in place of those that the recipe names.
        progress: Whether to show a progress bar; it is shown on a terminal only.

    Returns:
        The record; its results are "test_accuracy", "test_loss" and "train_loss" of the last epoch, and
        "images_per_second" over all of them.

    Raises:
        ArgumentError: The output folder holds something, or a size of the network does not fit the images.
        DataError: The images cannot be had.
        DeviceError: The process has trained with another precision before.
        MissingDependencyError: The packages for training are not installed.
        RecipeError: The batch does not fit the data.
        TrainingError: The loss is not finite.

    Example:
        >>> from convattn.training.recipe_file import load_recipe
        >>> small = {"model.width": "8", "model.depth": "1", "model.heads": "4", "model.ffn": "8", "model.patch": "1"}
        >>> recipe = load_recipe("digits-quadratic", overrides={**small, "training.epochs": "1"})
        >>> record = train(recipe, progress=False)
        >>> record.parameters, record.data.counts["train"]
        (630, 1437)
    """
    accelerator = _start_accelerator(recipe.training.precision)
    folder = RunFolder(output) if output is not None and accelerator.is_main_process else None
    started, began = datetime.now(UTC), time.perf_counter()
    data = load_data(recipe.data) if data is None else data
    with _seeded(recipe.seed, accelerator.device):
        trainer = Trainer(recipe, data, accelerator)
        results = _run_epochs(trainer, recipe, folder, progress and accelerator.is_main_process)
    record = RunRecord(
        name=recipe.name,
        claim=recipe.claim,
        command=command_for(recipe),
        recipe=recipe.to_dict(),
        seed=recipe.seed,
        data=data.record,
        parameters=sum(parameter.numel() for parameter in trainer.network.parameters()),
        results=_summary(results),
        seconds=time.perf_counter() - began,
        peak_memory=peak_memory(accelerator.device),
        hardware={**describe_hardware(accelerator.device), "processes": str(accelerator.num_processes)},
        versions=describe_versions(),
        started=started.isoformat(timespec="seconds"),
        revision=find_revision(),
        not_covered=("the spread over seeds: this is one run",),
    )
    if folder is not None:
        folder.finish(trainer.network, record)
    return record


def _run_epochs(trainer: Trainer, recipe: Recipe, folder: RunFolder | None, progress: bool) -> list[EpochResult]:
    """Runs all epochs, writing and showing each."""
    trace, results = HeadTrace(trainer.network), []
    trace.record(step=0, epoch=0)
    if folder is not None:
        folder.start(recipe)
    with _progress_bar(progress) as bar:
        task = bar.add_task(recipe.name, total=recipe.training.epochs * trainer.steps_per_epoch, result="")
        for _ in range(recipe.training.epochs):
            result = trainer.run_epoch(on_step=lambda: bar.advance(task))
            trace.record(step=result.step, epoch=result.epoch)
            results.append(result)
            if folder is not None:
                folder.add_epoch(asdict(result), trace)
            shown = f"epoch {result.epoch}: loss {result.train_loss:.3f}, test {result.test_accuracy:.2%}"
            bar.update(task, result=shown)
    return results


def _summary(results: list[EpochResult]) -> dict[str, float]:
    """Returns the last epoch's numbers, and the throughput over all epochs."""
    last = results[-1]
    return {
        "test_accuracy": last.test_accuracy,
        "test_loss": last.test_loss,
        "train_loss": last.train_loss,
        "images_per_second": len(results) / sum(1 / result.images_per_second for result in results),
    }


def _progress_bar(progress: bool) -> Progress:
    """Makes a bar on standard error, hidden where that is no terminal."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(
        *columns, TextColumn("{task.fields[result]}"), console=console, disable=not (progress and console.is_terminal)
    )


def _start_accelerator(precision: str) -> "Accelerator":
    """Starts accelerate, which fixes one precision for each process."""
    try:
        from accelerate import Accelerator
    except ImportError:
        raise MissingDependencyError("accelerate", "train") from None
    try:
        return Accelerator(mixed_precision=precision)
    except ValueError as error:
        raise DeviceError(f"training.precision {precision!r} cannot be had in this process: {error}") from None


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds PyTorch's global random numbers, and gives the caller's back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
