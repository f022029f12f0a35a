"""The page of head reports, every number from the reports."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from convattn.heads.head_report import HeadReport, LayerStatistics
from convattn.heads.verdict import CONVOLUTIONAL
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

Not covered: other data. One run of each network is shown, of the small transformers one run per seed.
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
    for layer in report.layers:
        controls = {control.name: _numbers(control.measured) for control in layer.controls}
        told = {"name": layer.name, "grid": list(layer.grid), "heads": len(layer.heads)}
        told |= {
            "uniform_distance": layer.uniform_distance,
            **_numbers(layer.measured),
            "controls": controls,
        }
        layers.append({**told, "sentence": layer.sentence})
    size = report.kernel_size ** len(report.layers[0].grid)
    return {
        "images": report.images,
        "control_images": report.control_images,
        "taps": size,
        "layers": layers,
    }


def _numbers(measured: LayerStatistics) -> dict[str, Any]:
    explained = measured.convolution_score
    return {
        "hard": sum(head.hard for head in measured.heads),
        "convolutional": sum(head.convolutional for head in measured.heads),
        "hard_tap_coverage": measured.hard_tap_coverage.value,
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
    runs = [network for network in networks if "cutmix" in network]
    plain, mixed = (
        {(run["kind"], run["seed"]): run for run in runs if run["cutmix"] is value}
        for value in (False, True)
    )
    both = sorted(plain.keys() & mixed.keys())
    if not both:
        return ""
    seeds, pairs = [seed for _, seed in both], [(plain[key], mixed[key]) for key in both]
    gaps = [distance(mixed) - distance(plain) for plain, mixed in pairs]
    rows = [
        (
            str(seed),
            f"{plain['accuracy']:.2%}",
            f"{mixed['accuracy']:.2%}",
            f"{distance(plain):.3f}",
            f"{distance(mixed):.3f}",
            f"{gap:+.3f}",
        )
        for seed, (plain, mixed), gap in zip(seeds, pairs, gaps, strict=True)
    ]
    columns = ("seed", "accuracy without", "with", "distance without", "with", "difference")
    layers = [
        (
            str(number + 1),
            f"{mean(plain['layers'][number]['distance'] for plain, _ in pairs):.3f}",
            f"{mean(mixed['layers'][number]['distance'] for _, mixed in pairs):.3f}",
        )
        for number in range(len(pairs[0][0]["layers"]))
    ]
    return CUTMIX.format(
        table=markdown_table(columns, rows),
        verdict=verdict(gaps),
        layers=markdown_table(("layer", "without", "with"), layers),
    )


def verdict(gaps: Sequence[float]) -> str:
    """Says how CutMix moves the mean attention distance: the 95 % t interval of the paired differences."""
    if len(gaps) < LEAST_SEEDS:
        return f"{mean(gaps):+.3f} on average (n = {len(gaps)}: too few for an interval)."
    low, high = t_interval(gaps)
    resolved = "The difference is resolved" if low > 0 or high < 0 else "No difference is resolved"
    return f"{resolved}: {mean(gaps):+.3f} on average (n = {len(gaps)}; 95 % t interval {low:+.3f} to {high:+.3f})."


def _network(network: Mapping[str, Any]) -> str:
    control = "untrained weights"
    columns = (
        "layer",
        "grid",
        "hard",
        "convolutional",
        "R², mean",
        "untrained",
        "distance",
        "3-tap convolution: R²",
    )
    rows = []
    for layer in network["layers"]:
        beside = layer["controls"].get(control)
        rows.append(
            (
                f"`{layer['name']}`",
                " × ".join(map(str, layer["grid"])),
                f"{layer['hard']} of {layer['heads']}",
                str(layer["convolutional"]),
                _number(layer["position_score"]),
                "–" if beside is None else _number(beside["position_score"]),
                f"{layer['distance']:.2f} of {layer['uniform_distance']:.2f}",
                f"{_number(layer['convolution_score'])} ± {_number(layer['convolution_error'])}",
            )
        )
    name = network["network"]
    command = f": `{network['command']}`" if network.get("command") else ""
    return f"""\
## {name}

`{network["kind"]}`{command}.

{markdown_table(columns, rows)}
{_figures(name) if network["shown"] else ""}"""


def _figures(name: str) -> str:
    return f"""
![What a convolution explains of `{name}`, by depth]({NAME}/{name}-by-depth.png)

![Mean weight of the heads of `{name}` at each displacement]({NAME}/{name}-kernels.png)
"""


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
