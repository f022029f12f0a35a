"""What the heads of a network look at, measured on images: runs over the images, and the report made of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float64, Int64
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from convattn.convert.surgery import copy_network
from convattn.errors import (
    ArgumentError,
    ConvAttnError,
    UnknownNameError,
    UnsupportedModelError,
    lacks_memory,
    must_be,
    must_be_a,
)
from convattn.grid import whole_number
from convattn.heads.catalogue import attention_layers
from convattn.heads.head_report import (
    Control,
    Estimate,
    HeadReport,
    HeadStatistics,
    LayerReport,
    LayerStatistics,
    layer_sentence,
    mean_of,
)
from convattn.heads.head_sums import (
    NO_POSITION,
    HeadSums,
    Pairs,
    empty_sums,
    has_positions,
    jackknife,
    make_pairs,
    sum_heads,
)
from convattn.heads.kernel_fit import ConvolutionFit, KernelFit, uniform_distance
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.provenance import describe_versions
from convattn.sealed import weights_digest
from convattn.wording import ITSELF, counted

UNTRAINED = "untrained weights"
SHUFFLED = "shuffled images"
CONTROLS = (SHUFFLED, UNTRAINED)
"""Controls that `analyze` can measure."""

GROUPS, SEED = 10, 0
"""Groups of images for the standard errors; seed of the order of the images and of the controls."""

_WEIGHTS_AT_ONCE = 192 * 2**20
"""Bytes of the attention weights of one layer that a batch may have."""

_FIRST, _MOST = 2, 32
"""Images of the first batch, which measures the memory of an image, and at most of each other batch."""

_MEASURED = "measured"

_FLAT = 1e-14
"""Variance, as a share of the squared mean, below which weights are the same everywhere but for rounding in float32."""

_ROUNDING = 2.0**-20
"""Share of a sum of squares that rounding of its parts in float32 may be, a few last places of each."""


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

    Source: `docs/explanation/theory.md` §7.

    Args:
        model: The network; it runs in evaluation mode, and its mode is put back.
        images: Prepared images, a batch or a sequence of single ones, which is read batch by batch; or token ids.
        layers: Names of the layers to measure, which `convattn.heads.reading.attention_layers` lists. None for all
            that can be; the report says which cannot, such as class attention, whose query has no position.
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
    kernel_size, radius = (
        whole_number("kernel_size", kernel_size),
        whole_number("radius", radius, least=0),
    )
    _require(model, images, kernel_size, controls)
    _require_layers(model, layers)
    counts = {_MEASURED: len(images)}
    counts |= {name: control_count(len(images)) for name in CONTROLS if name in controls}
    runs, every = dict[str, Run](), attention_layers(model) if layers is None else ()
    notes = [f"{layer.name}: {layer.refused}" for layer in every if layer.refused is not None]
    with _bar(progress, counts) as advance:
        for name, count in counts.items():
            network, image = model, partial(_image, images)
            if name == SHUFFLED:
                grid = next(iter(runs[_MEASURED].layers.values())).pairs.layout.grid
                if not can_shuffle(tuple(images[0].shape), grid):
                    notes.append(
                        f"shuffled images: {tuple(images[0].shape)} is not cut into a grid of {grid}"
                    )
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


def _require(model: Any, images: Any, kernel_size: int, controls: Any) -> None:
    """Raises on a mistake in the arguments."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "a network (torch.nn.Module)", model))
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ArgumentError("model must have weights, but some are on the meta device")
    _require_images(images)
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
        raise ArgumentError(
            must_be("images", "a batch, whose first axis numbers the images", tuple(images.shape))
        )
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
    if layers is None:
        return
    if isinstance(layers, str) or not layers:
        raise ArgumentError(must_be("layers", "names of layers, or None", layers))
    for name in layers:
        if name not in found:
            raise UnknownNameError("layer", name, found)


