"""Reports of heads: put together, worded, drawn, compared, and kept as tables."""

import dataclasses
import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from convattn.errors import CheckpointError, optional_module
from convattn.files import write_atomically
from convattn.heads.head_report import (
    HEAD_NUMBERS,
    Control,
    Estimate,
    HeadReport,
    HeadStatistics,
    LayerReport,
    LayerStatistics,
    mean_of,
)
from convattn.heads.head_statistics import head_statistics
from convattn.heads.head_sums import NO_POSITION
from convattn.heads.kernel_fit import uniform_distance
from convattn.heads.measure import LayerMeasure, Run, Settings
from convattn.provenance import describe_versions
from convattn.sealed import weights_digest
from convattn.wording import counted


def layer_sentence(
    grid: tuple[int, ...], measured: LayerStatistics, controls: Sequence[Control], kernel_size: int
) -> str:
    """Says of a layer what its heads do, how far they look, and what a convolution explains; with the controls."""
    heads = measured.heads
    hard = [head for head in heads if head.hard]
    kernel = " × ".join([str(kernel_size)] * len(grid)) if len(grid) > 1 else f"{kernel_size}-tap"
    parts = []
    if hard:
        taps = round(measured.hard_tap_coverage.value * kernel_size ** len(grid))
        look, cover = ("looks", "covers") if len(hard) == 1 else ("look", "together they cover")
        parts.append(
            f"{len(hard)} of {_heads(len(heads))} {look} mostly at one fixed displacement, and {cover} {taps} of the"
            f" {kernel_size ** len(grid)} taps of a {kernel} kernel"
        )
    else:
        most = max(head.hard_share.value for head in heads)
        none = f"None of {_heads(len(heads))} looks" if len(heads) > 1 else "The only head does not look"
        parts.append(f"{none} mostly at one fixed displacement (at most {_percent(most)} of its attention)")
    content = _percent(mean_of([head.content_share for head in heads]))
    parts.append(f"{_by_position(heads)}, and {content} of the variance of the weights comes from the content")
    parts.append(f"A query looks {mean_of([head.distance for head in heads]):.1f} cells away on average")
    prefix = mean_of([head.prefix_share for head in heads])
    if prefix > 0.005:
        parts[-1] += f", and pays {_percent(prefix)} of its attention to prefix tokens"
    score = measured.convolution_score
    if math.isfinite(score.value):
        lone = [f"{_percent(item.measured.convolution_score.value)} with {item.name}" for item in controls]
        beside = f" ({', '.join(lone)})" if lone else ""
        parts.append(f"The best {kernel} convolution explains at least {_share(score)} of its output{beside}")
    return ". ".join(parts) + "."


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _by_position(heads: Sequence[HeadStatistics]) -> str:
    if all(math.isnan(head.position_score.value) for head in heads):
        return "It is not known which heads attend by position alone"
    count = _count(sum(head.convolutional for head in heads), len(heads))
    return f"{count} by position alone (position score of at least 0.9)"


def _count(number: int, of: int) -> str:
    if number == of:
        return "All heads attend" if of > 1 else "It attends"
    return "No head attends" if number == 0 else f"{number} attend{'s' if number == 1 else ''}"


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * min(max(share, 0), 1):.0f} %"


def _share(score: Estimate) -> str:
    spread = f" ± {100 * score.error:.0f}" if math.isfinite(score.error) else ""
    return f"{100 * max(score.value, 0):.0f}{spread} %"


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


_REPORT = b"convattn.report"
"""Key of the table's metadata under which everything that is not of one head stands, as JSON."""

_DIGEST = b"convattn.sha256"
"""Key of the SHA-256 of that JSON; pages of the table have checksums of their own."""

_MEASURED = "measured"
_LIST_NAMES = ("hard_shift", "prefix_weights", "prefix_maps", "kernel", "position_kernel")


