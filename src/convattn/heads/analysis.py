"""What the heads of a network look at, measured on images."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial as bind
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnknownNameError, UnsupportedModelError, must_be, must_be_a
from convattn.heads.catalogue import attention_layers
from convattn.heads.head_report import HeadReport
from convattn.heads.measure import (
    SHUFFLED,
    UNTRAINED,
    PartialFile,
    Run,
    Settings,
    can_shuffle,
    digest_model,
    shuffled,
    untrained,
)
from convattn.heads.report import assemble

CONTROLS = (SHUFFLED, UNTRAINED)
"""Controls that `analyze` can measure."""

_GROUPS, _SEED = 10, 0
_MEASURED = "measured"


def analyze(
    model: nn.Module,
    images: Tensor | Sequence[Tensor],
    *,
    layers: Sequence[str] | None = None,
    kernel_size: int = 3,
    radius: int = 7,
    controls: Sequence[str] = CONTROLS,
    progress: bool = True,
    partial: str | os.PathLike[str] | None = None,
) -> HeadReport:
    """Measures where the heads of a network look, and how much of each layer a convolution explains.

    Works for every network whose attention can be read: vision transformers of timm, transformers and torchvision,
    text and audio encoders, networks of this library. Weights are computed again from queries and keys, and proved to
    be those that the network used; nothing of the network changes. Images pass in a random order (seed 0) and in
    batches; sums are kept, no maps. Each control is the same on a tenth of the images (at least ten): the network with
    the entries of each parameter shuffled, and images with their patches shuffled.

    Source: `docs/theory.md` §7.

    Args:
        model: The network; it runs in evaluation mode, and its mode is put back.
        images: Prepared images, a batch or a sequence of single ones, which is read batch by batch; or token ids.
        layers: Names of the layers to measure, which `convattn.heads.reading.attention_layers` lists. None for all
            that can be: those without positions, such as class attention, are skipped, and the report says which.
        kernel_size: Taps along each axis of the convolutions that layers are compared with; odd, at least 1.
        radius: Largest displacement along each axis, in cells, at which the report holds mean weights; at least 0.
        controls: "shuffled images" and "untrained weights", or one of them, or none.
        progress: Whether to show a progress bar; on a terminal only.
        partial: File for an interrupted analysis. If it exists, the same call first checks that the images are the
            same, then goes on from it. At the end it is deleted.

    Returns:
        The report.

    Raises:
        ArgumentError: There are no images, they differ in size, do not fit the network or are on the meta device; or
            another argument has a wrong value.
        CheckpointError: The partial file is of another analysis, or damaged.
        UnknownNameError: There is no such layer or control.
        UnsupportedModelError: The network has no attention, or none that can be read; the message names it and says
            why.

    Example:
        >>> import torch
        >>> from convattn import AttentionNet
        >>> network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
        >>> report = analyze(network, torch.randn(4, 3, 16, 16), controls=(), progress=False)
        >>> len(report.layers[0].heads), report.layers[0].grid
        (4, (8, 8))
    """
    report = analyze_and_keep(
        model,
        images,
        layers=layers,
        kernel_size=kernel_size,
        radius=radius,
        controls=controls,
        progress=progress,
        partial=partial,
    )
    if partial is not None:
        Path(partial).unlink(missing_ok=True)
    return report


def analyze_and_keep(
    model: nn.Module,
    images: Tensor | Sequence[Tensor],
    *,
    layers: Sequence[str] | None,
    kernel_size: int,
    radius: int,
    controls: Sequence[str],
    progress: bool,
    partial: str | os.PathLike[str] | None,
) -> HeadReport:
    """Does the same as `analyze`, but the partial file stays, for whoever still has to write the report to a file."""
    _require(model, images, kernel_size, radius, controls)
    _require_layers(model, layers)
    count = len(images)
    settings = Settings(None if layers is None else tuple(layers), kernel_size, _GROUPS, _SEED)
    plans = [_Plan(_MEASURED, count), *(_Plan(name, control_count(count)) for name in CONTROLS if name in controls)]
    file = None
    if partial is not None:
        of = {
            "model": digest_model(model),
            "images": count,
            "settings": repr((settings, [plan.name for plan in plans])),
        }
        file = PartialFile(partial, of)
    runs = {plan.name: Run(plan.count, settings) for plan in plans}
    if file is not None:
        file.restore(runs)
        if not runs[_MEASURED].began_with(bind(_image, images)):
            raise file.of_another("images")
    notes = _measure(model, images, runs, file, progress=progress)
    shape = tuple(images[0].shape)
    report = assemble(model, shape, runs, settings, radius, notes)
    if file is not None:
        file.write(runs, now=True)
    return report


def control_count(count: int) -> int:
    """Returns on how many of the images each control is measured: a tenth, but ten if there are as many."""
    return min(count, max(10, round(count / 10)))


@dataclass(frozen=True)
class _Plan:
    """One run: what it is called in the report, and on how many images."""

    name: str
    count: int


def _measure(
    model: nn.Module,
    images: Tensor | Sequence[Tensor],
    runs: dict[str, Run],
    file: PartialFile | None,
    *,
    progress: bool,
) -> list[str]:
    """Makes every run, those that can be made; returns which cannot, and why. An interruption writes the file."""
    notes = []
    with _bar(progress, runs) as advance:
        for name, run in runs.items():

            def after(done: int, name: str = name) -> None:
                advance(name, done)
                if file is not None:
                    file.write(runs, now=False)

            try:
                image: Callable[[int], Tensor] = bind(_image, images)
                network = model
                if name == SHUFFLED:
                    grid = next(iter(runs[_MEASURED].layers.values())).pairs.layout.grid
                    if not can_shuffle(tuple(images[0].shape), grid):
                        notes.append(f"shuffled images: {tuple(images[0].shape)} is not cut into a grid of {grid}")
                        continue
                    image = bind(_shuffled, images, grid)
                if name == UNTRAINED and run.done < run.count:
                    network = untrained(model, _SEED)
                run.go_on(network, image, after, like=runs[_MEASURED])
            except (KeyboardInterrupt, SystemExit):
                if file is not None:
                    file.write(runs, now=True)
                raise
    return notes


def _shuffled(images: Tensor | Sequence[Tensor], grid: tuple[int, ...], number: int) -> Tensor:
    return shuffled(_image(images, number), grid, number)


def _image(images: Tensor | Sequence[Tensor], number: int) -> Tensor:
    """Returns an image; what is none raises ArgumentError."""
    image = images[number]
    if not isinstance(image, Tensor):
        raise ArgumentError(must_be_a(f"images[{number}]", "a tensor", image))
    if image.layout != torch.strided:
        raise ArgumentError(must_be(f"images[{number}]", "dense", image.layout))
    if image.is_meta:
        raise ArgumentError("images must be tensors with values, but are on the meta device")
    return image


@contextmanager
def _bar(progress: bool, runs: dict[str, Run]) -> Iterator[Callable[[str, int], None]]:
    """Shows a progress bar for each run; on a terminal only."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (progress and console.is_terminal))
    with bar:
        tasks = {name: bar.add_task(name, total=run.count, completed=run.done) for name, run in runs.items()}
        yield lambda name, done: bar.advance(tasks[name], done)


