"""Trains by a recipe: `train` runs all epochs and returns the record."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from convattn.errors import ArgumentError, DeviceError, must_be, optional_module, require_name
from convattn.files import AnyPath
from convattn.grid import whole_number
from convattn.lab.recipe import Recipe, command_for, flat_values
from convattn.lab.run_cost import in_words
from convattn.lab.run_folder import RunFolder
from convattn.lab.run_setup import load_data, require_for_run, training_device
from convattn.lab.trainer import Trainer
from convattn.networks.datasets import ImageDataset
from convattn.provenance import RunRecord, describe_hardware, describe_versions, find_revision
from convattn.random_numbers import keep_random_state
from convattn.sealed import file_sha256

if TYPE_CHECKING:
    from accelerate import Accelerator


_SILENCE = 10.0
"""Seconds after which a line says how far an epoch is."""


def train(
    recipe: Recipe,
    *,
    output: AnyPath | None = None,
    data: ImageDataset | None = None,
    progress: bool = True,
    resume: bool = False,
    checkpoint_every: int | None = None,
    trackers: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> RunRecord:
    """Trains the network of a recipe, and records everything needed to repeat the run.

    On the CPU, the same recipe, versions and number of threads give the same weights bit for bit, even if the run was
    interrupted and resumed. The caller's random state and `torch.backends.cudnn` are left as they were. Under
    ``accelerate launch`` or ``torchrun`` each process takes a share of every batch; all of them must see the output
    folder.

    Args:
        recipe: The recipe, from `load_recipe` or built in Python.
        output: Folder to make, or an empty one, for the run's files: ``recipe.toml``, ``metrics.jsonl``,
            ``heads.parquet`` if heads have centres, ``model.safetensors``, ``config.json``, ``README.md`` (the card),
            ``checkpoints`` during the run, and, last, ``record.json``. None writes nothing.
        data: Images to use instead of those that the recipe names.
        progress: Whether to show a progress bar; on a terminal only.
        resume: Whether to continue the run in the output folder from its newest checkpoint. A finished run is left as
            it is, and its record is returned.
        checkpoint_every: Write a checkpoint also every so many steps, at least 1, beside the one after each epoch.
        trackers: Names of trackers ("tensorboard", "wandb", "trackio") to which the metrics are sent after each epoch.
        tell: Called with a line of text after each epoch, which says when the run will be done, and every ten seconds.

    Returns:
        The record; its results are "test_accuracy", "test_loss" and "train_loss" of the last epoch,
        "images_per_second" over all of them, and, where the recipe has `test_views`, "views_accuracy" and
        "views_loss" of the mean scores of several views. Where the recipe holds out training images, these are measured
        in place of the test images, and the names begin with "validation" in place of "test".

    Raises:
        ArgumentError: `recipe` is not a Recipe; a module that it imports cannot be imported; the output folder is not
            empty; no output folder is given but `resume` or `trackers` needs one; `checkpoint_every` is below 1; no
            training image is left; or a size of the network does not fit the images.
        CheckpointError: The folder holds no run to resume, or one of another recipe or on other data, or is used by
            another process; a checkpoint or the results cannot be written; or the network to start from cannot be read.
        ConversionError: The conversion that the recipe asks for fails.
        DataError: The images cannot be loaded.
        DeviceError: This process has already trained with another precision, or the device does not train in it.
        MissingDependencyError: The packages for training, or those of a tracker, are not installed.
        RecipeError: A batch is larger than the data, or the recipe names no folder of the network to start from.
        TrainingError: The loss is not finite.
        UnknownNameError: There is no such encoding or tracker.

    Warns:
        CheckpointWarning: A checkpoint is damaged, and an earlier one is used.

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
    if checkpoint_every is not None:
        whole_number("checkpoint_every", checkpoint_every)
    if output is None and (resume or trackers):
        expected = "the run's folder, because resume or trackers is given"
        raise ArgumentError(must_be("output", expected, output))
    require_for_run(recipe, has_data=data is not None, has_folder=output is not None)
    folder = None
    if output is not None:
        folder = RunFolder(output)
        finished = folder.require_new() if not resume else folder.find_finished(recipe)
        if finished is not None:
            return finished
    revision = find_revision()
    given = data is not None
    data = load_data(recipe.data, data)
    accelerator = _start_accelerator(recipe.training.precision, trackers, output)
    _reset_peak_memory(accelerator.device)
    try:
        with _process_state_kept():
            trainer = Trainer(recipe, data, accelerator)
            if folder is not None and resume:
                folder.resume(trainer)
            elif folder is not None:
                folder.begin(trainer)
            between = checkpoint_every or trainer.total_steps
            _run_epochs(trainer, folder, between, progress=progress, tell=tell)
            record = _record(trainer, revision, given=given)
        if folder is not None and accelerator.is_main_process:
            folder.finish(trainer, record)
        accelerator.wait_for_everyone()
        return record
    finally:
        if folder is not None:
            folder.release()


