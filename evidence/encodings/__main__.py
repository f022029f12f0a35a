"""The page of the encodings: the paper's networks at scale medium, each with a learning rate of its own.

    RECIPES="sa-quadratic sa-learned sa-sinusoidal sa-distance sa-distance-table-start sa-learned-content convnet"
    convattn study $RECIPES --scale medium --set data.held_out=5000 --set training.epochs=3 --seeds 0 -o search \
        --grid optim.learning_rate=3e-4,1e-3,3e-3
    convattn study $RECIPES --scale medium --set optim.learning_rate=1e-3 --seeds 0,1,2 -o RUNS
    CONVATTN_CIFAR10=FOLDER python -m evidence.encodings --runs RUNS

Writes encodings-tables.md, the curves of accuracy, encodings.png, and into the folder encodings the paper's figures.
How far the heads look, and what decides where, is measured on test images, in the trained networks and in those that
the same seeds draw.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convattn import analyze, load_network, load_recipe
from convattn.data import ImageDataset, normalise
from convattn.files import write_atomically
from convattn.heads import HeadSnapshot, read_heads
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.reproduction import reproduce
from convattn.lab.run_setup import build_network, load_data_of
from convattn.lab.study_record import paired_difference
from convattn.lab.tables import markdown_table
from convattn.provenance import RunRecord
from evidence.results import PAGES, new_parser
from evidence.studies import TrainedRun, difference_table, provenance, read_study, spread

FIGURES = {
    "fig5": "Attention by position, learned encoding: the paper's figure 5",
    "fig4": "Heads of all layers at the end, quadratic encoding: the paper's figure 4",
    "fig3": "Heads of layer 4 over training, quadratic encoding: the paper's figure 3",
    "fig6": "Attention with content, mean of 100 test images: the paper's figure 6",
}
"""The figures of the paper that are on the page, and what they show."""

QUESTIONS = {
    "A table, or a function of the distance?": (
        ("sa-learned", "sa-distance"),
        ("sa-distance-table-start", "sa-distance"),
        ("sa-learned", "sa-distance-table-start"),
    ),
    "With content, or without?": (("sa-learned-content", "sa-learned"),),
}
"""What the page answers, by pairs of networks that are compared seed by seed."""


def page(folder: Path, images: int, shown: Sequence[str] = ()) -> str:
    """Words the results of a study.

    Args:
        folder: Folder of the study, with its runs.
        images: Test images on which is measured how far heads look.
        shown: Names of the paper's figures that were made.

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
        asked = _asked(runs, pairs)
        if asked:
            parts += [
                f"## {question}",
                f"Test accuracy with the same seed:\n\n{difference_table(asked, 'network')}",
            ]
    if study["differences"]:
        parts += ["## Beside the first network", difference_table(study["differences"], "network")]
    data = load_data_of(RunRecord.load(runs[0].folder / "record.json"))
    inputs = normalise(data.test.images[:images], data.mean, data.std)
    parts += ["## How far heads look", _seen(runs, data, inputs)]
    parts += [f"![{FIGURES[name]}](encodings/{name}.png)" for name in shown]
    deciding = _deciding(runs, data, inputs)
    if deciding:
        parts += ["## What decides, position or content", deciding]
    moved = _moved(runs)
    if moved:
        parts += ["## How far centres move", moved]
    if "search" in study:
        parts += ["## How the rates were chosen", _choices(study["search"])]
    return "\n\n".join([*parts, "## How it was measured", provenance(study, runs)]) + "\n"


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


def _asked(runs: Sequence[TrainedRun], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Compares the pairs of a question, seed by seed, as far as they are there."""
    seeds: dict[str, dict[int, float]] = {}
    for run in runs:
        seeds.setdefault(run.label, {})[run.record["seed"]] = run.results["test_accuracy"]
    differences = []
    for one, other in pairs:
        if one in seeds and other in seeds:
            pair = paired_difference(one, other, seeds[one], seeds[other])
            differences += [] if pair is None else [asdict(pair)]
    return differences


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


def _seen(runs: Sequence[TrainedRun], data: ImageDataset, inputs: Tensor) -> str:
    """Tabulates how many pixels heads look at, before and after training."""
    rows = []
    for label, own in _by_label(runs).items():
        if own[0].record["recipe"]["model"]["kind"] != "attention_net":
            continue
        seen = [[seen_by_layer(network, inputs) for network in _ends(run, data)] for run in own]
        rows.append(
            [f"`{label}`", *(" · ".join(map(_numbers, part)) for part in zip(*seen, strict=True))]
        )
    heads = ["network", "at the start, by layer · seed", "after training, by layer · seed"]
    told = f"The number of pixels that a head looks at, exp(entropy of its attention), on {len(inputs)} test images."
    return f"{told} Means over heads.\n\n{markdown_table(heads, rows)}"


def _deciding(runs: Sequence[TrainedRun], data: ImageDataset, inputs: Tensor) -> str:
    """Tabulates what decides where heads look, before and after training; "" if no network has content."""
    rows = []
    for run in runs:
        if not run.record["recipe"]["model"].get("content"):
            continue
        start, end = (
            analyze(network, inputs, controls=(), progress=False).layers
            for network in _ends(run, data)
        )
        for number, layers in enumerate(zip(start, end, strict=True), 1):
            scores = [f"{layer.measured.mean('position_score'):.2f}" for layer in layers]
            shares = [f"{layer.measured.mean('content_share'):.2f}" for layer in layers]
            best = np.nanmax([head.position_score.value for head in layers[1].heads])
            explained = f"{layers[1].measured.convolution_score}"
            name = [f"`{run.label}`", f"{run.record['seed']}", f"{number}"]
            rows.append([*name, *scores, f"{best:.2f}", *shares, explained])
    if not rows:
        return ""
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
        f"On {len(inputs)} test images, means over heads. The position score of a head is the share of its weights that"
        " displacements explain (1: a convolution, 0: no better than looking everywhere alike), on held-out images."
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
    write_atomically(given.output / "encodings-tables.md", page(given.runs, given.images, shown))


if __name__ == "__main__":
    main()
