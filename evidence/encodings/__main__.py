"""The page of the encodings: the paper's networks at scale medium, each with a learning rate of its own.

    RECIPES="sa-quadratic sa-learned sa-sinusoidal sa-distance sa-distance-table-start sa-learned-content convnet"
    convattn study $RECIPES --scale medium --set data.held_out=5000 --set training.epochs=3 --seeds 0 -o search \
        --grid optim.learning_rate=3e-4,1e-3,3e-3
    convattn study $RECIPES --scale medium --set optim.learning_rate=1e-3 --seeds 0,1,2 -o RUNS
    CONVATTN_CIFAR10=FOLDER python -m evidence.encodings --runs RUNS

Writes encodings.json, the curves of accuracy, encodings.png, and into the folder encodings the paper's figures.
How far the heads look, and what decides where, is measured on test images, in the trained networks and in those that
the same seeds draw.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convattn import analyze, load_network, load_recipe
from convattn.data import ImageDataset, normalise
from convattn.heads import HeadSnapshot, read_heads
from convattn.heads.head_report import LayerReport
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.reproduction import reproduce
from convattn.lab.run_setup import build_network, load_data_of
from convattn.lab.tables import markdown_table
from convattn.provenance import RunRecord
from evidence.results import PAGES, new_parser
from evidence.studies import (
    TrainedRun,
    compared,
    difference_table,
    provenance,
    read_study,
    spread,
)

FIGURES = {
    "fig5": "Attention by position, learned encoding: the paper's figure 5",
    "fig4": "Heads of all layers at the end, quadratic encoding: the paper's figure 4",
    "fig3": "Heads of layer 4 over training, quadratic encoding: the paper's figure 3",
    "fig6": "Attention with content, mean of 100 test images: the paper's figure 6",
}
"""The figures of the paper that are on the page, and what they show."""

RECORD = Path(__file__).with_name("encodings.json")
"""What was measured of the networks of the study: they are not kept, their runs are."""

QUESTIONS = {
    "A table, or a function of the distance?": (
        ("sa-learned", "sa-distance"),
        ("sa-distance-table-start", "sa-distance"),
        ("sa-learned", "sa-distance-table-start"),
    ),
    "With content, or without?": (("sa-learned-content", "sa-learned"),),
}
"""What the page answers, by pairs of networks that are compared seed by seed."""


def page(folder: Path, measured: Mapping[str, Any]) -> str:
    """Words the results of a study.

    Args:
        folder: Folder of the study, with its runs.
        measured: What `measure` has found of its networks.

    Returns:
        The page in Markdown.
    """
    study, runs = read_study(folder)
    parts = [
        "# Encodings: all tables",
        "What they say: [encodings](encodings.md).",
        _accuracies(study, runs),
    ]
    parts.append("![Test accuracy over epochs, mean and range over seeds](encodings.png)")
    for question, pairs in QUESTIONS.items():
        asked = compared(runs, pairs)
        if asked:
            table = difference_table(asked, "network")
            parts += [f"## {question}", f"Test accuracy with the same seed:\n\n{table}"]
    if study["differences"]:
        parts += ["## Beside the first network", difference_table(study["differences"], "network")]
    parts += ["## How far heads look", _seen(measured)]
    parts += [f"![{FIGURES[name]}](encodings/{name}.png)" for name in measured["figures"]]
    if measured["deciding"]:
        parts += ["## What decides, position or content", _deciding(measured)]
    moved = _moved(runs)
    if moved:
        parts += ["## How far centres move", moved]
    if "search" in study:
        parts += ["## How the rates were chosen", _choices(study["search"])]
    parts += ["## How it was measured", provenance(study["command"], runs, study["warnings"])]
    return "\n\n".join(parts) + "\n"


def measure(runs: Sequence[TrainedRun], data: ImageDataset, images: int) -> dict[str, Any]:
    """Measures how far heads look, and what decides where, before and after training, on some test images."""
    inputs = normalise(data.test.images[:images], data.mean, data.std)
    seen: dict[str, dict[str, list[list[float]]]] = {}
    deciding = []
    for run in runs:
        model = run.record["recipe"]["model"]
        if model["kind"] != "attention_net":
            continue
        ends = dict(zip(("start", "end"), _ends(run, data), strict=True))
        own = seen.setdefault(run.label, {"start": [], "end": []})
        for end, network in ends.items():
            own[end].append(seen_by_layer(network, inputs))
        if model.get("content"):
            layers = [
                analyze(one, inputs, controls=(), progress=False).layers for one in ends.values()
            ]
            for number, pair in enumerate(zip(*layers, strict=True), 1):
                name = {"network": run.label, "seed": run.record["seed"], "layer": number}
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


def _accuracies(study: dict[str, Any], runs: Sequence[TrainedRun]) -> str:
    """Tabulates the networks, best first."""
    choices = study["search"]["choices"] if "search" in study else []
    values = {item["label"]: item["values"] for item in choices}
    groups = sorted(_by_label(runs).items(), key=lambda pair: -np.mean(_accuracy(pair[1])))
    rows = []
    for label, own in groups:
        settings = ", ".join(f"{key} = {value}" for key, value in values.get(label, {}).items())
        seeds = ", ".join(f"{accuracy:.2%}" for accuracy in _accuracy(own))
        minutes = ", ".join(f"{run.record['seconds'] / 60:.0f}" for run in own)
        row = [f"`{label}`", f"{len(own)}", f"**{spread(_accuracy(own))}**", seeds, settings]
        rows.append([*row, f"{len(own[0].epochs)}", f"{own[0].record['parameters']:,}", minutes])
    heads = ["network", "n", "test accuracy", "by seed", "chosen on held-out images"]
    return markdown_table([*heads, "epochs", "parameters", "minutes"], rows)


def _by_label(runs: Sequence[TrainedRun]) -> dict[str, list[TrainedRun]]:
    """Groups runs by network."""
    found: dict[str, list[TrainedRun]] = {}
    for run in runs:
        found.setdefault(run.label, []).append(run)
    return found


def _accuracy(runs: Sequence[TrainedRun]) -> list[float]:
    return [run.results["test_accuracy"] for run in runs]


def seen_by_layer(network: nn.Module, images: Tensor) -> list[float]:
    """Measures the number of pixels that heads look at, exp(entropy of attention), as a mean over each layer's heads.

    Args:
        network: A network of attention layers.
        images: Normalised images, (images, channels, rows, cols).

    Returns:
        One number per layer, from 1 to the number of pixels.
    """
    report = analyze(network, images, controls=(), progress=False)
    return [
        float(np.mean([head.effective_positions.value for head in layer.heads]))
        for layer in report.layers
    ]


def drawn(run: TrainedRun, data: ImageDataset) -> nn.Module:
    """Draws the network with which a run began."""
    recipe = load_recipe(run.folder / "recipe.toml")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return build_network(recipe, data).eval()


def _seen(measured: Mapping[str, Any]) -> str:
    """Tabulates how many pixels heads look at, before and after training."""
    rows = []
    for label, ends in measured["seen"].items():
        cells = [" · ".join(map(_numbers, ends[end])) for end in ("start", "end")]
        rows.append([f"`{label}`", *cells])
    heads = ["network", "at the start, by layer · seed", "after training, by layer · seed"]
    told = "The number of pixels that a head looks at is exp(entropy of its attention)."
    return f"{told} Means over heads, on {measured['images']} test images.\n\n{markdown_table(heads, rows)}"


def _deciding(measured: Mapping[str, Any]) -> str:
    """Tabulates what decides where heads look, before and after training."""
    rows = []
    for row in measured["deciding"]:
        scores, shares = (
            [f"{value:.2f}" for value in row[what]] for what in ("position_score", "content_share")
        )
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
    told = (
        f"On {measured['images']} test images, means over heads. The position score of a head is the share of its"
        " weights that displacements explain (1: a convolution, 0: no better than looking everywhere alike), on"
        " held-out images."
        " Content's share is the part of the variance of its weights that changes with the image."
    )
    return f"{told}\n\n{markdown_table(head, rows)}"


def _ends(run: TrainedRun, data: ImageDataset) -> tuple[nn.Module, nn.Module]:
    """Returns the network of a run as it began and as it ended."""
    return drawn(run, data), load_network(run.folder)


def _moved(runs: Sequence[TrainedRun]) -> str:
    """Tabulates how far the centres of quadratic heads move; "" if no network has such heads."""
    rows = []
    for run in runs:
        if not (run.folder / "heads.parquet").is_file():
            continue
        kept = read_heads(run.folder)
        first, last = kept[0].step, kept[-1].step
        ends = zip(
            (i for i in kept if i.step == first), (i for i in kept if i.step == last), strict=True
        )
        for start, end in ends:
            moved = np.linalg.norm(end.centres - start.centres, axis=1)
            name = [f"`{run.label}`", f"{run.record['seed']}", f"{end.layer + 1}"]
            rows.append([*name, f"{moved.mean():.2f}", f"{moved.max():.2f}", *_widths(start, end)])
    if not rows:
        return ""
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
    before, after = (
        np.sqrt(np.trace(np.linalg.inv(i.precisions), axis1=1, axis2=2) / 2) for i in (start, end)
    )
    return [
        f"{np.median(before):.2f}",
        f"{np.median(after):.2f}",
        f"{(after > before).sum()} of {len(after)}",
    ]


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


def _numbers(layers: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in layers)


def _choices(search: dict[str, Any]) -> str:
    """Tabulates what the search tried, by network."""
    rows = []
    for choice in search["choices"]:
        for item in choice["candidates"]:
            values = ", ".join(f"{key} = {value}" for key, value in item["values"].items())
            found = "none" if item["accuracy"] is None else f"{item['accuracy']['mean']:.2%}"
            outcome = "chosen" if item["values"] == choice["values"] else "; ".join(item["failed"])
            rows.append([f"`{choice['label']}`", values, found, outcome])
    table = markdown_table(["network", "values", "accuracy on held-out training images", ""], rows)
    return f"{table}\n\nCommand: `{search['command']}`."


def draw(figure_file: Path, runs: Sequence[TrainedRun]) -> None:
    """Draws test accuracy over epochs: the mean over seeds, and their range as a band."""
    with figure_files([figure_file], (7.2, 4.4)) as figure:
        panel = figure.subplots()
        panel.set(xlabel="epoch", ylabel="test accuracy (%)")
        panel.xaxis.get_major_locator().set_params(integer=True)
        for number, (label, own) in enumerate(_by_label(runs).items()):
            values = 100 * np.array(
                [[epoch["test_accuracy"] for epoch in run.epochs] for run in own]
            )
            epochs, colour = range(1, values.shape[1] + 1), COLOURS[number % len(COLOURS)]
            style = "-" if number % 2 else "--"
            panel.plot(
                epochs, values.mean(0), style, color=colour, label=f"{label} (n = {len(own)})"
            )
            panel.fill_between(
                epochs, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0
            )
        panel.legend(loc="lower right")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of a study, with its runs")
    parser.add_argument("--output", type=Path, default=PAGES, help="folder for the page")
    parser.add_argument("--record", type=Path, default=RECORD, help="file for what is measured")
    parser.add_argument(
        "--images",
        type=int,
        default=100,
        help="test images on which is measured how far heads look",
    )
    given = parser.parse_args(arguments)
    if not (given.runs / "study.json").is_file():
        parser.error(
            f"--runs must be the folder of a study, with study.json in it, but is {str(given.runs)!r}"
        )
    runs = read_study(given.runs)[1]
    if not runs or any("test_accuracy" not in run.results for run in runs):
        parser.error(
            f"--runs must be a study with finished runs on test images, but is {str(given.runs)!r}"
        )
    given.output.mkdir(parents=True, exist_ok=True)
    draw(given.output / "encodings.png", runs)
    shown = figures(given.runs, runs[0].record["recipe"]["scale"], given.output / "encodings")
    data = load_data_of(RunRecord.load(runs[0].folder / "record.json"))
    measured = {**measure(runs, data, given.images), "figures": shown}
    given.record.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