_TRACKERS = ("tensorboard", "wandb", "trackio")


def _start_accelerator(
    precision: str, trackers: Sequence[Any], folder: AnyPath | None
) -> "Accelerator":
    """Starts accelerate, which allows one precision per process."""
    from accelerate import Accelerator

    for tracker in trackers:
        require_name("tracker", tracker, _TRACKERS)
        optional_module(tracker, "track")
    names = list(trackers) or None
    if precision == "fp16" and training_device().type == "cpu":  # which accelerate ignores
        raise DeviceError(
            "training.precision 'fp16' is not possible on a CPU: it trains in float32 there"
        )
    try:
        return Accelerator(mixed_precision=precision, log_with=names, project_dir=folder)
    except ValueError as error:
        raise DeviceError(
            f"training.precision {precision!r} is not possible in this process: {error}"
        ) from None


@contextmanager
def _process_state_kept() -> Iterator[None]:
    """Lets cuDNN time its algorithms, and restores the caller's setting and random numbers at the end.

    Those of every device are restored, because seeding and loading a checkpoint change them all.
    """
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        with keep_random_state():
            yield
    finally:
        torch.backends.cudnn.benchmark = benchmark


def _run_epochs(
    trainer: Trainer,
    folder: RunFolder | None,
    checkpoint_every: int,
    *,
    progress: bool,
    tell: Callable[[str], None] | None,
) -> None:
    """Runs the remaining epochs, saves them, and reports each to the progress bar, `tell` and the trackers."""
    recipe, accelerator = trainer.recipe, trainer.accelerator
    console = Console(stderr=True)
    columns = (
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[result]}"),
    )
    if not accelerator.is_main_process:
        tell = None
    shown = progress and accelerator.is_main_process and console.is_terminal
    bar = Progress(*columns, console=console, disable=not shown)

    last_line = time.monotonic()

    def after_step() -> None:
        nonlocal last_line
        bar.advance(task)
        done = trainer.step % trainer.steps_per_epoch
        if not done:  # the epoch, which ends, is told and saved with its results
            return
        if tell is not None and time.monotonic() - last_line >= _SILENCE:
            last_line = time.monotonic()
            tell(f"epoch {trainer.epoch + 1}: {done} of {trainer.steps_per_epoch} steps")
        if folder is not None and trainer.step % checkpoint_every == 0:
            trainer.require_finite()
            folder.save(trainer)

    with _tracked(accelerator, recipe), bar:
        task = bar.add_task(
            recipe.name, total=trainer.total_steps, completed=trainer.step, result=""
        )
        while trainer.epoch < recipe.training.epochs:
            metrics = trainer.run_epoch(after_step)
            if folder is not None:
                folder.save(trainer)
            measured, loss = recipe.data.measured, metrics["train_loss"]
            accuracy = metrics[f"{measured}_accuracy"]
            line = f"epoch {trainer.epoch}: loss {loss:.3f}, {measured} {accuracy:.2%}"
            bar.update(task, result=line)
            if tell is not None:
                tell(line + time_left(trainer.history, recipe.training.epochs, time.time()))
                last_line = time.monotonic()
            accelerator.log(metrics, step=trainer.step)


