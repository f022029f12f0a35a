"""Where the heads of runs have their centres, and what chance gives."""

import json
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from statistics import fmean as mean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import nn

from convattn import load_network
from convattn.heads import HeadSnapshot
from evidence.results import EVIDENCE, ROOT
from evidence.speedrun.operations import network_of, sides_of
from evidence.studies import Layers, Study, TrainedRun, unfinished

DRAWS = 10_000
"""Draws of centres where runs are taken together; 1,000 elsewhere."""


def attention_on_taps(
    centres: Float[np.ndarray, "heads 2"], precisions: Float[np.ndarray, "heads 2 2"], size: int
) -> Float[np.ndarray, " heads"]:
    """Computes each head's share of attention on the nine pixels around a query in the middle of an image.

    Args:
        centres: Δ, (row, col) in pixels.
        precisions: Σ⁻¹ of the attention exp(−½ (δ − Δ)ᵀ Σ⁻¹ (δ − Δ)), in 1/pixel².
        size: Rows and columns of the image.

    Returns:
        Shares in [0, 1].
    """
    along = np.arange(size) - size // 2
    rows, cols = np.meshgrid(along, along, indexing="ij")
    away = np.stack([rows, cols], -1)[None] - centres[:, None, None]
    scores = -0.5 * np.einsum("hrci,hij,hrcj->hrc", away, precisions, away)
    weights = np.exp(scores - scores.max((1, 2), keepdims=True))
    near = (np.abs(rows) <= 1) & (np.abs(cols) <= 1)
    return weights[:, near].sum(1) / weights.sum((1, 2))


def tap_numbers(centres: Float[np.ndarray, "*draws heads 2"]) -> Int[np.ndarray, "*draws heads"]:
    """Numbers the tap of a 3 × 3 kernel at which a head has its centre, row by row; −1 more than half a pixel off."""
    pixels = np.rint(centres).astype(int)
    inside = (np.abs(pixels) <= 1).all(-1)
    return np.where(inside, 3 * (pixels[..., 0] + 1) + pixels[..., 1] + 1, -1)


def taps_with_a_centre(centres: Float[np.ndarray, "*draws heads 2"]) -> Int[np.ndarray, "*draws"]:
    """Counts the taps of a 3 × 3 kernel at which a head has its centre, at most half a pixel off along each axis."""
    bits = (1 << (tap_numbers(centres) + 1)) >> 1  # none for −1
    return np.asarray(np.bitwise_count(np.bitwise_or.reduce(bits, axis=-1)), dtype=int)


def taps_of_all(layers: Sequence[Float[np.ndarray, "*draws heads 2"]]) -> Int[np.ndarray, "*draws"]:
    """Counts the taps that have a centre in all layers together."""
    return np.asarray(sum(map(taps_with_a_centre, layers)))


def away_from_pixels(
    layers: Sequence[Float[np.ndarray, "*draws heads 2"]],
) -> Float[np.ndarray, "*draws"]:
    """Returns the mean distance of the centres of all layers to the pixel nearest to each, in pixels."""
    centres = np.concatenate(layers, axis=-2)
    return np.asarray(np.linalg.norm(centres - centres.round(), axis=-1).mean(-1))


def drawn(
    layers: Sequence[Float[np.ndarray, "heads 2"]], draws: int
) -> list[Float[np.ndarray, "draws heads 2"]]:
    """Draws normal centres, with the mean and spread that those of each layer have."""
    draw = np.random.default_rng(0)
    return [draw.normal(one.mean(0), one.std(0), (draws, *one.shape)) for one in layers]


def started(
    layers: Sequence[Float[np.ndarray, "heads 2"]], draws: int
) -> list[Float[np.ndarray, "draws heads 2"]]:
    """Draws as many centres as runs from random places start with: normal, with a deviation of 2 pixels."""
    draw = np.random.default_rng(0)
    return [draw.normal(0, 2, (draws, *one.shape)) for one in layers]


def permuted(starts: Layers) -> Callable[[Layers, int], Layers]:
    """Returns a draw that gives the displacements of the heads of a layer to other heads of it."""

    def draw(layers: Layers, draws: int) -> Layers:
        numbers = np.random.default_rng(0)
        moved = []
        for start, end in zip(starts, layers, strict=True):
            order = numbers.random((draws, len(end))).argsort(-1)
            moved.append(start + (end - start)[order])
        return moved

    return draw


