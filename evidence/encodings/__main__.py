"""The tables of the encodings: the paper's networks at scale medium, each with a learning rate of its own.

    RECIPES="sa-quadratic sa-learned sa-sinusoidal sa-distance sa-distance-table-start sa-learned-content convnet"
    convattn study $RECIPES --scale medium --set data.held_out=5000 --set training.epochs=3 --seeds 0 -o search \
        --grid optim.learning_rate=3e-4,1e-3,3e-3
    convattn study $RECIPES --scale medium --set optim.learning_rate=1e-3 --seeds 0,1,2 -o RUNS
    CONVATTN_CIFAR10=FOLDER python -m evidence.encodings --runs RUNS

Writes encodings.json, and into the folder encodings the paper's figures.
How far the heads look, and what decides where, is measured on test images, in the trained networks and in those that
the same seeds draw.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from convattn import analyze, load_network, load_recipe
from convattn.data import ImageDataset, normalise
from convattn.heads import HeadSnapshot
from convattn.heads.head_report import LayerReport
from convattn.lab.reproduction import reproduce
from convattn.lab.run_setup import build_network, load_data_of
from convattn.lab.tables import markdown_table
from convattn.provenance import RunRecord
from evidence.results import PAGES, new_parser, publish
from evidence.speedrun.centres import distances_moved
from evidence.studies import Study, TrainedRun, spread, study

FIGURES = {
    "fig5": "Attention by position, learned encoding: the paper's figure 5",
    "fig4": "Heads of all layers at the end, quadratic encoding: the paper's figure 4",
    "fig3": "Heads of layer 4 over training, quadratic encoding: the paper's figure 3",
    "fig6": "Attention with content, mean of 100 test images: the paper's figure 6",
}
"""The figures of the paper that are on the page, and what they show."""

_OTHERS = (
    "sa-learned",
    "sa-sinusoidal",
    "sa-distance",
    "sa-distance-table-start",
    "sa-learned-content",
    "convnet",
)

QUESTIONS = {
    "A table, or a function of the distance?": (
        ("sa-learned", "sa-distance"),
        ("sa-distance-table-start", "sa-distance"),
        ("sa-learned", "sa-distance-table-start"),
    ),
    "With content, or without?": (("sa-learned-content", "sa-learned"),),
    "Beside the quadratic encoding": tuple((label, "sa-quadratic") for label in _OTHERS),
}
"""What the page answers, by pairs of networks that are compared seed by seed."""


def measure(study: Study, data: ImageDataset, images: int) -> dict[str, Any]:
    """Measures how far heads look, and what decides where, before and after training, on some test images."""
    inputs = normalise(data.test.images[:images], data.mean, data.std)
    seen: dict[str, dict[str, list[list[float]]]] = {}
    deciding = []
    for run in study.all:
        model = run.record["recipe"]["model"]
        if model["kind"] != "attention_net":
            continue
        own = seen.setdefault(run.label, {"start": [], "end": []})
        layers = []
        for end, network in {"start": drawn(run, data), "end": load_network(run.folder)}.items():
            report = analyze(network, inputs, controls=(), progress=False)
            layers.append(report.layers)
            own[end].append([layer.measured.mean("effective_positions") for layer in report.layers])
        if model.get("content"):
            for number, pair in enumerate(zip(*layers, strict=True), 1):
                name = {"network": run.label, "seed": run.seed, "layer": number}
                deciding.append({**name, **_decides(*pair)})
    return {"images": images, "seen": seen, "deciding": deciding}


def _decides(start: LayerReport, end: LayerReport) -> dict[str, Any]:
    """Tells what decides where the heads of a layer look, at the start and at the end."""
    sides = (start.measured, end.measured)
    return {
        "position_score": [side.mean("position_score") for side in sides],
        "highest": float(np.nanmax([head.position_score.value for head in end.heads])),
        "content_share": [side.mean("content_share") for side in sides],
        "convolution": str(end.measured.convolution_score),
    }


def drawn(run: TrainedRun, data: ImageDataset) -> nn.Module:
    """Draws the network with which a run began."""
    recipe = load_recipe(run.folder / "recipe.toml")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return build_network(recipe, data).eval()


def accuracies(study: Study) -> str:
    """Tabulates the networks, best first."""
    rows = []
    for label in sorted(study.runs, key=lambda label: -np.mean(study.accuracy(label))):
        own, accuracy = study.of(label), study.accuracy(label)
        seeds = ", ".join(f"{value:.2%}" for value in accuracy)
        minutes = ", ".join(f"{run.record['seconds'] / 60:.0f}" for run in own)
        row = [f"`{label}`", f"{len(own)}", f"**{spread(accuracy)}**", seeds]
        rows.append([*row, f"{len(own[0].epochs)}", f"{own[0].record['parameters']:,}", minutes])
    heads = ["network", "n", "test accuracy", "by seed", "epochs", "parameters", "minutes"]
    return markdown_table(heads, rows)


def seen(measured: Mapping[str, Any]) -> str:
    """Tabulates how many pixels heads look at, before and after training."""
    rows = []
    for label, ends in measured["seen"].items():
        cells = [" · ".join(map(_numbers, ends[end])) for end in ("start", "end")]
        rows.append([f"`{label}`", *cells])
    heads = ["network", "at the start, by layer · seed", "after training, by layer · seed"]
    return markdown_table(heads, rows)


def _numbers(layers: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in layers)


def deciding(measured: Mapping[str, Any]) -> str:
    """Tabulates what decides where heads look, before and after training."""
    rows = []
    for row in measured["deciding"]:
        scores = [f"{value:.2f}" for value in row["position_score"]]
        shares = [f"{value:.2f}" for value in row["content_share"]]
        name = [f"`{row['network']}`", f"{row['seed']}", f"{row['layer']}"]
        rows.append([*name, *scores, f"{row['highest']:.2f}", *shares, row["convolution"]])
    head = [
        "network",
        "seed",
        "layer",
        "position score at the start",
        "at the end",
        "highest of a head, at the end",
    ]
    head += [
        "content's share at the start",
        "at the end",
        "a 3 × 3 convolution explains, at the end",
    ]
    return markdown_table(head, rows)


def moved(study: Study) -> str:
    """Tabulates how far the centres of quadratic heads move."""
    rows = []
    for run in study.all:
        if run.has_heads:
            for start, end in zip(*run.ends(), strict=True):
                far = distances_moved(start, end)
                name = [f"`{run.label}`", f"{run.seed}", f"{end.layer + 1}"]
                rows.append([*name, f"{far.mean():.2f}", f"{far.max():.2f}", *_widths(start, end)])
    head = [
        "network",
        "seed",
        "layer",
        "moved, pixels: mean",
        "most",
        "width at the start, pixels: median",
    ]
    return markdown_table([*head, "at the end", "heads wider at the end"], rows)


def _widths(start: HeadSnapshot, end: HeadSnapshot) -> list[str]:
    """Words heads' standard deviations, in pixels (root mean square of both axes), and how many heads have grown."""
    before, after = map(_deviations, (start, end))
    grown = f"{(after > before).sum()} of {len(after)}"
    return [f"{np.median(before):.2f}", f"{np.median(after):.2f}", grown]