class Run:
    """The measures of all layers over some images.

    Attributes:
        count: Number of images.
        layers: The layers by name, in the order in which they compute; a further call of one says its number.
        passed_over: Layers in which no query, or no key, has a position.
    """

    def __init__(self, count: int, layers: Sequence[str] | None, kernel_size: int) -> None:
        """Starts without images; `layers` are the names of those to measure, None for all."""
        self.count, self.layers, self.passed_over = count, dict[str, LayerMeasure](), list[str]()
        self._names, self._kernel_size = layers, kernel_size
        self._apart: set[str] = set()  # Layers whose masks differ between batches

    def measure(
        self,
        model: nn.Module,
        image: Callable[[int], Tensor],
        after: Callable[[int], None],
        like: "Run",
    ) -> None:
        """Measures the images, in a random order.

        `image` returns one by its number, and `after` is called with the size of each batch. The memory of an image in
        the run `like`, which may be this one, is known from its first batch on.
        """
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(SEED)).tolist()
        fitted = self.count - max(1, round(self.count / 5)) if self.count > 1 else self.count
        shape: tuple[int, ...] | None = None
        for start, stop in self._batches((fitted, self.count), like):
            batch = _batch([image(number) for number in order[start:stop]], shape)
            shape = tuple(batch.shape[1:])
            members = torch.arange(start, stop) * min(GROUPS, self.count) // self.count
            apart = len(self._apart)
            self._add(model, batch, members, held_out=start >= fitted)
            if len(self._apart) > apart:  # the sums so far are over other pairs
                after(-start)
                self.layers.clear()
                self.measure(model, image, after, like)
                return
            after(stop - start)

    def _batches(self, ends: Sequence[int], like: "Run") -> Iterator[tuple[int, int]]:
        """Cuts the images up to each end into batches, none of a single image if that can be helped."""
        done = 0
        for end in ends:
            while done < end:
                known = self.layers or like.layers
                largest = max((layer.bytes for layer in known.values()), default=_WEIGHTS_AT_ONCE)
                size = min(end - done, max(_FIRST, min(_MOST, _WEIGHTS_AT_ONCE // max(largest, 1))))
                size += end - done - size == 1
                yield done, done + size
                done += size

    def _add(
        self, model: nn.Module, batch: Tensor, members: Int64[Tensor, " images"], *, held_out: bool
    ) -> None:
        """Runs the network on one batch and adds it to every layer."""
        calls: Counter[str] = Counter()

        def add(call: AttentionCall) -> None:
            on_cpu = {
                name: value.cpu() for name, value in vars(call).items() if isinstance(value, Tensor)
            }
            call = replace(call, **on_cpu)  # where the sums are
            calls[call.name] += 1
            name = call.name if calls[call.name] == 1 else f"{call.name} (call {calls[call.name]})"
            if self._names is None and not has_positions(call.layout):
                self.passed_over += {name or ITSELF}.difference(self.passed_over)
                return
            if name in self._apart and call.layout.allowed is not None:
                allowed = call.layout.allowed.expand(len(call.weights), -1, -1, -1)
                call = replace(call, layout=replace(call.layout, allowed=None), allowed=allowed)
            if name not in self.layers:
                self.layers[name] = LayerMeasure(call, self._kernel_size)
            layer = self.layers[name]
            if name in self._apart or layer.pairs.fits(call.layout):
                layer.add(call, members, held_out=held_out)
            else:
                self._apart.add(name)

        try:
            watch(model, batch, add, layers=self._names)
        except ConvAttnError:
            raise
        except Exception as error:
            if lacks_memory(error):
                raise UnsupportedModelError(
                    f"there is not enough memory for the attention of {type(model).__name__} on a batch of shape"
                    f" {tuple(batch.shape)}: a layer's weights are heads × queries × keys numbers; choose other"
                    " layers, or smaller images"
                ) from error
            reason = " ".join(str(error).split())[:300]
            raise ArgumentError(
                f"images must be what {type(model).__name__} takes, but on a batch of shape {tuple(batch.shape)} it"
                f" raised {type(error).__name__}: {reason}"
            ) from error
        if not self.layers:
            reasons = (
                ", ".join(f"{name}: {NO_POSITION}" for name in self.passed_over) or "no layer ran"
            )
            raise UnsupportedModelError(
                f"no attention of {type(model).__name__} can be measured: {reasons}"
            )


def _batch(images: Sequence[Tensor], shape: tuple[int, ...] | None) -> Tensor:
    """Makes a batch; raises ArgumentError if images differ in size, also from `shape`, or are not finite."""
    shapes = {tuple(image.shape) for image in images} | ({shape} if shape else set())
    if len(shapes) > 1:
        raise ArgumentError(
            f"images must be of one size, but are of {' and '.join(map(str, sorted(shapes)))}"
        )
    batch = torch.stack(list(images))
    if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
        raise ArgumentError("images must hold finite numbers, but some are infinite or nan")
    return batch


class LayerMeasure:
    """Sums of one layer over images, and what its calls say about it.

    Attributes:
        kind: Full name of its class.
        bytes: Memory of the weights of one image.
        pairs: Its pairs of queries and keys.
        sums: Sums over the images.
        kernels: Weights by displacement.
        fit: The best convolution; None if inputs or outputs do not lie on the grid of the queries.
        normalised: Whether the rows of all calls sum to 1.
        masked: Whether masks differed between images.
        error: Largest difference of weights × values to the module's own result.
        budget: What rounding explains there.
    """

    def __init__(self, call: AttentionCall, kernel_size: int) -> None:
        """Starts without images for a layer of which this is the first call, which `add` then adds."""
        self.kind, self.bytes = call.kind, call.weights[0].numel() * 4
        self.pairs = make_pairs(call.layout, call.name or ITSELF)
        self.sums, self.kernels = empty_sums(call, self.pairs, GROUPS), KernelFit()
        on_grid = all(
            x is not None and x.shape[1] == prod(call.layout.grid)
            for x in (call.inputs, call.outputs)
        )
        self.fit = ConvolutionFit(call.layout.grid, kernel_size) if on_grid else None
        self.normalised, self.masked = True, False
        self.error, self.budget = call.error, call.budget

    def add(
        self, call: AttentionCall, members: Int64[Tensor, " images"], *, held_out: bool
    ) -> None:
        """Adds a batch; `members` are the groups of its images, held out from the fit of the convolution or not."""
        name = call.name or ITSELF
        if not self.pairs.fits(call.layout):
            raise UnsupportedModelError(
                f"{name}: queries or keys lie elsewhere than for the images before"
            )
        if call.weights.shape[2] != self.sums.squares.shape[1]:
            raise UnsupportedModelError(
                f"{name}: it has another number of heads than for the images before"
            )
        if held_out:
            self.kernels.score(call, self.pairs, self.sums)
        added = sum_heads(call, self.pairs, members, len(self.sums.images))
        if not bool(torch.isfinite(added.squares).all()):
            raise ArgumentError(
                f"images must give finite attention, but weights of {name} are not finite"
            )
        self.sums = self.sums.plus(added)
        if self.fit is not None:
            assert call.inputs is not None
            assert call.outputs is not None
            (self.fit.score if held_out else self.fit.fit)(call.inputs, call.outputs)
        if call.error - call.budget > self.error - self.budget:
            self.error, self.budget = call.error, call.budget
        self.normalised = self.normalised and call.normalised
        self.masked |= call.allowed is not None or (call.layout.allowed is None) != (
            self.pairs.layout.allowed is None
        )


_PATCHES = {
    1: ("channels (cells length)", "cells channels length", ("cells",)),
    2: (
        "channels (rows height) (cols width)",
        "(rows cols) channels height width",
        ("rows", "cols"),
    ),
}
"""An image and its patches, by the number of axes of the grid."""


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Copies a network with the entries of every parameter in another order.

    So each tensor keeps its sizes and the distribution of its numbers, and what training has arranged is gone. What is
    fixed by architecture stays: buffers, and parameters whose entries are all alike.
    """
    made = copy_network(model)
    draw = torch.Generator().manual_seed(seed)
    # Tensors of one size share an order, which takes longer to draw than to apply, but each starts elsewhere in it:
    # what two of them, as the weights of queries and keys, have in common is gone as well.
    orders: dict[int, Tensor] = {}
    with torch.no_grad():
        for parameter in made.parameters():
            count = parameter.numel()
            if count not in orders:
                orders[count] = torch.randperm(count, generator=draw)
            order = orders[count].to(parameter.device)
            start = int(torch.randint(max(count, 1), (), generator=draw))
            parameter.copy_(
                parameter.flatten().index_select(0, order).roll(start).view(parameter.shape)
            )
    return made


def can_shuffle(shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Says whether an image can be cut into patches, one for each position of the first layer's grid."""
    sizes = shape[-len(grid) :]
    if len(shape) == 1:
        return len(grid) == 1
    return (
        len(grid) in _PATCHES and len(shape) == len(grid) + 1 and all(map(int.__ge__, sizes, grid))
    )


def shuffled(image: Tensor, grid: tuple[int, ...], seed: int) -> Tensor:
    """Puts the patches of an image in another order; what does not fill a patch, at the far edges, stays.

    Of token ids the first and the last stay as well, because most tokenizers put marks there. A wave is one channel.
    """
    draw = torch.Generator().manual_seed(seed)
    if image.ndim == 1 and not image.is_floating_point():
        inner = 1 + torch.randperm(max(len(image) - 2, 0), generator=draw).to(image.device)
        return torch.cat([image[:1], image[inner], image[1:][-1:]])
    made = image.clone()
    whole = made[None] if image.ndim == 1 else made
    sizes = [size // cells for size, cells in zip(whole.shape[1:], grid, strict=True)]
    part = whole[:, *(slice(cells * size) for cells, size in zip(grid, sizes, strict=True))]
    pixels, patches, lengths = _PATCHES[len(grid)]
    known = dict(zip(lengths, grid, strict=True))
    flat = rearrange(part, f"{pixels} -> {patches}", **known)
    mixed = flat[torch.randperm(len(flat), generator=draw).to(image.device)]
    part.copy_(rearrange(mixed, f"{patches} -> {pixels}", **known))
    return made


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
        beside = tuple(
            Control(key, _statistics_of(run.layers[name], kernel_size, None))
            for key, run in controls.items()
            if name in run.layers
        )
        layers.append(_layer_report(name, layer, beside, kernel_size, radius))
    limits = [*_LIMITS, *notes, *(f"{name}: {NO_POSITION}" for name in main.passed_over)]
    if any(layer.masked for layer in main.layers.values()):
        limits.append(
            "masks differ between images: pairs that a mask excludes count as pairs of weight 0"
        )
    if any(layer.fit is None for layer in main.layers.values()):
        limits.append(
            "convolution scores of layers whose inputs or outputs do not lie on the grid of their queries"
        )
    unsettled = sum(
        layer.kernels.unsettled for run in runs.values() for layer in run.layers.values()
    )
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


def _statistics_of(layer: LayerMeasure, kernel_size: int, radius: int | None) -> LayerStatistics:
    """Computes the statistics of a measured layer; `radius` None leaves the kernels out."""
    return layer_statistics(
        layer.sums, layer.pairs, layer.kernels, layer.fit, kernel_size=kernel_size, radius=radius
    )


def _layer_report(
    name: str, layer: LayerMeasure, controls: tuple[Control, ...], kernel_size: int, radius: int
) -> LayerReport:
    """Makes the report of one layer."""
    pairs, measured = layer.pairs, _statistics_of(layer, kernel_size, radius)
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


def layer_statistics(
    sums: HeadSums,
    pairs: Pairs,
    kernels: KernelFit,
    convolution: ConvolutionFit | None,
    *,
    kernel_size: int,
    radius: int | None,
) -> LayerStatistics:
    """Computes the statistics of a layer in one run from sums over images (docs/explanation/theory.md §7).

    The jackknife leaves out one group of images after another: σ² = (g − 1)/g Σ_j (θ_j − θ̄)², θ_j the statistic without
    group j. Where a statistic is biased by more than that, the jackknife takes the bias away.

    Args:
        sums: Sums over images.
        pairs: The layer's pairs.
        kernels: Weights by displacement, fitted and scored.
        convolution: The best convolution, fitted and scored; None if inputs or outputs do not lie on the grid.
        kernel_size: Taps along each axis of the kernel whose taps are counted.
        radius: Largest displacement of the kernels along each axis; None leaves kernels out.

    Returns:
        The statistics.
    """
    everything = sums.map(lambda part: part.sum(dim=0))
    hard = _hardest(everything, pairs)
    samples = [everything, *_without_each_group(sums)]
    found = [_head_numbers(sample, pairs, hard) for sample in samples]
    inside = pairs.within(0 if radius is None else radius)
    weights = everything.by_displacement[:, inside] / (everything.images * pairs.counts[inside])
    shares = [
        sample.absolute[:, inside].sum(dim=1) / sample.absolute.sum(dim=1) for sample in samples
    ]
    per_image = everything.images * pairs.queries
    heads = []
    for head in range(len(weights)):
        numbers = {
            name: _estimate([sample[name][head] for sample in found])
            for name in found[0]
            if name != "shift"
        }
        numbers["shift_invariance"] = _without_bias(
            [sample["shift_invariance"][head] for sample in found]
        )
        shift = tuple(
            _estimate([sample["shift"][head, axis] for sample in found])
            for axis in range(pairs.displacements.shape[1])
        )
        heads.append(
            HeadStatistics(
                head=head,
                shift=shift,
                hard_shift=tuple(pairs.displacements[hard[head]].tolist()),
                prefix_weights=tuple((everything.prefix[head] / per_image).tolist()),
                prefix_maps=tuple(
                    map(tuple, (everything.prefix_maps[head] / everything.images).tolist())
                ),
                kernel=() if radius is None else tuple(weights[head].tolist()),
                position_kernel=() if radius is None else kernels.kernel(head, inside),
                position_score=kernels.estimate(head, len(sums.images)),
                kernel_share=_estimate([share[head] for share in shares]),
                **numbers,
            )
        )
    own, nan = pairs.displacements[hard], float("nan")
    mean = mean_of([head.non_locality for head in heads])
    # The heads of a layer see the same images, so that their errors do not average out.
    error = mean_of([Estimate(head.non_locality.error, nan) for head in heads])
    return LayerStatistics(
        images=int(everything.images),
        heads=tuple(heads),
        tap_coverage=_estimate([covered(sample["shift"], kernel_size) for sample in found]),
        hard_tap_coverage=_estimate(
            [covered(own[sample["hard_share"] > 0.5], kernel_size) for sample in found]
        ),
        non_locality=Estimate(mean, error),
        convolution_score=Estimate(nan, nan)
        if convolution is None
        else convolution.estimate(GROUPS),
        convolution_components=0 if convolution is None else convolution.components,
        convolution_images=(0, 0) if convolution is None else convolution.images,
    )


def _head_numbers(
    sums: HeadSums, pairs: Pairs, hard: Int64[Tensor, " heads"]
) -> Mapping[str, Float64[Tensor, "heads ..."]]:
    """Computes the numbers of all heads from sums over one set of images; `hard` is the displacement of each."""
    size, mass = sums.absolute, sums.absolute.sum(dim=1)
    shift = size @ pairs.displacements / mass[:, None]
    squared = torch.stack([(pairs.displacements - centre).square().sum(dim=1) for centre in shift])
    entropy = sums.entropies / mass
    away = size @ pairs.lengths
    own = sums.by_displacement.gather(1, hard[:, None])[:, 0]
    count = sums.images * pairs.counts.sum()
    total = sums.squares - sums.centred.sum(dim=1).square() / count
    explained = (sums.centred.square() / (sums.images * pairs.counts)).sum(dim=1)
    level = sums.by_displacement.sum(dim=1) / count
    varies = total > _FLAT * count * level.square() + _ROUNDING * sums.squares
    queries = sums.images * pairs.queries
    return {
        "shift": shift,
        "spread": ((size * squared).sum(dim=1) / mass).sqrt(),
        "entropy": entropy.clamp_min(0),
        "effective_positions": entropy.clamp_min(0).exp(),
        "hard_share": own / (sums.images * pairs.counts[hard]),
        "shift_invariance": torch.where(varies, 1 - (sums.squares - explained) / total, torch.nan),
        "content_share": torch.where(
            varies, sums.over_images / sums.compared * sums.images / total, torch.nan
        ),
        "distance": away / mass,
        "non_locality": away / queries,
        "prefix_share": sums.prefix_size / (mass + sums.prefix_size),
    }


def covered(shifts: Float64[Tensor, "heads axes"], kernel_size: int) -> Float64[Tensor, ""]:
    """Returns the share of the taps of a kernel that a head's shift matches within half a cell, one head for each tap.

    A shift counts for the tap nearest to it, half-way between two for the first, so that no head counts twice.
    """
    reach = (kernel_size - 1) / 2
    axes = shifts.shape[1]
    taps = torch.tensor(
        list(product(*[[step - reach for step in range(kernel_size)]] * axes)), dtype=torch.float64
    )
    distance, nearest = torch.cdist(taps, shifts).min(dim=0)
    return torch.tensor(len(nearest[distance <= 0.5].unique()) / len(taps), dtype=torch.float64)


def _hardest(sums: HeadSums, pairs: Pairs) -> Int64[Tensor, " heads"]:
    """Returns the displacement with the largest mean weight, of those that are frequent enough."""
    mean = sums.by_displacement / (sums.images * pairs.counts)
    return mean.masked_fill(~pairs.common, -torch.inf).argmax(dim=1)


def _without_each_group(sums: HeadSums) -> list[HeadSums]:
    """Returns the sums over all groups but one, for each that has images; none if there is only one."""
    present = (sums.images > 0).nonzero()[:, 0].tolist()
    if len(present) < 2:
        return []
    return [sums.map(lambda part, left=left: part.sum(dim=0) - part[left]) for left in present]


def _without_bias(values: list[Tensor]) -> Estimate:
    """Makes an estimate as `_estimate` does, less the bias that the jackknife sees: g θ − (g − 1) mean_j θ_j.

    Mean weights of displacements are fitted to the same images that they then explain; of pure content they explain
    a share of about displacements / (pairs × images), which is larger than the standard error.
    """
    found, groups = _estimate(values), len(values) - 1
    if groups < 2:
        return found
    mean = float(torch.stack(values[1:]).double().mean())
    return Estimate(groups * found.value - (groups - 1) * mean, found.error)


def _estimate(values: list[Tensor]) -> Estimate:
    """Makes an estimate of a statistic of all images, followed by those without each group."""
    whole, *others = torch.stack([value.double().cpu() for value in values]).tolist()
    return Estimate(whole, jackknife(others))
