"""What the heads of a network look at: the report of `analyze`, and the same as a parquet table.

Lengths are in cells of the layer's grid of queries (patches, pixels, positions), entropies in nats. Every number has
the standard error of a jackknife over groups of images, which is nan for a single image. A number that the data do not
determine, as the share explained where nothing varies, is nan.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from convattn.errors import CheckpointError, UnknownNameError, optional_module
from convattn.files import write_atomically
from convattn.record import Record
from convattn.wording import counted, some

CONVOLUTIONAL = 0.9
"""Position score from which a head counts as a convolution."""


@dataclass(frozen=True)
class Estimate:
    """A number measured on a sample of images."""

    value: float  # The number
    error: float  # Its standard error over images; nan for a single image

    def __str__(self) -> str:
        """Returns the number with its standard error."""
        return (
            f"{self.value:.3g} ± {self.error:.2g}"
            if math.isfinite(self.error)
            else f"{self.value:.3g}"
        )


@dataclass(frozen=True)
class HeadStatistics:
    """Where one head looks. Queries are positions of the grid; what they pay to prefix tokens is stated apart.

    A[i, q, k] is the weight that position q pays to k on image i, δ = k − q their displacement. Where weights can be
    negative (talking heads), shift, spread, entropy, distance and non-locality are of their absolute values.
    """

    head: int  # Number in the layer, from 0
    shift: tuple[Estimate, ...]  # Mean shift E[δ] along each axis (Walmer et al. 2023: offset)
    spread: Estimate  # sqrt(tr Cov δ)
    entropy: Estimate  # Mean entropy of a query's weights on positions, in nats
    effective_positions: Estimate  # exp(entropy)
    hard_share: Estimate  # max_δ E A[q, q + δ], over δ at least a quarter as frequent as the most frequent one
    hard_shift: tuple[float, ...]  # That δ
    # R² = 1 − E‖A − Ā‖² / E‖A − mean‖², Ā the mean weight of each displacement, without the bias of few images
    shift_invariance: Estimate
    # R² of weights by displacement alone that are shared out at borders as softmax does, on images that they were not
    # fitted to: 1 for every head without content, 0 if looking everywhere alike is as near; nan without such images
    position_score: Estimate
    content_share: (
        Estimate  # Variance over images at fixed (q, k), as a share of the total variance
    )
    distance: Estimate  # Mean attention distance E‖δ‖ of attention on positions (Raghu et al. 2021)
    non_locality: Estimate  # (1/N) Σ A‖δ‖, prefix tokens at no distance (d'Ascoli et al. 2021)
    prefix_share: Estimate  # Share of attention on prefix tokens
    prefix_weights: tuple[float, ...]  # Mean weight that a position pays to each prefix token
    # Mean weights of each prefix token's own query, over all keys in the layer's order (prefix tokens where they stand)
    prefix_maps: tuple[tuple[float, ...], ...]
    kernel: tuple[
        float, ...
    ]  # Mean weight at each of the layer's `displacements`; empty in controls
    # The weights behind `position_score` at these displacements: over all they sum to the mean attention on positions
    position_kernel: tuple[float, ...]
    kernel_share: Estimate  # Share of the attention on positions that is at these displacements

    @property
    def convolutional(self) -> bool:
        """Whether it attends by position alone, as a convolution does: a position score of at least 0.9."""
        return self.position_score.value >= CONVOLUTIONAL

    @property
    def hard(self) -> bool:
        """Whether more than half of its attention is at one displacement."""
        return self.hard_share.value > 0.5


@dataclass(frozen=True)
class LayerStatistics:
    """One layer as measured: its heads, and what they are together."""

    images: int  # Number of images
    heads: tuple[HeadStatistics, ...]  # The heads
    tap_coverage: Estimate  # Share of the taps that a head's mean shift matches within half a cell
    hard_tap_coverage: (
        Estimate  # The same of heads with more than half of their attention at one displacement
    )
    non_locality: Estimate  # Mean over the heads
    convolution_score: Estimate  # R² of the best convolution of the layer's input, on held-out images; a lower bound
    # Principal components of the input that this convolution sees, or all channels; 0 where it was not measured
    convolution_components: int
    convolution_images: tuple[int, int]  # Images that it was fitted to and held out

    def estimate(self, name: str) -> tuple[Estimate, ...]:
        """Returns a number of each head by its name, such as "distance"."""
        if name not in HEAD_NUMBERS:
            raise UnknownNameError("number of a head", name, HEAD_NUMBERS)
        return tuple(getattr(head, name) for head in self.heads)

    def mean(self, name: str) -> float:
        """Returns the mean of a number over the heads that have one; nan if none has."""
        return mean_of(self.estimate(name))


HEAD_NUMBERS = tuple(item.name for item in fields(HeadStatistics) if item.type is Estimate)
"""Names of the numbers that every head has once."""


@dataclass(frozen=True)
class Control:
    """The same layer where what makes its heads is taken away."""

    name: str  # "untrained weights" or "shuffled images"
    measured: LayerStatistics  # What is left


@dataclass(frozen=True)
class LayerReport:
    """One layer of attention."""

    name: str  # Dotted name in the network
    kind: str  # Full name of its class
    pattern: str  # "global", "windows", …
    grid: tuple[int, ...]  # Positions of the queries along each axis
    prefix: int  # Number of prefix tokens among the keys
    normalised: bool  # Whether the weights of a query sum to 1
    error: float  # Largest difference of weights × values to what the module computed; of a fused one, both to float64
    budget: float  # Largest difference that rounding explains
    uniform_distance: float  # Mean attention distance of a head that looks everywhere alike
    displacements: tuple[
        tuple[float, ...], ...
    ]  # Displacements of the kernels: all within the report's radius
    measured: LayerStatistics  # What was measured
    controls: tuple[Control, ...]  # The same without trained weights, or on shuffled images
    sentence: str  # The layer in plain words

    @property
    def heads(self) -> tuple[HeadStatistics, ...]:
        """The heads as measured."""
        return self.measured.heads

    def control(self, name: str) -> LayerStatistics | None:
        """Returns a control by its name; None if it was not measured."""
        return next((item.measured for item in self.controls if item.name == name), None)


@dataclass(frozen=True)
class HeadReport(Record):
    """What the heads of a network look at.

    Attributes:
        model: Class of the network.
        images: Number of images.
        control_images: Number of images of each control.
        image_shape: Shape of one image, without the batch.
        groups: Groups of images for the standard errors.
        kernel_size: Taps along each axis of the convolutions that layers are compared with.
        radius: Largest displacement of the kernels along each axis, in cells.
        seed: Seed of the order of the images and of the controls.
        layers: The layers, in the order in which they compute.
        versions: Versions of the packages that computed.
        not_covered: What this says nothing about.
        weights: SHA-256 of the weights of each layer and, by the name "", of the whole network; None in older files.

    Example:
        >>> import torch
        >>> from convattn import RelativeAttention2d, analyze
        >>> layer = RelativeAttention2d(3, 8, num_heads=4, encoding="quadratic")
        >>> report = analyze(layer, torch.randn(4, 3, 8, 8), controls=(), progress=False)
        >>> [head.convolutional for head in report.layers[0].heads]
        [True, True, True, True]
    """

    model: str
    images: int
    control_images: int
    image_shape: tuple[int, ...]
    groups: int
    kernel_size: int
    radius: int
    seed: int
    layers: tuple[LayerReport, ...]
    versions: dict[str, str]
    not_covered: tuple[str, ...] = ()
    weights: dict[str, str] | None = None

    def layer(self, name: str) -> LayerReport:
        """Returns a layer by its name; UnknownNameError lists the names."""
        found = {layer.name: layer for layer in self.layers}
        if name not in found:
            raise UnknownNameError("layer", name, found)
        return found[name]

    def summary(self) -> str:
        """Returns the answer in one line of plain text, then a few; a layer's `sentence` says more of it."""
        heads = [head for layer in self.layers for head in layer.heads]
        many = {
            layer.name: sum(head.convolutional for head in layer.heads) for layer in self.layers
        }
        told = f"{sum(many.values())} of {counted(len(heads), 'head')} convolutional (position score ≥ {CONVOLUTIONAL})"
        hard, names = (
            sum(head.hard for head in heads),
            [f"{name} ({count})" for name, count in many.items() if count],
        )
        lines = [f"{self.model}: {told}, {hard} hard, on {counted(self.images, 'image')}"]
        lines += [f"  convolutional   {some(names)}"] * bool(names)
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)

    __str__ = summary


