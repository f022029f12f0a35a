"""What the heads of a network look at: the report of `analyze`.

Lengths are in cells of the layer's grid of queries (patches, pixels, positions), entropies in nats. Every number has
the standard error of a jackknife over groups of images, which is nan of too few images. A number that the data do not
determine, as the share explained where nothing varies, is nan.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from convattn.errors import require, require_name
from convattn.heads.jackknife import Estimate
from convattn.heads.verdict import (
    HeadVerdict,
    count_words,
    explained_in_words,
    headline,
    held_in_words,
    judge,
    reach_in_words,
    taps_held,
)
from convattn.record import Record
from convattn.structure import network_digest
from convattn.wording import ITSELF, counted, some

MEASURED = "measured"
SHUFFLED = "shuffled images"
UNTRAINED = "untrained weights"
"""Names of the conditions: as it is, and both controls."""

AGAIN = " (call "
"""Stands in the name of a further call of a layer, before its number."""


def call_name(layer: str, calls: Counter[str]) -> str:
    """Counts a call of a layer and names it: "blocks.0.attn", "blocks.0.attn (call 2)"."""
    calls[layer] += 1
    return layer if calls[layer] == 1 else f"{layer}{AGAIN}{calls[layer]})"


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
    hard_shift: tuple[float, ...]  # That δ, one of the grid's
    # Its standard error along each axis: 0 if it is the same δ whichever group of images is left out
    hard_shift_error: tuple[float, ...]
    evenness: (
        Estimate  # Effective positions, as a share of those of a head that looks everywhere alike
    )
    nearness: Estimate  # 1 − distance / that of a head that looks everywhere alike
    side_share: Estimate  # Largest share of the attention on positions to one side of the query
    side: tuple[int, ...]  # That side: −1 or 1 along one axis, 0 along the others
    # Largest share of it in the query's own row, or column; nan for sequences
    line_share: Estimate
    line: int  # The axis across that line: 0 for its row, 1 for its column
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
    # Mean weight that a position pays to each prefix token
    prefix_weights: tuple[float, ...] = field(repr=False)
    # Mean weights of each prefix token's own query, over all keys in the layer's order (prefix tokens where they stand)
    prefix_maps: tuple[tuple[float, ...], ...] = field(repr=False)
    # Mean weight at each of the layer's `displacements`; empty in controls
    kernel: tuple[float, ...] = field(repr=False)
    # The weights behind `position_score` at these displacements: over all they sum to the mean attention on positions
    position_kernel: tuple[float, ...] = field(repr=False)
    kernel_share: Estimate  # Share of the attention on positions that is at these displacements

    def row(self) -> dict[str, Any]:
        """Returns its numbers flat: each `Estimate` as the number and, by its name with "_error", the error."""
        row: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Estimate):
                row |= {item.name: value.value, f"{item.name}_error": value.error}
            elif item.name == "shift":
                row["shift"] = tuple(axis.value for axis in value)
                row["shift_error"] = tuple(axis.error for axis in value)
            else:
                row[item.name] = value
        return row


@dataclass(frozen=True)
class LayerStatistics:
    """One layer as measured: its heads, and what they are together."""

    images: int  # Number of images
    heads: tuple[HeadStatistics, ...] = field(repr=False)  # The heads
    convolution_score: Estimate  # R² of the best convolution of the layer's input, on held-out images; a lower bound

    def mean(self, name: str) -> float:
        """Returns the mean of a number, such as "distance", over the heads that have one; nan if none has."""
        values = [getattr(head, name).value for head in self.heads]
        known = [value for value in values if math.isfinite(value)]
        return sum(known) / len(known) if known else math.nan


HEAD_NUMBERS = tuple(item.name for item in fields(HeadStatistics) if item.type is Estimate)
"""Names of the numbers that every head has once."""


@dataclass(frozen=True)
class LayerReport:
    """One layer of attention."""

    name: str  # Dotted name in the network
    kind: str  # Full name of its class
    pattern: str  # "global", "windows", …
    grid: tuple[int, ...]  # Positions of the queries along each axis
    grid_source: str  # Dotted name of the convolution whose output has this grid; empty if none has
    prefix: int  # Number of prefix tokens among the keys
    normalised: bool  # Whether the weights of a query sum to 1
    # Difference of weights × values to what the module computed; of a fused one, of both to float64. Of the batch in
    # which it is nearest to its budget
    error: float
    budget: float  # Largest difference that rounding explains
    uniform_distance: float  # Mean attention distance of a head that looks everywhere alike
    # Displacements of the kernels: all within the report's radius
    displacements: tuple[tuple[float, ...], ...] = field(repr=False)
    measured: LayerStatistics  # What was measured
    # The same with "untrained weights", or on "shuffled images", as far as it was measured
    controls: dict[str, LayerStatistics] = field(repr=False)
    kernel_size: int  # Taps along each axis of the convolution that it is compared with
    without_content: bool = (
        False  # Whether its class has no content: its heads are convolutions by construction
    )

    @property
    def heads(self) -> tuple[HeadStatistics, ...]:
        """The heads as measured."""
        return self.measured.heads

    @property
    def verdicts(self) -> tuple[HeadVerdict, ...]:
        """What each head is, by the rules, with errors and both controls."""
        return self.verdicts_in(MEASURED)

    def verdicts_in(self, condition: str) -> tuple[HeadVerdict, ...]:
        """What each head is as measured, with both controls, or in one of them; empty if it was not measured."""
        statistics = self.conditions().get(condition)
        if statistics is None:
            return ()
        controls = self.controls if condition == MEASURED else {}
        shuffled = controls.get(SHUFFLED)
        untrained = controls.get(UNTRAINED)
        control = shuffled or untrained
        verdicts = []
        for number, head in enumerate(statistics.heads):
            verdicts.append(
                judge(
                    head,
                    statistics.images,
                    shuffled=shuffled and shuffled.heads[number],
                    untrained=untrained and untrained.heads[number],
                    control_images=control.images if control else 0,
                    without_content=self.without_content,
                )
            )
        return tuple(verdicts)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps along each axis of the kernel that the layer is compared with."""
        return (self.kernel_size,) * len(self.grid)

    @property
    def sentence(self) -> str:
        """What its heads are, how far they look, and what a convolution of the layer's input explains."""
        measured = self.measured
        scores = {name: left.convolution_score for name, left in self.controls.items()}
        parts = (
            headline(self.verdicts, self.verdicts_in(UNTRAINED)),
            held_in_words(self.verdicts, self.kernel),
            reach_in_words(measured.mean("distance"), measured.mean("prefix_share")),
            explained_in_words(measured.convolution_score, self.kernel, scores),
        )
        return " ".join(f"{part}." for part in parts if part)

    def conditions(self) -> dict[str, LayerStatistics]:
        """Returns what was measured, by condition."""
        return {MEASURED: self.measured, **self.controls}


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
        weights: SHA-256 of the weights of each layer and, by the name "", of the whole network.
        not_covered: What this says nothing about.

    Example:
        >>> import torch
        >>> from convattn import RelativeAttention2d, analyze
        >>> layer = RelativeAttention2d(3, 8, num_heads=4, encoding="quadratic")
        >>> report = analyze(layer, torch.randn(4, 3, 8, 8), controls=(), progress=False)
        >>> {verdict.word for verdict in report.layers[0].verdicts}
        {'convolution'}
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
    weights: dict[str, str] = field(repr=False)
    not_covered: tuple[str, ...] = ()

    def changed_in(self, network: nn.Module) -> str:
        """Says in which layers a network has other weights than were measured; "" if in none."""
        digests = weight_digests(network, self.weights)
        changed = [name for name, digest in digests.items() if digest != self.weights[name]]
        if not changed:
            return ""
        return some([name for name in changed if name]) or "other layers than those measured"

    def layer(self, name: str) -> LayerReport:
        """Returns a layer by its name; UnknownNameError lists the names."""
        layers = {layer.name: layer for layer in self.layers}
        require_name("layer", name, layers)
        return layers[name]

    def rows(self) -> list[dict[str, Any]]:
        """Returns a flat row for each head of each layer, as measured and in each control, for `pandas.DataFrame`."""
        rows = []
        for depth, layer in enumerate(self.layers):
            for condition, statistics in layer.conditions().items():
                verdicts = layer.verdicts_in(condition)
                for head, verdict in zip(statistics.heads, verdicts, strict=True):
                    place = {"depth": depth, "layer": layer.name, "condition": condition}
                    rows.append({**place, "verdict": str(verdict), **head.row()})
        return rows

    def taps(self, first: int, count: int) -> tuple[str, ...]:
        """Names the taps of the first layer's kernel that heads of some neighbouring layers hold together.

        Heads on grids of another number of axes hold none. Raises ArgumentError if there is no such layer.
        """
        layers = self.layers[first : first + count]
        require(
            first >= 0 and layers,
            "first",
            f"a layer's number from 0 to {len(self.layers) - 1}",
            first,
        )
        return taps_held(_verdicts(layers, MEASURED), layers[0].kernel)

    def headline(self) -> str:
        """Says in one line what the heads are."""
        words = headline(_verdicts(self.layers, MEASURED), _verdicts(self.layers, UNTRAINED))
        return f"{words}, on {counted(self.images, 'image')}"

    def summary(self) -> str:
        """Returns the answer in one line of plain text, then a few; a layer's `sentence` says more of it."""
        lines = [f"{self.model}: {self.headline()}"]
        lines += [
            f"  {layer.name or ITSELF}: {count_words(layer.verdicts)}" for layer in self.layers
        ]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


def _verdicts(layers: Sequence[LayerReport], condition: str) -> list[HeadVerdict]:
    """Lists what the heads of some layers are."""
    return [*chain.from_iterable(layer.verdicts_in(condition) for layer in layers)]


def weight_digests(network: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Returns the digests of the weights of modules, of those names that the network has."""
    modules = dict(network.named_modules(remove_duplicate=False))
    return {name: network_digest(modules[name]) for name in names if name in modules}


def read_report(path: Path) -> HeadReport:
    """Reads a report: a file, or that in the folder that `convattn analyze` made.

    Raises:
        CheckpointError: There is no such file, or it is no report.
    """
    file = path / "report.json" if path.is_dir() else path
    return HeadReport.load(file)
