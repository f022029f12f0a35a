"""What the heads of a network look at, measured on images: runs over the images, and the report made of them."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int64
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from convattn.convert.surgery import require_network
from convattn.errors import (
    ArgumentError,
    ConvAttnError,
    UnsupportedModelError,
    lacks_memory,
    must_be,
    must_be_a,
    require_name,
    sorts,
)
from convattn.grid import whole_number
from convattn.heads.catalogue import is_own, survey
from convattn.heads.controls import CONTROLS, can_shuffle, control_count, shuffled
from convattn.heads.head_report import (
    AGAIN,
    MEASURED,
    SHUFFLED,
    UNTRAINED,
    HeadReport,
    LayerReport,
    call_name,
    weight_digests,
)
from convattn.heads.head_sums import NO_POSITION, has_positions
from convattn.heads.jackknife import GROUPS, held_out
from convattn.heads.layout import AttentionCall
from convattn.heads.measure import LayerMeasure, layer_statistics
from convattn.heads.reading import Watcher
from convattn.heads.untrained import untrained
from convattn.provenance import describe_versions
from convattn.wording import ITSELF, counted

SEED = 0
"""Seed of the order of the images and of the controls."""

_WEIGHTS_AT_ONCE = 192 * 2**20
"""Bytes of the attention weights of one layer that a batch may have."""

_FIRST, _MOST = 2, 32
"""Images of the first batch, which measures the memory of an image, and at most of each other batch."""


def analyze(
    model: nn.Module,
    images: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    *,
    layers: str | Sequence[str] | None = None,
    kernel_size: int = 3,
    radius: int = 7,
    controls: Sequence[str] = CONTROLS,
    progress: bool = True,
) -> HeadReport:
    """Measures where the heads of a network look, and how much of each layer a convolution explains.

    Works for every network whose attention can be read: vision transformers of timm, transformers and torchvision,
    text and audio encoders, networks of this library. Weights are computed again from queries and keys, and proved to
    be those that the network used; nothing of the network changes. Images pass in a random order (seed 0) and in
    batches; sums are kept, no maps. Each control is the same on the first tenth of that order (at least ten): the
    network with its weights drawn anew by the rules of its classes, and images with their patches shuffled. The report
    says if a class has no rule for a parameter, and leaves this control out.

    Source: `docs/explanation/theory.md` §7.

    Args:
        model: The network; it runs in evaluation mode, and its mode is put back.
        images: Prepared images, a batch or a list of single ones, which is read batch by batch; or token ids. Of a
            network of several inputs, a batch of each by the name of the argument.
        layers: Names of the layers to measure, which `convattn.heads.reading.attention_layers` lists, or patterns as
            in `fnmatch`. None for all that can be; the report says which cannot, such as class attention, whose query
            has no position.
        kernel_size: Taps along each axis of the convolutions that layers are compared with; odd, at least 1.
        radius: Largest displacement along each axis, in cells, at which the report holds mean weights; at least 0.
        controls: "shuffled images" and "untrained weights", or one of them, or none.
        progress: Whether to show a progress bar; off a terminal, a line on standard error every ten seconds.

    Returns:
        The report.

    Raises:
        ArgumentError: There are no images, they differ in size, do not fit the network or are on the meta device; no
            layer has such a name; or another argument has a wrong value.
        UnknownNameError: There is no such control.
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
    kernel_size = whole_number("kernel_size", kernel_size)
    radius = whole_number("radius", radius, least=0)
    require_network("model", model)
    inputs = Images(images)
    _require(kernel_size, controls)
    notes = []
    if layers is None:
        notes += [f"{layer.name}: {layer.refused}" for layer in survey(model) if layer.refused]
    if held_out(inputs.count) < 2:
        few = counted(inputs.count, "image")
        notes.append(
            f"errors of scores on held-out images: {few} give none, and words rest on values"
        )
    counts = {MEASURED: inputs.count}
    counts |= {name: control_count(inputs.count) for name in CONTROLS if name in controls}
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(inputs.count, generator=generator, device="cpu").tolist()
    runs: dict[str, Run] = {}
    with _bars(counts, show=progress) as advance:
        for name, count in counts.items():
            network = model
            grid = None
            if name == SHUFFLED:
                first = next(iter(runs[MEASURED].layers.values()))
                grid = first.pairs.layout.grid
                if ONLY not in inputs.by_name:
                    notes.append(f"{SHUFFLED}: inputs by name are not shuffled")
                    continue
                if not can_shuffle(inputs.shape, grid):
                    notes.append(f"{SHUFFLED}: {inputs.shape} is not cut into a grid of {grid}")
                    continue
            elif name == UNTRAINED:
                try:
                    network = untrained(model, SEED)
                except UnsupportedModelError as error:
                    notes.append(f"{UNTRAINED}: {error}")
                    continue
            run = Run(count, layers, kernel_size)
            batch_of = partial(_batch_of, inputs, order, grid)
            try:
                run.measure(network, batch_of, partial(advance, name), like=runs.get(MEASURED, run))
            except (ConvAttnError, RuntimeError) as error:
                if name == MEASURED:
                    raise
                notes.append(f"{name}: {error}")  # what was measured is not lost with its control
                continue
            runs[name] = run
    main = runs.pop(MEASURED)
    return HeadReport(
        model=type(model).__name__,
        images=inputs.count,
        control_images=max((run.count for run in runs.values()), default=0),
        image_shape=inputs.shape,
        groups=min(GROUPS, inputs.count),
        kernel_size=kernel_size,
        radius=radius,
        seed=SEED,
        layers=tuple(_layer_report(model, name, main, runs, radius) for name in main.layers),
        versions=describe_versions(),
        weights=weight_digests(model, ("", *main.layers)),
        not_covered=(*_LIMITS, *notes, *_not_covered(main, runs)),
    )