def _schema(pa: ModuleType) -> Any:
    """Returns the columns of the table."""
    lists = pa.list_(pa.float64())
    return pa.schema(
        [
            ("layer", pa.string()),
            ("depth", pa.int64()),
            ("condition", pa.string()),
            ("head", pa.int64()),
            *((name, pa.float64()) for number in HEAD_NUMBERS for name in (number, f"{number}_error")),
            ("shift", lists),
            ("shift_error", lists),
            ("hard_shift", lists),
            ("prefix_weights", lists),
            ("prefix_maps", pa.list_(lists)),
            ("kernel", lists),
            ("position_kernel", lists),
        ]
    )


def write_table(report: HeadReport, path: str | os.PathLike[str]) -> Path:
    """Writes a report as a parquet file: a row for each head, the rest in the metadata."""
    pa = optional_module("pyarrow.parquet", "pyarrow", "parquet")
    rows = []
    for depth, layer in enumerate(report.layers):
        parts = {_MEASURED: layer.measured, **{item.name: item.measured for item in layer.controls}}
        for condition, part in parts.items():
            place = {"layer": layer.name, "depth": depth, "condition": condition}
            rows += [{**place, **_row(head)} for head in part.heads]
    rest = _map_statistics(json.loads(report.to_json()), lambda part, *_: {**part, "heads": []})
    text = json.dumps(rest).encode()
    table = pa.Table.from_pylist(rows, schema=_schema(pa))
    table = table.replace_schema_metadata({_REPORT: text, _DIGEST: hashlib.sha256(text).hexdigest()})
    buffer = io.BytesIO()
    pa.parquet.write_table(table, buffer, write_page_checksum=True)
    return write_atomically(path, buffer.getvalue())


def read_table(path: str | os.PathLike[str]) -> HeadReport:
    """Reads a report from a parquet file that `write_table` wrote; another file raises CheckpointError."""
    pa = optional_module("pyarrow.parquet", "pyarrow", "parquet")
    try:
        table = pa.parquet.read_table(path, page_checksum_verification=True)
        known = table.schema.metadata or {}
        digest = hashlib.sha256(known[_REPORT]).hexdigest().encode()
        if known.get(_DIGEST, digest) != digest:  # older tables have none
            raise ValueError("its metadata are not what was written")
        rest = json.loads(known[_REPORT])
        heads: dict[tuple[int, str], list[Any]] = {}
        for row in table.to_pylist():
            heads.setdefault((row["depth"], row["condition"]), []).append(_head(row))
        whole = _map_statistics(rest, lambda part, *place: {**part, "heads": heads[place]})
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read a report from {path}: {type(error).__name__}: {error}") from None
    return HeadReport.from_json(json.dumps(whole))


def _row(head: HeadStatistics) -> dict[str, Any]:
    row: dict[str, Any] = {
        "head": head.head,
        "shift": [one.value for one in head.shift],
        "shift_error": [one.error for one in head.shift],
    }
    for name in HEAD_NUMBERS:
        found: Estimate = getattr(head, name)
        row |= {name: found.value, f"{name}_error": found.error}
    return row | {name: getattr(head, name) for name in _LIST_NAMES}


def _head(row: dict[str, Any]) -> dict[str, Any]:
    """Makes the plain values of a head, as its JSON has them."""
    shift = [_estimate(*pair) for pair in zip(row["shift"], row["shift_error"], strict=True)]
    numbers = {name: _estimate(row[name], row[f"{name}_error"]) for name in HEAD_NUMBERS}
    lists = {name: row[name] for name in _LIST_NAMES}
    made = {"head": row["head"], "shift": shift, **numbers, **lists}
    return {item.name: made[item.name] for item in dataclasses.fields(HeadStatistics)}


def _estimate(value: float, error: float) -> dict[str, Any]:
    return {"value": _plain(value), "error": _plain(error)}


def _plain(value: float) -> float | str:
    return value if value - value == 0 else repr(value)


def _map_statistics(report: dict[str, Any], change: Any) -> dict[str, Any]:
    """Changes the statistics of every layer and every control of a report in plain values."""
    layers = []
    for depth, layer in enumerate(report["layers"]):
        controls = [{**item, "measured": change(item["measured"], depth, item["name"])} for item in layer["controls"]]
        layers.append({**layer, "measured": change(layer["measured"], depth, _MEASURED), "controls": controls})
    return {**report, "layers": layers}