def time_left(history: Sequence[dict[str, float]], epochs: int, now: float) -> str:
    """Says when a run will be done, if its other epochs take as long as those before; nothing after the last."""
    epochs_left = epochs - len(history)
    if not epochs_left:
        return ""
    seconds = epochs_left * sum(metrics["seconds"] for metrics in history) / len(history)
    until = time.strftime("%a %H:%M", time.localtime(now + seconds))
    return f"; {epochs_left} to go, about {in_words(seconds)}, until {until}"


@contextmanager
def _tracked(accelerator: "Accelerator", recipe: Recipe) -> Iterator[None]:
    """Starts the trackers, and closes them at the end, also after an error."""
    accelerator.init_trackers(recipe.name, config=flat_values(recipe))
    try:
        yield
    finally:  # end_training would part the processes, which meet once more
        for tracker in accelerator.trackers:
            tracker.finish()


def _record(trainer: Trainer, revision: str | None, *, given: bool) -> RunRecord:
    """Makes the record of a run; every process must call it."""
    recipe, accelerator = trainer.recipe, trainer.accelerator
    processes = accelerator.num_processes
    not_covered = ["the spread over seeds: this is one run"]
    if trainer.resumed:
        not_covered.append(
            "peak memory, hardware, versions and revision before the run was last resumed"
        )
    if processes > 1:
        not_covered.append("peak memory of the other processes")
    if recipe.training.precision != "no":
        not_covered.append(
            f"accuracy in float32, in which the network is loaded: it was measured in {recipe.training.precision}"
        )
    if given:
        not_covered.append(
            "the command's data: images were given in Python in place of the recipe's"
        )
    parameters = trainer.network.parameters()
    hardware = describe_hardware(accelerator.device)
    if accelerator.device.type == "cuda":
        hardware |= cuda_settings()
    return RunRecord(
        name=recipe.name,
        claim=recipe.claim,
        command=command_for(recipe),
        recipe=recipe.to_dict(),
        seed=recipe.seed,
        data=trainer.data.record,
        parameters=sum(one.numel() for one in parameters if one.requires_grad),
        results=trainer.summary(),
        seconds=trainer.seconds,
        peak_memory=peak_memory(accelerator.device),
        resumed=trainer.resumed,
        hardware={**hardware, "processes": str(processes)},
        versions={**describe_versions(), **_hashes_of(recipe.imports or ())},
        started=trainer.started,
        revision=revision,
        not_covered=tuple(not_covered),
    )


def _hashes_of(modules: Sequence[str]) -> dict[str, str]:
    """Returns the SHA-256 of the files of modules that the recipe imports: no revision covers them."""
    hashes = {}
    for name in modules:
        file = sys.modules[name].__file__
        if file is not None:
            hashes[name] = f"sha256 {file_sha256(Path(file))}"
    return hashes


def cuda_settings() -> dict[str, str]:
    """Returns in words what in a run on CUDA moves its last digits; whether TF32 is used is the caller's choice."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "cuda": str(torch.version.cuda),
        "cudnn": str(cudnn.version()),
        "memory_format": "channels_last",
        "cudnn_benchmark": str(cudnn.benchmark),
        "tf32_products": str(products.fp32_precision == "tf32"),
        "tf32_convolutions": str(cudnn.conv.fp32_precision == "tf32"),
    }


def _reset_peak_memory(device: torch.device) -> None:
    """Lets `peak_memory` begin anew, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Returns the largest memory so far, in bytes: of the device where it is CUDA, or else of the process.

    On Linux it is the kernel's VmHWM: ru_maxrss is inherited, and may be that of the program which started this one. On
    Windows, which does not say it, 0.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if peak is not None:
            return int(peak[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