def _require(kernel_size: int, controls: Any) -> None:
    """Raises an error for an even kernel, and for controls that there are not."""
    if kernel_size % 2 == 0:
        raise ArgumentError(must_be("kernel_size", "odd", kernel_size))
    if isinstance(controls, str) or not isinstance(controls, Iterable):
        raise ArgumentError(must_be("controls", "names of controls in a list, or ()", controls))
    for name in controls:
        require_name("control", name, CONTROLS)


ONLY = ""
"""Name of the input of a network that has one."""


class Images:
    """The images of an analysis, which are read batch by batch.

    Attributes:
        by_name: Those of each input, by its name.
        count: Number of images.
        shape: Shape of one of the first input.
    """

    def __init__(self, images: Any) -> None:
        """Takes a batch, single images, or batches by name; raises ArgumentError for anything else."""
        self.by_name = {ONLY: images}
        counts: dict[str, int | None] = {}
        if isinstance(images, Mapping):
            self.by_name = dict(images)
            for name, batch in images.items():
                is_batch = isinstance(batch, Tensor) and batch.ndim
                counts[name] = len(batch) if is_batch else None
        elif isinstance(images, tuple) or not isinstance(images, Tensor | Sequence):
            expected = (
                "a tensor, a list of single images, or for a network of several inputs a mapping like"
                ' {"name of the argument": batch, …}'
            )
            raise ArgumentError(must_be_a("images", expected, images))
        if isinstance(images, Tensor) and images.ndim < 2:
            shape = tuple(images.shape)
            raise ArgumentError(
                must_be("images", "a batch, whose first axis numbers the images", shape)
            )
        if None in counts.values() or len(set(counts.values())) > 1:
            raise ArgumentError(
                f"images must hold a batch of each input, all as long, but hold {counts}"
            )
        self.count = len(next(iter(self.by_name.values()), ()))
        if not self.count:
            raise ArgumentError("images must be at least one, but there is none")
        self._shapes = defaultdict[str, set[tuple[int, ...]]](set)
        first = next(iter(self.batch([0]).values()))
        self.shape = tuple(first.shape[1:])

    def batch(
        self, numbers: Sequence[int], grid: tuple[int, ...] | None = None
    ) -> dict[str, Tensor]:
        """Returns some images by the name of the input, shuffled if a grid is given.

        Raises ArgumentError unless they are dense tensors of one size with finite values.
        """
        batches = {}
        for key, images in self.by_name.items():
            whole = f"images[{key!r}]" if key else "images"
            parts = []
            for number in numbers:
                name = f"{whole}[{number}]"
                part = images[number]
                if not isinstance(part, Tensor):
                    raise ArgumentError(must_be_a(name, "a tensor", part))
                if part.layout != torch.strided or part.is_meta or not part.numel():
                    kind = f"{sorts([part])}, {part.layout} on {part.device}"
                    raise ArgumentError(f"{name} must be dense, with values, but is {kind}")
                parts.append(part if grid is None else shuffled(part, grid, number))
            shapes = self._shapes[key]
            shapes.update(tuple(part.shape) for part in parts)
            if len(shapes) > 1:
                sizes = " and ".join(map(str, sorted(shapes)))
                raise ArgumentError(f"{whole} must be of one size, but are of {sizes}")
            batch = torch.stack(parts)
            if batch.is_floating_point() and not torch.isfinite(batch).all():
                raise ArgumentError(
                    f"{whole} must hold finite numbers, but some are infinite or nan"
                )
            batches[key] = batch
        return batches


