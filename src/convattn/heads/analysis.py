"""What the heads of a network look at, measured on images: runs, and the report made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnknownNameError, UnsupportedModelError, must_be, must_be_a
from convattn.heads.catalogue import attention_layers
from convattn.heads.head_report import (
    Control,
    Estimate,
    HeadReport,
    LayerReport,
    LayerStatistics,
    layer_sentence,
    mean_of,
)
from convattn.heads.head_statistics import head_statistics
from convattn.heads.head_sums import NO_POSITION
from convattn.heads.kernel_fit import uniform_distance
from convattn.heads.measure import (
    GROUPS,
    SEED,
    SHUFFLED,
    UNTRAINED,
    LayerMeasure,
    Run,
    can_shuffle,
    shuffled,
    untrained,
)
from convattn.provenance import describe_versions
from convattn.sealed import weights_digest
from convattn.wording import counted

CONTROLS = (SHUFFLED, UNTRAINED)
"""Controls that `analyze` can measure."""

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

    Returns:
        The report.

    Raises:
        ArgumentError: There are no images, they differ in size, do not fit the network or are on the meta device; or
            another argument has a wrong value.
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
    _require(model, images, kernel_size, radius, controls)
    _require_layers(model, layers)
    counts = {_MEASURED: len(images)}
    counts |= {name: control_count(len(images)) for name in CONTROLS if name in controls}
    runs: dict[str, Run] = {}
    notes: list[str] = []
    with _bar(progress, counts) as advance:
        for name, count in counts.items():
            network, image = model, partial(_image, images)
            if name == SHUFFLED:
                grid = next(iter(runs[_MEASURED].layers.values())).pairs.layout.grid
                if not can_shuffle(tuple(images[0].shape), grid):
                    notes.append(f"shuffled images: {tuple(images[0].shape)} is not cut into a grid of {grid}")
                    continue
                image = partial(_shuffled, images, grid)
            if name == UNTRAINED:
                network = untrained(model, SEED)
            runs[name] = Run(count, layers, kernel_size)
            runs[name].measure(network, image, partial(advance, name), like=runs[_MEASURED])
    return _assemble(model, tuple(images[0].shape), runs, kernel_size, radius, notes)


def control_count(count: int) -> int:
    """Returns on how many of the images each control is measured: a tenth, but ten if there are as many."""
    return min(count, max(10, round(count / 10)))


def _shuffled(images: Tensor | Sequence[Tensor], grid: tuple[int, ...], number: int) -> Tensor:
    return shuffled(_image(images, number), grid, number)


def _image(images: Tensor | Sequence[Tensor], number: int) -> Tensor:
    """Returns an image; raises ArgumentError unless it is a dense tensor with values."""
    image = images[number]
    if not isinstance(image, Tensor):
        raise ArgumentError(must_be_a(f"images[{number}]", "a tensor", image))
    if image.layout != torch.strided:
        raise ArgumentError(must_be(f"images[{number}]", "dense", image.layout))
    if image.is_meta:
        raise ArgumentError("images must be tensors with values, but are on the meta device")
    return image


@contextmanager
def _bar(progress: bool, counts: Mapping[str, int]) -> Iterator[Callable[[str, int], None]]:
    """Shows a progress bar for each run; on a terminal only."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (progress and console.is_terminal))
    with bar:
        tasks = {name: bar.add_task(name, total=count) for name, count in counts.items()}
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


_LIMITS = (
    "attention says where a layer reads, not what its values carry",
    "standard errors are over these images; they do not know other kinds of images",
)


def _assemble(
    model: nn.Module,
    shape: tuple[int, ...],
    runs: Mapping[str, Run],
    kernel_size: int,
    radius: int,
    notes: Sequence[str],
) -> HeadReport:
    """Makes the report of the run "measured" and of its controls."""
    main = runs[_MEASURED]
    controls = {name: run for name, run in runs.items() if run is not main}
    layers = []
    for name, layer in main.layers.items():
        measured = _layer_statistics(layer, main.count, kernel_size, radius)
        beside = tuple(
            Control(key, _layer_statistics(run.layers[name], run.count, kernel_size, None))
            for key, run in controls.items()
            if name in run.layers
        )
        layers.append(_layer_report(name, layer, measured, beside, kernel_size, radius))
    limits = [*_LIMITS, *notes, *(f"{name}: {NO_POSITION}" for name in main.passed_over)]
    if any(layer.masked for layer in main.layers.values()):
        limits.append("masks differ between images: pairs that a mask excludes count as pairs of weight 0")
    if any(layer.fit is None for layer in main.layers.values()):
        limits.append("convolution scores of layers whose inputs or outputs do not lie on the grid of their queries")
    unsettled = sum(layer.kernels.unsettled for run in runs.values() for layer in run.layers.values())
    if unsettled:
        limits.append(
            f"position scores of {counted(unsettled, 'head')}, controls included: weights by displacement were not"
            " fitted to the end, and the scores may be too low"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    measured_modules = {name: modules[name] for name in ("", *main.layers) if name in modules}
    return HeadReport(
        model=type(model).__name__,
        images=main.count,
        control_images=max((run.count for run in controls.values()), default=0),
        image_shape=shape,
        groups=min(GROUPS, main.count),
        kernel_size=kernel_size,
        radius=radius,
        seed=SEED,
        layers=tuple(layers),
        versions=describe_versions(),
        not_covered=tuple(limits),
        weights={name: weights_digest(module) for name, module in measured_modules.items()},
    )


def _layer_statistics(layer: LayerMeasure, images: int, kernel_size: int, radius: int | None) -> LayerStatistics:
    """Computes the statistics of one layer in one run; `radius` None leaves the kernels out."""
    heads, coverage = head_statistics(layer.sums, layer.pairs, layer.kernels, radius)
    by_shift, by_hard = coverage(kernel_size)
    nan = float("nan")
    mean = mean_of([head.non_locality for head in heads])
    # The heads of a layer see the same images, so that their errors do not average out.
    error = mean_of([Estimate(head.non_locality.error, nan) for head in heads])
    return LayerStatistics(
        images=images,
        heads=heads,
        tap_coverage=by_shift,
        hard_tap_coverage=by_hard,
        non_locality=Estimate(mean, error),
        convolution_score=Estimate(nan, nan) if layer.fit is None else layer.fit.estimate(GROUPS),
        convolution_components=0 if layer.fit is None else layer.fit.components,
        convolution_images=(0, 0) if layer.fit is None else layer.fit.images,
    )


def _layer_report(
    name: str,
    layer: LayerMeasure,
    measured: LayerStatistics,
    controls: tuple[Control, ...],
    kernel_size: int,
    radius: int,
) -> LayerReport:
    """Makes the report of one layer."""
    pairs = layer.pairs
    return LayerReport(
        name=name,
        kind=layer.kind,
        pattern=pairs.layout.pattern,
        grid=pairs.layout.grid,
        prefix=int(pairs.layout.key_prefix.sum()),
        normalised=layer.normalised,
        error=layer.error,
        budget=layer.budget,
        uniform_distance=uniform_distance(pairs),
        displacements=tuple(map(tuple, pairs.displacements[pairs.within(radius)].tolist())),
        measured=measured,
        controls=controls,
        sentence=layer_sentence(pairs.layout.grid, measured, controls, kernel_size),
    )
