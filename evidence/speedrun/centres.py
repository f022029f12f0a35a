"""Where the heads of runs have their centres, and what chance gives."""

from collections.abc import Callable, Sequence
from statistics import fmean as mean
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from convattn.heads import HeadSnapshot
from evidence.speedrun.operations import network_of, sides_of
from evidence.studies import Layers, Study, TrainedRun

_TAPS = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]
_NEAR = 0.5
"""Largest distance along an axis, in pixels, at which a centre is at a tap."""

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


def taps_with_a_centre(centres: Float[np.ndarray, "*draws heads 2"]) -> Int[np.ndarray, "*draws"]:
    """Counts the taps of a 3 × 3 kernel at which a head has its centre, at most half a pixel off along each axis."""
    near = [
        np.abs(centres[..., None, :, axis] - np.array(_TAPS)[:, axis, None]) <= _NEAR
        for axis in range(2)
    ]
    return np.asarray(np.count_nonzero((near[0] & near[1]).any(-1), axis=-1))


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


def jittered(
    layers: Sequence[Float[np.ndarray, "heads 2"]], draws: int
) -> list[Float[np.ndarray, "draws heads 2"]]:
    """Moves each centre by up to half a pixel along each axis: where it is stays, its place within a pixel does not."""
    draw = np.random.default_rng(0)
    return [one + draw.uniform(-0.5, 0.5, (draws, *one.shape)) for one in layers]


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


def as_many_taps(layers: Layers, draw: Callable[[Layers, int], Layers]) -> float:
    """Returns the share of draws with at least as many taps: a one-sided p."""
    return float(np.mean(taps_of_all(draw(layers, DRAWS)) >= taps_of_all(layers)))


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


def expected_taps(study: Study, label: str, epoch: int) -> list[str]:
    """Words the mean number of taps that have a centre by chance, of each run."""
    runs = study.centres(label, epoch)
    return [f"{by_chance(layers, taps_of_all)[0]:.1f}" for layers in runs]


def away(study: Study, label: str, epoch: int) -> float:
    """Returns the mean distance of a centre to the nearest pixel after an epoch, over runs."""
    return mean(float(away_from_pixels(layers)) for layers in study.centres(label, epoch))


def together(study: Study, label: str) -> Layers:
    """Lists the centres of all layers of all runs at their ends."""
    runs = study.centres(label, study.epochs(label))
    return [layer for layers in runs for layer in layers]