def mean_of(estimates: Sequence[Estimate]) -> float:
    """Returns the mean of the values that are numbers; nan if none is."""
    known = [item.value for item in estimates if math.isfinite(item.value)]
    return sum(known) / len(known) if known else math.nan


def layer_sentence(
    grid: tuple[int, ...], measured: LayerStatistics, controls: Sequence[Control], kernel_size: int
) -> str:
    """Says of a layer what its heads do, how far they look, and what a convolution explains; with the controls."""
    heads, hard = measured.heads, [head for head in measured.heads if head.hard]
    kernel = " × ".join([str(kernel_size)] * len(grid)) if len(grid) > 1 else f"{kernel_size}-tap"
    parts = []
    if hard:
        taps = round(measured.hard_tap_coverage.value * kernel_size ** len(grid))
        look, cover = ("looks", "covers") if len(hard) == 1 else ("look", "together they cover")
        parts.append(
            f"{len(hard)} of {counted(len(heads), 'head')} {look} mostly at one fixed displacement, and {cover} {taps}"
            f" of the {kernel_size ** len(grid)} taps of a {kernel} kernel"
        )
    else:
        most = max(head.hard_share.value for head in heads)
        none = (
            f"None of {counted(len(heads), 'head')} looks"
            if len(heads) > 1
            else "The only head does not look"
        )
        parts.append(
            f"{none} mostly at one fixed displacement (at most {_percent(most)} of its attention)"
        )
    content = _percent(mean_of([head.content_share for head in heads]))
    parts.append(
        f"{_by_position(heads)}, and {content} of the variance of the weights comes from the content"
    )
    parts.append(
        f"A query looks {mean_of([head.distance for head in heads]):.1f} cells away on average"
    )
    prefix = mean_of([head.prefix_share for head in heads])
    if prefix > 0.005:
        parts[-1] += f", and pays {_percent(prefix)} of its attention to prefix tokens"
    score = measured.convolution_score
    if score.value < 2 * score.error:
        parts.append(
            f"How much of its output a {kernel} convolution explains is not resolved on these images"
        )
    elif math.isfinite(score.value):
        lone = [
            f"{_percent(item.measured.convolution_score.value)} with {item.name}"
            for item in controls
        ]
        spread = f" ± {100 * score.error:.0f}" if math.isfinite(score.error) else ""
        beside = f"{spread} % of its output" + (f" ({', '.join(lone)})" if lone else "")
        parts.append(
            f"The best {kernel} convolution explains at least {100 * max(score.value, 0):.0f}{beside}"
        )
    return ". ".join(parts) + "."


