"""The page of head reports, every number from the reports."""

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from statistics import mean
from typing import Any

from convattn.heads.head_report import HeadReport, LayerStatistics
from convattn.heads.verdict import CONVOLUTIONAL, HeadVerdict, convolutions, taps_held
from convattn.lab.study_record import LEAST_SEEDS, t_interval
from convattn.lab.tables import markdown_table

NAME = "trained-heads"

PAGE = """\
# Heads of trained networks

Which heads of trained networks are convolutions? [`analyze`](../how-to/analyse.md) on {images} inputs each: images on
which no network was trained, and texts that the text encoder may have seen. A head is *hard* if more than half of its
attention is at one displacement; it is *convolutional* if its position score R² is at least {convolutional:g}: then it
attends by position alone, near or far.

{overview}

"Taps" are those of a 3 × 3 kernel (of a text: of three tokens) that the hard heads of a layer look at: in the first
layer, and in the layer with the most. "Untrained" is the network with the entries of each parameter in another order.
Heads without content have a position score of 1 whatever they learn, and those of ConViT keep a high one while their
gates leave position alone: for them, taps and distances say something. The number of hard heads does not where
shuffled weights have as many.

## By layer

Taps that hard heads cover, in brackets with untrained weights:

{taps}

Mean distance of attention, as a share of that of heads that look everywhere alike:

{distances}
{cutmix}
{networks}
## How it was measured

    {command}

Images are the first test images of {data}; accuracy is on all 10,000. Texts are paragraphs of the docstrings of
Python's standard library. Errors are standard errors over inputs, controls were measured on a tenth of them.
{hardware[processor]}, {hardware[threads]} thread(s), {versions}, revision {revision}. All numbers are in
[{name}.json](../../evidence/trained_heads/{name}.json).

Not covered: other data. One run of each network, of the small transformers one run per seed.
"""

CUTMIX = """
## With and without CutMix

The same small transformer with the same seed, once with CutMix on half of its batches. Mean attention distance of all
heads, in patches of the 8 × 8 grid. arXiv 2605.16390 finds that CutMix keeps it low.

{table}

{verdict}

By layer, mean of the seeds:

{layers}
"""


def summary(report: HeadReport) -> dict[str, Any]:
    """Returns what the page says of a report."""
    layers = []
    taps = (report.kernel_size,) * len(report.layers[0].grid)
    for layer in report.layers:
        controls = {}
        for control in layer.controls:
            controls[control.name] = _numbers(
                control.measured, layer.verdicts_in(control.name), taps
            )
        layers.append(
            {
                "name": layer.name,
                "grid": list(layer.grid),
                "heads": len(layer.heads),
                "uniform_distance": layer.uniform_distance,
                **_numbers(layer.measured, layer.verdicts, taps),
                "controls": controls,
                "sentence": layer.sentence,
            }
        )
    return {
        "images": report.images,
        "control_images": report.control_images,
        "taps": prod(taps),
        "layers": layers,
    }


def _numbers(
    measured: LayerStatistics, verdicts: Sequence[HeadVerdict], taps: Sequence[int]
) -> dict[str, Any]:
    explained = measured.convolution_score
    held = taps_held(verdicts, taps)
    return {
        "hard": sum(verdict.tap is not None for verdict in verdicts),
        "convolutional": convolutions(verdicts),
        "hard_tap_coverage": len(held) / prod(taps),
        "position_score": measured.mean("position_score"),
        "distance": measured.mean("distance"),
        "convolution_score": explained.value,
        "convolution_error": explained.error,
    }


def page(content: Mapping[str, Any]) -> str:
    """Words the results."""
    networks = content["networks"]
    return PAGE.format(
        name=NAME,
        images=content["images"],
        convolutional=CONVOLUTIONAL,
        overview=_overview(networks),
        taps=_by_layer(networks, "taps, by layer", _taps),
        distances=_by_layer(networks, "distance, by layer", _relative_distance),
        cutmix=_cutmix(networks),
        networks="\n".join(map(_network, networks)),
        command=content["command"],
        data=content["data"]["name"],
        hardware=content["hardware"],
        versions=", ".join(f"{name} {version}" for name, version in content["versions"].items()),
        revision=content["revision"],
    )


def distance(network: Mapping[str, Any]) -> float:
    """Returns the mean attention distance of all heads, in cells."""
    heads = sum(layer["heads"] for layer in network["layers"])
    return sum(layer["heads"] * layer["distance"] for layer in network["layers"]) / heads