def _deviations(layer: HeadSnapshot) -> np.ndarray:
    return np.sqrt(np.trace(np.linalg.inv(layer.precisions), axis1=1, axis2=2) / 2)


def widened(study: Study, label: str) -> int:
    """Counts the heads of the last layer of all runs that are wider at the end than at the start."""
    ends = [run.ends() for run in study.of(label)]
    return sum(int((_deviations(end[-1]) > _deviations(start[-1])).sum()) for start, end in ends)


def figures(folder: Path, scale: str, output: Path) -> list[str]:
    """Makes the paper's figures of heads.

    Args:
        folder: Folder of the study, with its runs.
        scale: Scale of its recipes.
        output: Folder for the figures, which is made if it is not there.

    Returns:
        Names of the figures whose runs are there.
    """
    with tempfile.TemporaryDirectory() as place:
        targets = reproduce(list(FIGURES), folder, Path(place) / "figures", scale=scale).targets
        names = [one.target for one in targets if f"{one.target}.png" in one.files]
        output.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(Path(place) / "figures" / f"{name}.png", output / f"{name}.png")
    return names


def main() -> None:
    """Measures the networks of a study, and draws their heads."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of a study, with its runs")
    parser.add_argument("--images", type=int, default=100, help="test images to measure on")
    options = parser.parse_args()
    runs = study(options.runs.resolve())
    first = runs.all[0]
    shown = figures(options.runs, first.record["recipe"]["scale"], PAGES / "encodings")
    data = load_data_of(RunRecord.load(first.folder / "record.json"))
    publish(__file__, {**measure(runs, data, options.images), "figures": shown})


if __name__ == "__main__":
    main()