def _by_position(heads: Sequence[HeadStatistics]) -> str:
    unknown = sum(math.isnan(head.position_score.value) for head in heads)
    if unknown == len(heads):
        return "It is not known which heads attend by position alone"
    count = _count(sum(head.convolutional for head in heads), len(heads))
    besides = f", not known of {counted(unknown, 'head')}" if unknown else ""
    return f"{count} by position alone (position score of at least 0.9{besides})"


def _count(number: int, of: int) -> str:
    if number == of:
        return "All heads attend" if of > 1 else "It attends"
    return "No head attends" if number == 0 else f"{number} attend{'s' if number == 1 else ''}"


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * min(max(share, 0), 1):.0f} %"


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
            *(
                (name, pa.float64())
                for number in HEAD_NUMBERS
                for name in (number, f"{number}_error")
            ),
            ("shift", lists),
            ("shift_error", lists),
            *((name, pa.list_(lists) if name == "prefix_maps" else lists) for name in _LIST_NAMES),
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
    table = table.replace_schema_metadata(
        {_REPORT: text, _DIGEST: hashlib.sha256(text).hexdigest()}
    )
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
        raise CheckpointError(
            f"cannot read a report from {path}: {type(error).__name__}: {error}"
        ) from None
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
    return {item.name: made[item.name] for item in fields(HeadStatistics)}


def _estimate(value: float, error: float) -> dict[str, Any]:
    return {"value": _plain(value), "error": _plain(error)}


def _plain(value: float) -> float | str:
    return value if value - value == 0 else repr(value)


def _map_statistics(report: dict[str, Any], change: Any) -> dict[str, Any]:
    """Changes the statistics of every layer and every control of a report in plain values."""
    layers = []
    for depth, layer in enumerate(report["layers"]):
        controls = [
            {**item, "measured": change(item["measured"], depth, item["name"])}
            for item in layer["controls"]
        ]
        layers.append(
            {**layer, "measured": change(layer["measured"], depth, _MEASURED), "controls": controls}
        )
    return {**report, "layers": layers}