def _overview(networks: Sequence[Mapping[str, Any]]) -> str:
    columns = (
        "network",
        "accuracy",
        "heads",
        "hard",
        "convolutional",
        "untrained",
        "taps: first layer",
        "most",
    )
    rows = []
    for network in networks:
        layers = network["layers"]
        heads = sum(layer["heads"] for layer in layers)
        hard, alone = (
            sum(layer[number] for layer in layers) for number in ("hard", "convolutional")
        )
        untrained = [layer["controls"].get("untrained weights") for layer in layers]
        control = (
            f"{sum(one['hard'] for one in untrained)} hard, {sum(one['convolutional'] for one in untrained)} conv."
            if all(untrained)
            else "–"
        )
        first, most = layers[0], max(layers, key=lambda layer: layer["hard_tap_coverage"])
        accuracy = f"{network['accuracy']:.2%}" if "accuracy" in network else "–"
        taps = [f"{_covered(layer, network)} of {network['taps']}" for layer in (first, most)]
        rows.append(
            (f"`{network['network']}`", accuracy, str(heads), str(hard), str(alone), control, *taps)
        )
    return markdown_table(columns, rows)


def _by_layer(
    networks: Sequence[Mapping[str, Any]], title: str, cells: Callable[[Any, Any], str]
) -> str:
    """Makes a table with a row for each network and a column for each layer."""
    rows = [
        (f"`{network['network']}`", *(cells(layer, network) for layer in network["layers"]))
        for network in networks
    ]
    most = max(len(row) for row in rows)
    heads = (title, *(str(number) for number in range(1, most)))
    return markdown_table(heads, [(*row, *[""] * (most - len(row))) for row in rows])


def _relative_distance(layer: Mapping[str, Any], _network: Mapping[str, Any]) -> str:
    return f"{layer['distance'] / layer['uniform_distance']:.2f}"


def _taps(layer: Mapping[str, Any], network: Mapping[str, Any]) -> str:
    control = layer["controls"].get("untrained weights")
    return f"{_covered(layer, network)}" + (
        "" if control is None else f" ({_covered(control, network)})"
    )


def _covered(numbers: Mapping[str, Any], network: Mapping[str, Any]) -> int:
    return round(numbers["hard_tap_coverage"] * network["taps"])


def _cutmix(networks: Sequence[Mapping[str, Any]]) -> str:
    """Compares runs of one kind and seed, with and without CutMix; "" where no run has a partner."""
    sides: dict[bool, dict[tuple[str, int], Mapping[str, Any]]] = {False: {}, True: {}}
    for network in networks:
        if "cutmix" in network:
            sides[network["cutmix"]][network["kind"], network["seed"]] = network
    both = sorted(sides[False].keys() & sides[True].keys())
    if not both:
        return ""
    gaps, rows, depths = list[float](), list[list[str]](), list[list[list[float]]]()
    for key in both:
        pair = [sides[False][key], sides[True][key]]
        plain, mixed = map(distance, pair)
        gaps.append(mixed - plain)
        accuracies = [f"{network['accuracy']:.2%}" for network in pair]
        distances = [f"{plain:.3f}", f"{mixed:.3f}", f"{mixed - plain:+.3f}"]
        rows.append([f"{key[1]}", *accuracies, *distances])
        depths.append([[layer["distance"] for layer in network["layers"]] for network in pair])
    columns = ["seed", "accuracy without", "with", "distance without", "with", "difference"]
    layers = []
    for number in range(len(depths[0][0])):
        means = [mean(seed[side][number] for seed in depths) for side in (0, 1)]
        layers.append([f"{number + 1}", *(f"{value:.3f}" for value in means)])
    return CUTMIX.format(
        table=markdown_table(columns, rows),
        verdict=verdict(gaps),
        layers=markdown_table(["layer", "without", "with"], layers),
    )


def verdict(gaps: Sequence[float]) -> str:
    """Says how CutMix moves the mean attention distance: the 95 % t interval of the paired differences."""
    if len(gaps) < LEAST_SEEDS:
        return f"{mean(gaps):+.3f} on average (n = {len(gaps)}: too few for an interval)."
    low, high = t_interval(gaps)
    resolved = "The difference is resolved" if low > 0 or high < 0 else "No difference is resolved"
    return f"{resolved}: {mean(gaps):+.3f} on average (n = {len(gaps)}; 95 % t interval {low:+.3f} to {high:+.3f})."


def _network(network: Mapping[str, Any]) -> str:
    columns = ["layer", "grid", "hard", "convolutional", "R², mean", "untrained", "distance"]
    rows = []
    for layer in network["layers"]:
        beside = layer["controls"].get("untrained weights")
        scores = [_number(layer["position_score"])]
        scores.append("–" if beside is None else _number(beside["position_score"]))
        grid = " × ".join(map(str, layer["grid"]))
        counts = [f"{layer['hard']} of {layer['heads']}", f"{layer['convolutional']}"]
        distances = f"{layer['distance']:.2f} of {layer['uniform_distance']:.2f}"
        explained = f"{_number(layer['convolution_score'])} ± {_number(layer['convolution_error'])}"
        rows.append([f"`{layer['name']}`", grid, *counts, *scores, distances, explained])
    name = network["network"]
    command = f": `{network['command']}`" if network.get("command") else ""
    table = markdown_table([*columns, "3-tap convolution: R²"], rows)
    return f"## {name}\n\n`{network['kind']}`{command}.\n\n{table}\n"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
