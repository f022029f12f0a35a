"""What a network keeps when heads are replaced, in the order of their position score, and by what."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from convattn import random_heads, replace_heads
from convattn.heads.head_report import HeadReport
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.tables import markdown_table

SEEDS = (0, 1, 2)
"""Seeds of the random heads."""

REPLACEMENTS = {"convolution": "kernel", "one tap": "one_tap", "mean map": "mean_map"}
"""What replaces the heads of highest score, by the name of the kind."""


def by_score(report: HeadReport) -> list[tuple[str, int]]:
    """Lists the heads, those with the highest position score first."""
    scored = []
    for layer in report.layers:
        scored += [(head.position_score.value, layer.name, head.head) for head in layer.heads]
    return [(layer, head) for _, layer, head in sorted(scored, reverse=True)]


def curve(
    network: nn.Module,
    report: HeadReport,
    maps: Mapping[str, Tensor],
    effect: Callable[[nn.Module], Mapping[str, float]],
    counts: Sequence[int],
    seeds: Sequence[int] = SEEDS,
) -> list[dict[str, Any]]:
    """Replaces more and more heads, and measures what is left.

    Args:
        network: The network.
        report: Its heads, with kernels that reach over the whole grid.
        maps: What `mean_maps` returns.
        effect: Measures a network.
        counts: How many heads to replace.
        seeds: Seeds of the random heads.

    Returns:
        A row for each count and each kind: "convolution", "one tap", "mean map", and "random" as convolutions.
    """
    order = by_score(report)
    rows: list[dict[str, Any]] = []
    for count in counts:
        heads = order[:count]
        drawn = {f"random {seed}": random_heads(report, count, seed=seed) for seed in seeds}
        if count == len(order):
            drawn = {}
        replacements = {kind: (heads, by) for kind, by in REPLACEMENTS.items()}
        replacements |= {name: (random, "kernel") for name, random in drawn.items()}
        for kind, (named, by) in replacements.items():
            made, _ = replace_heads(network, report, named, by, maps=maps)
            rows.append({"replaced": count, "kind": kind, **effect(made)})
            print(rows[-1], flush=True)
    return rows


def cosine(
    one: Float[Tensor, "images *tokens width"], other: Float[Tensor, "images *tokens width"]
) -> dict[str, float]:
    """Compares features: the mean cosine, and its standard error over images."""
    alike = nn.functional.cosine_similarity(one, other, dim=-1)
    return over_images(alike.flatten(1).mean(1) if alike.ndim > 1 else alike)


def over_images(values: Float[Tensor, " images"]) -> dict[str, float]:
    """Returns the mean of values, and its standard error."""
    return {"mean": values.mean().item(), "error": values.std().item() / len(values) ** 0.5}


_STYLES = {"convolution": "o-", "one tap": "s--", "mean map": "^:", "random": "x-."}


def draw_curve(path: Path, rows: Sequence[Mapping[str, Any]], numbers: Mapping[str, str]) -> None:
    """Draws what is kept over the heads replaced; `numbers` are a panel each, with its title."""
    with figure_files([path], (4.6 * len(numbers), 3.4)) as figure:
        panels = figure.subplots(1, len(numbers), squeeze=False)[0]
        for panel, (number, title) in zip(panels, numbers.items(), strict=True):
            for colour, (kind, style) in zip(COLOURS, _STYLES.items(), strict=False):
                counts, values = _curve_of(rows, kind, number)
                panel.plot(counts, values, style, color=colour, label=kind, markersize=4)
            panel.set(xlabel="heads replaced", title=title, xscale="log")
            panel.set_xticks(sorted({row["replaced"] for row in rows}))
            panel.xaxis.set_major_formatter("{x:g}")
            panel.minorticks_off()
        panels[0].legend(fontsize=8)


def _curve_of(
    rows: Sequence[Mapping[str, Any]], kind: str, number: str
) -> tuple[list[int], list[float]]:
    """Returns counts and values of one kind; of random heads the mean of the draws."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"].startswith(kind):
            value = row[number]
            value = value["mean"] if isinstance(value, dict) else value
            values.setdefault(row["replaced"], []).append(value)
    return list(values), [sum(some) / len(some) for some in values.values()]


def draws(rows: Sequence[Mapping[str, Any]]) -> int:
    """Counts the draws of random heads."""
    return len({row["kind"] for row in rows if row["kind"].startswith("random")})


def curve_table(rows: Sequence[Mapping[str, Any]], numbers: Mapping[str, str]) -> str:
    """Lists each count with every kind; random heads from the least to the most of their draws."""
    lines = []
    for count in sorted({row["replaced"] for row in rows}):
        here = [row for row in rows if row["replaced"] == count]
        for kind in _STYLES:
            some = [row for row in here if row["kind"].startswith(kind)]
            if some:
                cells = [_cell([row[number] for row in some]) for number in numbers]
                lines.append([str(count), kind, *cells])
    return markdown_table(["heads", "in their place", *numbers.values()], lines)


def _cell(values: Sequence[Any]) -> str:
    """Writes a number with its error, or the range of several draws."""
    if isinstance(values[0], dict):
        means = [value["mean"] for value in values]
        if len(means) == 1:
            return f"{means[0]:.3f} ± {values[0]['error']:.3f}"
        return f"{min(means):.3f} to {max(means):.3f}"
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{min(values):.3g} to {max(values):.3g}"