def rotated(starts: Layers) -> Callable[[Layers, int], Layers]:
    """Returns a draw that lets each head move as far as it did, in a direction that is drawn."""

    def draw(layers: Layers, draws: int) -> Layers:
        numbers = np.random.default_rng(0)
        moved = []
        for start, end in zip(starts, layers, strict=True):
            angles = numbers.uniform(0, 2 * np.pi, (draws, len(end)))
            directions = np.stack([np.cos(angles), np.sin(angles)], -1)
            lengths = np.linalg.norm(end - start, axis=-1)
            moved.append(start + lengths[:, None] * directions)
        return moved

    return draw


def scattered(layers: Layers, draws: int) -> Layers:
    """Puts each centre that is in the 3 × 3 window on one of its nine taps, which is drawn."""
    draw = np.random.default_rng(0)
    drawn_layers = []
    for layer in layers:
        inside = (np.abs(layer) <= 1.5).all(-1)
        taps = draw.integers(-1, 2, (draws, *layer.shape)).astype(float)
        drawn_layers.append(np.where(inside[:, None], taps, layer))
    return drawn_layers


def shuffled(layers: Layers, draws: int) -> Layers:
    """Permutes the displacements −3 to 3 of each axis, for all heads of a layer alike."""
    draw = np.random.default_rng(0)
    drawn_layers = []
    for layer in layers:
        places = draw.random((draws, 2, 7)).argsort(-1) - 3.0
        indices = (layer.T + 3).astype(int)[None].repeat(draws, 0)
        drawn_layers.append(np.take_along_axis(places, indices, -1).swapaxes(-1, -2))
    return drawn_layers


def paired(layers: Layers, draws: int) -> Layers:
    """Gives the rows of a layer's peaks the columns of others of its heads."""
    draw = np.random.default_rng(0)
    drawn_layers = []
    for layer in layers:
        order = draw.random((draws, len(layer))).argsort(-1)
        rows = layer[:, 0][None].repeat(draws, 0)
        drawn_layers.append(np.stack([rows, layer[order, 1]], -1))
    return drawn_layers


def by_chance(
    layers: Sequence[Float[np.ndarray, "heads 2"]],
    measured: Callable[[Sequence[Float[np.ndarray, "draws heads 2"]]], np.ndarray],
    draws: int = 1000,
    draw: Callable[..., list[Float[np.ndarray, "draws heads 2"]]] = drawn,
) -> tuple[float, float, float]:
    """Measures centres that are drawn.

    Args:
        layers: Centres of the heads of each layer, (row, col) in pixels.
        measured: One number for each draw, of the centres of all layers.
        draws: How many are drawn.
        draw: Draws them.

    Returns:
        The mean of the draws, and the range of the middle 95 %.
    """
    found = measured(draw(layers, draws))
    low, high = np.quantile(found, (0.025, 0.975), method="closest_observation")
    return float(np.mean(found)), float(low), float(high)


def chance(
    layers: Layers,
    what: Callable[[Any], np.ndarray] = taps_of_all,
    digits: tuple[int, int] = (1, 0),
    draws: int = 1000,
    draw: Callable[..., Layers] = drawn,
) -> str:
    """Words what centres by chance give: a mean, and the middle 95 %."""
    average, low, high = by_chance(layers, what, draws, draw)
    first, ends = digits
    return f"{average:.{first}f} ({low:.{ends}f} to {high:.{ends}f})"


def beside_chance(
    layers: Layers,
    what: Callable[[Any], np.ndarray] = taps_of_all,
    draws: int = 1000,
    draw: Callable[..., Layers] = drawn,
) -> str:
    """Says whether a number is above, below or within the middle 95 % of what chance gives."""
    _, low, high = by_chance(layers, what, draws, draw)
    found = float(what(layers))
    if low <= found <= high:
        return "within chance"
    return "above chance" if found > high else "below chance"


def grids_in_words(layers: Layers) -> str:
    """Says what the rule of the seven new seeds says, which was written before their runs."""
    above = beside_chance(layers, draw=started) == "above chance"
    return "grids form" if above else "that grids form is not shown"


def as_many_taps(layers: Layers, draw: Callable[[Layers, int], Layers]) -> float:
    """Returns the share of draws with at least as many taps, the layers themselves among them: a one-sided p."""
    reached = np.count_nonzero(taps_of_all(draw(layers, DRAWS)) >= taps_of_all(layers))
    return (1 + reached) / (1 + DRAWS)


def moved_in(study: Study, label: str) -> list[float]:
    """Lists the mean distance that the centres of each layer moved in each run, in pixels."""
    distances = []
    for run in study.of(label):
        for start, end in zip(*run.ends(), strict=True):
            distances.append(float(distances_moved(start, end).mean()))
    return distances


def farthest_moved(run: TrainedRun, layer: int) -> float:
    """Returns the largest distance that a centre of a layer moved in a run, in pixels."""
    start, end = run.ends()
    return float(distances_moved(start[layer], end[layer]).max())


