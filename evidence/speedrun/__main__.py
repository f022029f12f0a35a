"""The page of the speed run: accuracy, its controls, and where the heads went; from the folders of two studies.

    convattn study speedrun --seeds 0,1,2 -o RUNS/headline
    convattn study speedrun --seeds 0,1,2 --set training.epochs=2 -o RUNS/controls \
        --grid model.mixing=attention,conv,hard,random,random-frozen,content
    python -m evidence.speedrun --runs RUNS

Writes speedrun-tables.md, and the figures of the heads beside it. One of the two studies is enough.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from convattn.encodings import Shift
from convattn.files import write_atomically
from convattn.heads import read_heads
from convattn.heads.head_snapshots import HeadSnapshot
from convattn.lab.figures import head_layers
from convattn.lab.speed_net import SpeedNet
from convattn.lab.tables import markdown_table
from convattn.layers import RelativeAttention
from evidence.results import PAGES, new_parser
from evidence.studies import TrainedRun, difference_table, provenance, read_study, spread

_TAPS = [(row, col) for row in (-1, 0, 1) for col in (-1, 0, 1)]
_NEAR = 0.5
"""Largest distance along an axis, in pixels, at which a centre is at a tap."""

_PASSES = 3
"""A step takes the operations of a forward pass three times: forward, gradients of the pixels, gradients of weights."""

_TRAIN_IMAGES = 50_000

TITLES = {
    "headline": "The run",
    "controls": "The same network with other layers, on a short budget",
}
"""The studies, by the name of their folder."""


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


def by_chance(
    layers: Sequence[Float[np.ndarray, "heads 2"]],
    measured: Callable[[Sequence[Float[np.ndarray, "draws heads 2"]]], np.ndarray],
) -> tuple[float, float, float]:
    """Measures centres that are normal, with the mean and spread that those of each layer have.

    Args:
        layers: Centres of the heads of each layer, (row, col) in pixels.
        measured: One number for each draw, of the centres of all layers.

    Returns:
        The mean of 1,000 draws, and the range of the middle 95 %.
    """
    draw = np.random.default_rng(0)
    found = measured([draw.normal(one.mean(0), one.std(0), (1000, *one.shape)) for one in layers])
    low, high = np.quantile(found, (0.025, 0.975), method="closest_observation")
    return float(np.mean(found)), float(low), float(high)


def petaflops(recipe: dict[str, Any], image_size: int = 32, *, every_pair: bool = False) -> float:
    """Counts the operations of a training run in 10¹⁵, with means along one axis after the other or over every pair."""
    network = _network(recipe)
    count, forward = network.flops(image_size), 0
    if every_pair:
        return _PASSES * count.total * _TRAIN_IMAGES * recipe["training"]["epochs"] / 1e15
    for layer, side in zip(_mixers(network), _sides(network, image_size), strict=True):
        if isinstance(layer, RelativeAttention) and not isinstance(layer.encoding, Shift):
            products = 2 * side**3 if layer.content is None else side**4
            forward += 2 * products * layer.num_heads * layer.in_channels
    forward += count.total - count.mixing
    return _PASSES * forward * _TRAIN_IMAGES * recipe["training"]["epochs"] / 1e15


def page(folders: Sequence[Path], output: Path) -> str:
    """Words the results, and draws the heads of the first run of each study with soft heads.

    Args:
        folders: Folders of studies, named headline or controls.
        output: Folder for the figures.

    Returns:
        The page in Markdown.
    """
    parts = ["# The speed run: all tables", "What they say: [speed run](speedrun.md)."]
    for folder in folders:
        study, runs = read_study(folder)
        parts += [f"## {TITLES[folder.name]}", _accuracies(runs)]
        if study["differences"]:
            table = difference_table(study["differences"], "layers")
            parts.append(f"Test accuracy, image alone, with the same seed:\n\n{table}")
        first: dict[str, TrainedRun] = {}
        for run in runs:
            if (run.folder / "heads.parquet").exists():
                first.setdefault(run.label, run)
        for run in first.values():
            name = f"speedrun-{folder.name}-{run.record['recipe']['model']['mixing']}.png"
            parts.append(_heads(run, output / name))
        parts.append(provenance(study, runs))
    return "\n\n".join(parts) + "\n"


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


def _heads(run: TrainedRun, figure: Path) -> str:
    """Draws the heads at the start and at the end, and tabulates where they went."""
    snapshots = read_heads(run.folder)
    ends = (snapshots[0].step, snapshots[-1].step)
    kept = [item for item in snapshots if item.step in ends]
    head_layers([figure], kept, title="heads before and after training", columns=len(kept) // 2)
    model = run.record["recipe"]["model"]
    sides = _sides(_network(run.record["recipe"]), 32)
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
        f"Heads of {name}:\n\n{markdown_table(header, rows)}\n\n![Heads of {name}]({figure.name})"
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


def _network(recipe: dict[str, Any]) -> SpeedNet:
    """Builds the network of a recipe; records from before the stem had a choice have patches of 2 x 2."""
    model = recipe["model"]
    return SpeedNet(model["mixing"], widths=model["widths"], patch=model.get("patch", 2))


def _mixers(network: SpeedNet) -> Iterator[Any]:
    """Lists the mixing layers, first to last."""
    for stage in network.stages:
        yield stage.first
        yield stage.second


def _sides(network: SpeedNet, image_size: int) -> list[int]:
    """Lists the rows of the image that each mixing layer is given."""
    sides, side = [], image_size - network.stem.patch + 1
    for _ in network.stages:
        sides += [side, side // 2]
        side //= 2
    return sides


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder with headline, controls")
    parser.add_argument("--output", type=Path, default=PAGES, help="folder for the page")
    options = parser.parse_args(arguments)
    folders = [options.runs / name for name in TITLES if (options.runs / name).is_dir()]
    if not folders:
        parser.error(f"--runs must hold headline or controls, but is {str(options.runs)!r}")
    write_atomically(options.output / "speedrun-tables.md", page(folders, options.output))


if __name__ == "__main__":
    main()
