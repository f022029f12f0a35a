"""The page of the speed run: accuracy, its controls, and where the heads went; from the folders of two studies.

    python -m evidence.speedrun

Draws the figures of the heads from the records of this folder. `STUDIES` has the
commands that make them; the folder of a run is named NETWORK-SEED.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from convattn.encodings import Shift
from convattn.heads import read_heads
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.lab.figures import head_layers
from convattn.lab.speed_net import SpeedNet
from convattn.lab.tables import markdown_table
from convattn.layers import RelativeAttention
from evidence.results import PAGES, new_parser
from evidence.studies import (
    TrainedRun,
    compared,
    difference_table,
    finished_runs,
    provenance,
    spread,
)

_TAPS = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]
_NEAR = 0.5
"""Largest distance along an axis, in pixels, at which a centre is at a tap."""

_PASSES = 3
"""A step takes the operations of a forward pass three times: forward, gradients of the pixels, gradients of weights."""

TRAIN_IMAGES = 50_000

_COMMAND = "convattn study speedrun --seeds 0,1,2"
_MIXINGS = ("attention", "conv", "hard", "random", "random-frozen", "content")

STUDIES = {
    "headline": ("The run", _COMMAND),
    "controls": (
        "The same network with other layers, on a short budget",
        f"{_COMMAND} --set training.epochs=2 --grid model.mixing={','.join(_MIXINGS)}",
    ),
}
"""The studies by the name of their folder: title, and command."""


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
    near = np.abs(centres[..., None, :, :] - np.array(_TAPS)[:, None]) <= _NEAR
    return np.asarray(np.count_nonzero(near.all(-1).any(-1), axis=-1))


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


def petaflops(recipe: dict[str, Any], image_size: int = 32, *, every_pair: bool = False) -> float:
    """Counts the operations of a training run in 10¹⁵, with means along one axis after the other or over every pair."""
    network = network_of(recipe)
    count, forward = network.flops(image_size), 0
    if every_pair:
        return _PASSES * count.total * TRAIN_IMAGES * recipe["training"]["epochs"] / 1e15
    for layer, side in zip(_mixers(network), sides_of(network, image_size), strict=True):
        if isinstance(layer, RelativeAttention) and not isinstance(layer.encoding, Shift):
            products = 2 * side**3 if layer.content is None else side**4
            forward += 2 * products * layer.num_heads * layer.in_channels
    forward += count.total - count.mixing
    return _PASSES * forward * TRAIN_IMAGES * recipe["training"]["epochs"] / 1e15


def page(folder: Path) -> str:
    """Words the results of the studies in a folder."""
    parts = ["# The speed run: all tables", "What they say: [speed run](speedrun.md)."]
    for name, (title, command) in STUDIES.items():
        runs = finished_runs(folder / name)
        first = {run.label: run for run in reversed(runs) if _has_heads(run)}
        baseline, *others = dict.fromkeys(run.label for run in runs)
        parts += [f"## {title}", _accuracies(runs)]
        if others:
            differences = compared(runs, [(label, baseline) for label in others])
            table = difference_table(differences, "layers")
            parts.append(f"Test accuracy, image alone, with the same seed:\n\n{table}")
        parts += [_heads(first[label]) for label in [baseline, *others] if label in first]
        parts.append(provenance(command, runs))
    return "\n\n".join(parts) + "\n"


def draw(folder: Path) -> None:
    """Draws the heads of the first run of each network with soft heads, before and after training."""
    for name in STUDIES:
        runs = [run for run in finished_runs(folder / name) if _has_heads(run)]
        for run in {run.label: run for run in reversed(runs)}.values():
            kept = _ends(run)
            file = PAGES / _figure(run)
            head_layers(
                [file], kept, title="heads before and after training", columns=len(kept) // 2
            )


def _has_heads(run: TrainedRun) -> bool:
    return (run.folder / "heads.parquet").exists()


def _figure(run: TrainedRun) -> str:
    """Names the figure of the heads of a run."""
    return f"speedrun-{run.folder.parent.name}-{run.record['recipe']['model']['mixing']}.png"


def _ends(run: TrainedRun) -> list[HeadSnapshot]:
    """Reads where heads were at the start and at the end."""
    snapshots = read_heads(run.folder)
    steps = (snapshots[0].step, snapshots[-1].step)
    return [item for item in snapshots if item.step in steps]


def _accuracies(runs: Sequence[TrainedRun]) -> str:
    """Tabulates the runs by label."""
    rows = []
    for label in dict.fromkeys(run.label for run in runs):
        own = [run for run in runs if run.label == label]
        plain = [run.results["test_accuracy"] for run in own]
        mirrored = [run.results["views_accuracy"] for run in own]
        reached = [run.minutes_to(0.9) for run in own]
        recipe = own[0].record["recipe"]
        minutes = ["–" if one is None else f"{one:.0f}" for one in reached]
        rows.append(
            [
                recipe["model"]["mixing"],
                f"{len(own)}",
                spread(mirrored),
                spread(plain),
                ", ".join(f"{accuracy:.2%}" for accuracy in mirrored),
                f"{recipe['training']['epochs']}",
                f"{petaflops(recipe):.3f}",
                ", ".join(f"{run.record['seconds'] / 60:.0f}" for run in own),
                ", ".join(minutes),
            ]
        )
    heads = ["layers", "n", "accuracy, image and its mirror image", "image alone", "by seed"]
    heads += ["epochs", "PFLOP", "minutes", "minutes to 90 %"]
    return markdown_table(heads, rows)


def _heads(run: TrainedRun) -> str:
    """Tabulates where the heads went."""
    kept = _ends(run)
    ends = (kept[0].step, kept[-1].step)
    model = run.record["recipe"]["model"]
    sides = sides_of(network_of(run.record["recipe"]), 32)
    pairs = zip(
        (i for i in kept if i.step == ends[0]), (i for i in kept if i.step == ends[1]), strict=True
    )
    rows = [_layer_row(start, end, side) for (start, end), side in zip(pairs, sides, strict=True)]
    header = [
        "layer",
        "pixels",
        "centres moved, px: mean, most",
        "farthest centre, px",
        "sharpness, 1/px²: start",
    ]
    header += [
        "end: least, median, most",
        "attention on the 3 × 3 taps: start",
        "end",
        "taps with a centre",
    ]
    name = f"`{model['mixing']}`, seed {run.record['seed']}"
    return (
        f"Heads of {name}:\n\n{markdown_table(header, rows)}\n\n![Heads of {name}]({_figure(run)})"
    )


def _layer_row(start: HeadSnapshot, end: HeadSnapshot, side: int) -> list[str]:
    """Words where the heads of one layer went."""
    moved = np.linalg.norm(end.centres - start.centres, axis=1)
    before, after = (np.trace(item.precisions, axis1=1, axis2=2) / 4 for item in (start, end))
    shares = [
        attention_on_taps(item.centres, item.precisions, side).mean() for item in (start, end)
    ]
    return [
        f"{end.layer + 1}",
        f"{side} × {side}",
        f"{moved.mean():.2f}, {moved.max():.2f}",
        f"{np.abs(end.centres).max():.2f}",
        f"{np.median(before):.2f}",
        f"{after.min():.2f}, {np.median(after):.2f}, {after.max():.2f}",
        *(f"{share:.0%}" for share in shares),
        f"{taps_with_a_centre(end.centres)} of 9",
    ]


def network_of(recipe: dict[str, Any]) -> SpeedNet:
    """Builds the network of a recipe; records from before the stem had a choice have patches of 2 x 2."""
    model = recipe["model"]
    return SpeedNet(model["mixing"], widths=model["widths"], patch=model.get("patch", 2))


def _mixers(network: SpeedNet) -> Iterator[Any]:
    """Lists the mixing layers, first to last."""
    for stage in network.stages:
        yield stage.first
        yield stage.second


def sides_of(network: SpeedNet, image_size: int) -> list[int]:
    """Lists the rows of the image that each mixing layer is given."""
    sides, side = [], image_size - network.stem.patch + 1
    for _ in network.stages:
        sides += [side, side // 2]
        side //= 2
    return sides


def main() -> None:
    """Draws the figures."""
    new_parser(__doc__).parse_args()
    draw(Path(__file__).parent)


if __name__ == "__main__":
    main()