def _batch_of(
    images: Images, order: Sequence[int], grid: tuple[int, ...] | None, places: Iterable[int]
) -> dict[str, Tensor]:
    """Returns the images at some places of an order, shuffled if a grid is given."""
    return images.batch([order[place] for place in places], grid)


def as_input(batch: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Moves a batch to the device of a model's weights, and floating-point numbers to their dtype."""
    moved = {}
    for name, part in batch.items():
        weights = next(model.parameters(), part)
        is_cast = part.is_floating_point() and weights.is_floating_point()
        moved[name] = part.to(weights.device, weights.dtype if is_cast else part.dtype)
    return moved


_SECONDS = 10.0
"""Time between two lines of progress."""


@contextmanager
def _bars(counts: Mapping[str, int], *, show: bool) -> Iterator[Callable[[str, int], None]]:
    """Shows a progress bar for each run; off a terminal, a line on standard error every ten seconds."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, disable=not (show and console.is_terminal))
    tasks = {name: bars.add_task(name, total=count) for name, count in counts.items()}
    in_lines = show and not console.is_terminal
    last = time.monotonic()

    def advance(name: str, done: int) -> None:
        nonlocal last
        bars.advance(tasks[name], done)
        if in_lines and time.monotonic() - last >= _SECONDS:
            last = time.monotonic()
            finished = bars.tasks[tasks[name]].completed
            console.print(f"{name}: {finished} of {counts[name]} images", highlight=False)

    with bars:
        yield advance


class Run:
    """The measures of all layers over some images.

    Attributes:
        count: Number of images.
        layers: The layers by name, in the order in which they compute; a further call of one says its number.
        passed_over: Layers in which no query, or no key, has a position.
    """

    def __init__(self, count: int, layers: str | Sequence[str] | None, kernel_size: int) -> None:
        """Starts without images; `layers` are the names of those to measure, None for all."""
        self.count = count
        self.layers: dict[str, LayerMeasure] = {}
        self.passed_over: dict[str, None] = {}
        self._names = layers
        self._kernel_size = kernel_size
        self._masked: set[str] = set()  # Layers whose masks differ between batches

    def measure(
        self,
        model: nn.Module,
        batch_of: Callable[[Sequence[int]], dict[str, Tensor]],
        advance: Callable[[int], None],
        like: "Run",
    ) -> None:
        """Measures the first images of an order.

        `batch_of` returns some by their places in it, and `advance` is called with the size of each batch. The memory
        of an image in the run `like`, which may be this one, is known from its first batch on. If masks of a layer turn
        out to differ between batches, sums start anew.
        """
        fitted = self.count - held_out(self.count)
        watcher = Watcher(model, self._names, prove=like is self)
        for start, stop in self._batches((fitted, self.count), like):
            batch = as_input(batch_of(range(start, stop)), model)
            members = torch.arange(start, stop) * min(GROUPS, self.count) // self.count
            known = len(self._masked)
            self._add(watcher, batch, members, held_out=start >= fitted)
            if len(self._masked) > known:
                advance(-start)
                self.layers.clear()
                self.measure(model, batch_of, advance, like)
                return
            advance(stop - start)

    def _batches(self, ends: Sequence[int], like: "Run") -> Iterator[tuple[int, int]]:
        """Cuts the images up to each end into batches, none of a single image if that can be helped."""
        start = 0
        for end in ends:
            while start < end:
                layers = self.layers or like.layers
                largest = max((layer.bytes for layer in layers.values()), default=_WEIGHTS_AT_ONCE)
                fitting = _WEIGHTS_AT_ONCE // largest
                size = min(end - start, max(_FIRST, min(_MOST, fitting)))
                if end - start - size == 1:
                    size += 1
                yield start, start + size
                start += size

    def _add(
        self,
        watcher: Watcher,
        batch: Mapping[str, Tensor],
        members: Int64[Tensor, " images"],
        *,
        held_out: bool,
    ) -> None:
        """Runs the network on one batch and adds it to every layer."""
        kind = type(watcher.model).__name__
        add = partial(self._add_call, Counter(), members, held_out)
        try:
            watcher.run(batch.get(ONLY, batch), add)
        except Exception as error:
            if not lacks_memory(error):
                raise
            shapes = ", ".join(str(tuple(part.shape)) for part in batch.values())
            raise UnsupportedModelError(
                f"there is not enough memory for the attention of {kind} on a batch of shape"
                f" {shapes}: a layer's weights are heads × queries × keys numbers; choose other"
                " layers, or smaller images"
            ) from error
        if not self.layers:
            reasons = [f"{name}: {NO_POSITION}" for name in self.passed_over] or ["no layer ran"]
            raise UnsupportedModelError(
                f"no attention of {kind} can be measured: {', '.join(reasons)}"
            )

    def _add_call(
        self,
        calls: Counter[str],
        members: Int64[Tensor, " images"],
        held_out: bool,
        call: AttentionCall,
    ) -> None:
        """Counts and adds one call of one layer; a layer whose mask is not that of the calls before is only noted."""
        name = call_name(call.name, calls)
        on_cpu = {key: part.cpu() for key, part in vars(call).items() if isinstance(part, Tensor)}
        call = replace(call, **on_cpu)
        if self._names is None and not has_positions(call.layout):
            self.passed_over[name or ITSELF] = None
            return
        if name not in self.layers:
            first = call
            if name in self._masked:
                first = replace(call, layout=replace(call.layout, allowed=None))
            self.layers[name] = LayerMeasure(first, self._kernel_size, self.layers.values())
        layer = self.layers[name]
        if name in self._masked or layer.pairs.fits(call.layout):
            layer.add(call, members, held_out=held_out)
        else:
            self._masked.add(name)


def _layer_report(
    model: nn.Module, name: str, main: Run, controls: Mapping[str, Run], radius: int
) -> LayerReport:
    """Makes the report of one layer, with its controls."""
    module: Any = model.get_submodule(name.partition(AGAIN)[0])
    layer = main.layers[name]
    pairs = layer.pairs
    layout = pairs.layout
    beside = {}
    for control, run in controls.items():
        if name in run.layers:
            beside[control] = layer_statistics(run.layers[name], radius, with_kernels=False)
    return LayerReport(
        name=name,
        kind=layer.kind,
        pattern=layout.pattern,
        grid=layout.grid,
        grid_source=layer.grid_source,
        prefix=int(layout.key_prefix.sum()),
        normalised=layer.normalised,
        error=layer.error,
        budget=layer.budget,
        uniform_distance=pairs.everywhere_alike[0],
        displacements=tuple(map(tuple, pairs.displacements[pairs.within(radius)].tolist())),
        measured=layer_statistics(layer, radius),
        controls=beside,
        kernel_size=layer.convolution.kernel_size,
        without_content=is_own(module) and module.content is None,
    )


_LIMITS = (
    "attention says where a layer reads, not what its values carry",
    "standard errors are over these images; they do not know other kinds of images",
)


def _not_covered(main: Run, controls: Mapping[str, Run]) -> Iterator[str]:
    """Yields what the runs say nothing about."""
    for name in main.passed_over:
        yield f"{name}: {NO_POSITION}"
    layers = main.layers.values()
    if any(layer.masked for layer in layers):
        yield "masks differ between images: pairs that a mask excludes count as pairs of weight 0"
    if any(layer.convolution.basis is None for layer in layers):
        yield "convolution scores of layers whose inputs or outputs do not lie on the grid of their queries"
    unsettled = 0
    for run in (main, *controls.values()):
        unsettled += sum(layer.kernels.unsettled for layer in run.layers.values())
    if unsettled:
        included = ", controls included" if controls else ""
        yield (
            f"position scores of {counted(unsettled, 'head')}{included}: weights by displacement were not fitted to the"
            " end, and the scores may be too low"
        )
