"""The page and the figure, every number from what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convattn.heads.verdict import CONVOLUTIONAL
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.tables import markdown_table
from evidence.results import BUSY

AIM = 0.1
"""Points of accuracy that heads called convolutions may cost together."""

_PAGE = """\
# Heads that are convolutions, replaced

[`replace_convolutional_heads`](../how-to/replace-heads.md) lets every head whose position score R² is at least a
threshold run as a convolution of its values, without training. What is lost, and what is gained?

{verdict}

![Accuracy lost over the share of heads replaced](head-replacement.png)

{tables}
"Lost" is accuracy before minus accuracy after, in points (a negative number is a gain), with the standard error of the
difference over test images; "changed" the share of predictions that are another class. "At random"
are as many heads, drawn from all of the network and replaced by their own kernels: mean and largest loss
over {controls} draws. Thresholds that add no head are left out. Time is that of one image in a batch of 64.

## How it was measured

    {command}

Heads were measured on {measured} training images, networks on {tests} test images of {data}.
{hardware[processor]}, {hardware[threads]} thread(s), torch {versions[torch]}, timm {versions[timm]}, revision
{revision}. {busy}All numbers are in [head-replacement.json](../../evidence/head_replacement/head-replacement.json).

Not covered: other data, larger networks, training on after replacement.
"""


def page(content: Mapping[str, Any]) -> str:
    """Words the results as Markdown."""
    networks = content["networks"]
    curves = [row for network in networks for row in network["curve"]]
    return _PAGE.format(
        verdict=verdict(networks),
        tables="\n".join(map(_table, networks)),
        controls=max((len(row["controls"]) for row in curves), default=0),
        command=content["command"],
        measured=networks[0]["measured_on"],
        tests=networks[0]["tests"],
        data=content["data"]["name"],
        hardware=content["hardware"],
        versions=content["versions"],
        revision=content["revision"],
        busy=f"{BUSY} " if content["busy"] else "",
    )


def verdict(networks: Sequence[Mapping[str, Any]]) -> str:
    """Says whether the heads called convolutions can be replaced at little cost, and what random ones cost."""
    heads, every = 0, sum(len(network["heads"]) for network in networks)
    names, losses, control = list[str](), list[str](), list[float]()
    for network in networks:
        for row in network["curve"]:
            if row["threshold"] != CONVOLUTIONAL or not row["replaced"]:
                continue
            heads += row["replaced"]
            names.append(f"`{network['network']}`")
            losses.append(f"{lost(network, row):.2f} ± {100 * row['error']:.2f}")
            control += [lost(network, item) for item in row["controls"]]
    if not names:
        scores = [network["largest_score"] or 0 for network in networks]
        return (
            f"No head has R² ≥ {CONVOLUTIONAL:g} (networks: {len(networks)}; largest R²: {max(scores):.2f}).\n"
            "What lower thresholds do is below."
        )
    places = f"in {len(names)} of {len(networks)} networks ({', '.join(names)})"
    words = (
        f"{heads} of {every} heads have R² ≥ {CONVOLUTIONAL:g}, {places}.\n"
        f"Replaced together, those of a network cost {', '.join(losses)} points of accuracy (the aim is at most"
        f" {AIM:g})."
    )
    if control:
        words += f"\nAs many random heads cost {statistics.mean(control):.2f} points on average."
    return words


def lost(network: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Returns the accuracy lost, in points."""
    return 100 * (network["accuracy"] - row["accuracy"])


def _distinct(network: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the rows that add heads, each at the highest threshold that does."""
    rows: list[Mapping[str, Any]] = []
    for row in network["curve"]:
        if row["replaced"] and (not rows or row["replaced"] != rows[-1]["replaced"]):
            rows.append(row)
    return rows


def _table(network: Mapping[str, Any]) -> str:
    head = f"## {network['network']}\n\n{100 * network['accuracy']:.2f} % right, {len(network['heads'])} heads.\n\n"
    rows = [
        (
            f"{row['threshold']:g}",
            f"{row['replaced']}",
            f"{row['layers_without_softmax']} of {network['layers']}",
            _lost(network, row),
            f"{row['changed'] / network['tests']:.2%}",
            _random(network, row["controls"]),
            f"{row['milliseconds_before'] / row['milliseconds_after']:.2f}",
        )
        for row in _distinct(network)
    ]
    if not rows:
        return head + "No threshold is met by any head.\n"
    columns = [
        "R² ≥",
        "heads",
        "layers without softmax",
        "lost",
        "changed",
        "at random: lost",
        "times as fast",
    ]
    return head + markdown_table(columns, rows) + "\n"


def _lost(network: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    return f"{lost(network, row):+.2f} ± {100 * row['error']:.2f}"


def _random(network: Mapping[str, Any], controls: Sequence[Mapping[str, Any]]) -> str:
    losses = [lost(network, item) for item in controls]
    return f"{statistics.mean(losses):+.2f} (at most {max(losses):+.2f})" if losses else "–"


def draw(paths: Sequence[Path], networks: Sequence[Mapping[str, Any]]) -> None:
    """Draws accuracy lost over the share of heads replaced: by threshold, and at random."""
    with figure_files(paths, (6.4, 4.4)) as figure:
        panel = figure.subplots()
        panel.set(xlabel="share of heads replaced", ylabel="accuracy lost (points)")
        panel.axhline(AIM, color="#7F7F7F", linewidth=0.8, linestyle=":")
        for number, network in enumerate(networks):
            colour, rows = COLOURS[number % len(COLOURS)], _distinct(network)
            places, losses, random = [0.0], [0.0], [0.0]
            for row in rows:
                places.append(row["replaced"] / len(network["heads"]))
                losses.append(lost(network, row))
                drawn = [lost(network, item) for item in row["controls"]]
                random += [statistics.mean(drawn)] if drawn else []
            panel.plot(places, losses, color=colour, marker="o", label=network["network"])
            if len(random) == len(places):
                panel.plot(places, random, color=colour, marker="x", linestyle="--")
        panel.plot([], [], color="#000000", marker="x", linestyle="--", label="as many at random")
        panel.legend()