def _require(model: Any, images: Any, kernel_size: Any, radius: Any, controls: Any) -> None:
    """Raises on a mistake in the arguments."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "a network (torch.nn.Module)", model))
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ArgumentError("model must have weights, but some are on the meta device")
    _require_images(images)
    for name, value, least in (("kernel_size", kernel_size, 1), ("radius", radius, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ArgumentError(must_be(name, f"an integer of at least {least}", value))
    if kernel_size % 2 == 0:
        raise ArgumentError(must_be("kernel_size", "odd", kernel_size))
    if isinstance(controls, str):
        raise ArgumentError(must_be("controls", "a list of names", controls))
    for name in controls:
        if name not in CONTROLS:
            raise UnknownNameError("control", name, CONTROLS)


def _require_images(images: Any) -> None:
    """Raises unless there is a batch, or a sequence of tensors with values."""
    if isinstance(images, str | bytes) or not isinstance(images, Tensor | Sequence):
        raise ArgumentError(must_be_a("images", "a tensor or a sequence of tensors", images))
    if isinstance(images, Tensor) and images.ndim < 2:
        raise ArgumentError(must_be("images", "a batch, whose first axis numbers the images", tuple(images.shape)))
    if isinstance(images, Tensor) and images.layout != torch.strided:
        raise ArgumentError(must_be("images", "dense", images.layout))
    if len(images) == 0:
        raise ArgumentError("images must be at least one, but there is none")
    first = _image(images, 0)
    if first.numel() == 0:
        raise ArgumentError(must_be("images", "of at least one value each", tuple(first.shape)))


def _require_layers(model: nn.Module, layers: Sequence[str] | None) -> None:
    """Raises if the network has no attention, or none of these names."""
    found = {module.name: module for module in attention_layers(model)}
    if not found:
        raise UnsupportedModelError(f"model must have attention layers, but {type(model).__name__} has none")
    if layers is None:
        return
    if isinstance(layers, str) or not layers:
        raise ArgumentError(must_be("layers", "names of layers, or None", layers))
    for name in layers:
        if name not in found:
            raise UnknownNameError("layer", name, found)