def distances_moved(start: HeadSnapshot, end: HeadSnapshot) -> Float[np.ndarray, " heads"]:
    """Returns the distance that each centre of a layer moved, in pixels."""
    return np.linalg.norm(end.centres - start.centres, axis=1)


def shares_on_taps(study: Study, label: str) -> list[str]:
    """Words the share of attention on the 3 × 3 taps of each layer, in percent, at the end of each run."""
    words = []
    for run in study.of(label):
        sides = sides_of(network_of(run.record["recipe"]))
        layers = zip(run.ends()[1], sides, strict=True)
        shares = [mean(attention_on_taps(i.centres, i.precisions, side)) for i, side in layers]
        words.append(", ".join(f"{100 * share:.0f}" for share in shares))
    return words


def taps_kept(study: Study, label: str) -> list[list[int]]:
    """Lists the taps that have a centre in each layer at the end of each run."""
    runs = study.centres(label, study.epochs(label))
    return [[int(taps_with_a_centre(layer)) for layer in layers] for layers in runs]


def first_layers(layers: Sequence[int], count: int) -> int:
    """Sums the counts of the first layers."""
    return sum(layers[:count])


def at_taps(study: Study, label: str, epoch: int) -> list[int]:
    """Lists the taps that have a centre in each run after an epoch, in all layers together."""
    return [int(taps_of_all(layers)) for layers in study.centres(label, epoch)]


def radii(study: Study, label: str, epoch: int) -> list[float]:
    """Lists the mean distance of a centre from the pixel that looks, of each run after an epoch, in pixels."""
    runs = study.centres(label, epoch)
    return [float(np.linalg.norm(np.concatenate(layers), axis=-1).mean()) for layers in runs]


def correlation(one: Sequence[float], other: Sequence[float]) -> str:
    """Words the correlation of two lists, and its two-sided p, for values that are nearly normal."""
    found = stats.pearsonr(one, other)
    return f"r = {found.statistic:.2f}, p = {found.pvalue:.4f}".replace("-", "−")


def away(study: Study, label: str, epoch: int) -> float:
    """Returns the mean distance of a centre to the nearest pixel after an epoch, over runs."""
    return mean(float(away_from_pixels(layers)) for layers in study.centres(label, epoch))


def together(study: Study, label: str, epoch: int | None = None) -> Layers:
    """Lists the centres of all layers of all runs after an epoch, or at their ends."""
    runs = study.centres(label, study.epochs(label) if epoch is None else epoch)
    return list(chain.from_iterable(runs))


SEEDS_OF_PLAN = 5
"""Runs for which the plan's rule is written."""

PEAKS = "peaks.json"
"""File beside the record of a run, with what `table_peaks` returns for it."""


def table_peaks(network: nn.Module) -> Layers:
    """Reads where the axial tables of a network have the highest score for each head.

    Of the displacements −3 to 3 along each axis, half of the 8 patches: most queries see these.
    """
    displacements = torch.arange(-3.0, 4)
    layers = []
    for block in network.blocks:
        encoding = block.mixer.encoding
        scores = encoding.axis_scores(displacements.expand(2, -1))
        layers.append((scores.argmax(-1) - 3.0).numpy())
    return layers


def peaks_before_plan() -> Layers:
    """Returns the peaks in the network of one seed that was seen before the plan."""
    return table_peaks(load_network(ROOT / "pretrained" / "sa-learned-medium"))


def peaks_of_plan() -> dict[str, Layers]:
    """Reads the peaks in the finished runs of the plan, by seed."""
    runs = {}
    for file in sorted((EVIDENCE / "encodings" / "taps").glob(f"*/{PEAKS}")):
        layers = json.loads(file.read_text(encoding="utf-8"))
        seed = file.parent.name.rpartition("-")[2]
        runs[seed] = [np.array(layer, dtype=float) for layer in layers]
    return runs


def tables_in_words(runs: Collection[Layers]) -> str:
    """Says how many runs of the plan have finished, and what its rule says of them once all have."""
    if (words := unfinished(len(runs), SEEDS_OF_PLAN)) is not None:
        return words
    first = [layers[0] for layers in runs]
    if beside_chance(first, draws=DRAWS, draw=shuffled) == "above chance":
        return "learned tables form the kernel in layer 1"
    return "that learned tables form the kernel is not shown"


def steadily(shares: Sequence[str]) -> str:
    """Says whether the share on the taps falls from layer to layer in every run."""
    falling = True
    for run in shares:
        layers = [int(share) for share in run.split(", ")]
        falling = falling and layers == sorted(set(layers), reverse=True)
    return "steadily" if falling else "not steadily"
