"""Puts a report together from what was measured."""

from collections.abc import Mapping, Sequence

from torch import nn

from convattn.analysis.measure.kernel import uniform_distance
from convattn.analysis.measure.layer import LayerMeasure
from convattn.analysis.measure.pairs import NO_POSITION
from convattn.analysis.measure.run import Run, Settings
from convattn.analysis.report.wording import layer_sentence
from convattn.analysis.statistics import head_statistics
from convattn.provenance import describe_versions
from convattn.records.head_report import Control, Estimate, HeadReport, LayerReport, LayerStatistics, mean_of
from convattn.records.words import counted
from convattn.sealed import weights_digest

_LIMITS = (
    "attention says where a layer reads, not what its values carry",
    "standard errors are over these images; they do not know other kinds of images",
)


def assemble(
    model: nn.Module,
    shape: tuple[int, ...],
    runs: Mapping[str, Run],
    settings: Settings,
    radius: int,
    notes: Sequence[str],
) -> HeadReport:
    """Makes the report of the run "measured" and of its controls."""
    main = runs["measured"]
    controls = {name: run for name, run in runs.items() if run is not main and run.layers}
    layers = []
    for name, layer in main.layers.items():
        measured = layer_statistics(layer, main, settings, radius)
        beside = tuple(
            Control(key, layer_statistics(run.layers[name], run, settings, None))
            for key, run in controls.items()
            if name in run.layers
        )
        layers.append(_layer_report(name, layer, measured, beside, settings.kernel_size, radius))
    facts = [layer.facts for layer in main.layers.values()]
    limits = [*_LIMITS, *notes, *(f"{name}: {NO_POSITION}" for name in main.passed_over)]
    if any(item.masked for item in facts):
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
        groups=min(settings.groups, main.count),
        kernel_size=settings.kernel_size,
        radius=radius,
        seed=settings.seed,
        layers=tuple(layers),
        versions=describe_versions(),
        not_covered=tuple(limits),
        weights={name: weights_digest(module) for name, module in measured_modules.items()},
    )


def layer_statistics(layer: LayerMeasure, run: Run, settings: Settings, radius: int | None) -> LayerStatistics:
    """Computes the statistics of one layer in one run; `radius` None leaves the kernels out."""
    heads, coverage = head_statistics(layer.sums, layer.pairs, layer.kernels, radius)
    by_shift, by_hard = coverage(settings.kernel_size)
    nan = float("nan")
    mean = mean_of([head.non_locality for head in heads])
    # The heads of a layer see the same images, so that their errors do not average out.
    error = mean_of([Estimate(head.non_locality.error, nan) for head in heads])
    return LayerStatistics(
        images=run.count,
        heads=heads,
        tap_coverage=by_shift,
        hard_tap_coverage=by_hard,
        non_locality=Estimate(mean, error),
        convolution_score=Estimate(nan, nan) if layer.fit is None else layer.fit.estimate(settings.groups),
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
    facts, pairs = layer.facts, layer.pairs
    return LayerReport(
        name=name,
        kind=facts.kind,
        pattern=pairs.layout.pattern,
        grid=pairs.layout.grid,
        prefix=int(pairs.layout.key_prefix.sum()),
        normalised=facts.normalised,
        error=facts.error,
        budget=facts.budget,
        uniform_distance=uniform_distance(pairs),
        displacements=tuple(map(tuple, pairs.displacements[pairs.within(radius)].tolist())),
        measured=measured,
        controls=controls,
        sentence=layer_sentence(pairs.layout.grid, measured, controls, kernel_size),
    )
