"""What a network keeps when heads are replaced, in the order of their position score, and by what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from convattn import random_heads, replace_heads
from convattn.convert.network_runs import copy_network
from convattn.convert.surgery import graft
from convattn.heads.catalogue import read_matrices
from convattn.heads.families.attention_class import TokenAttention
from convattn.heads.head_report import HeadReport, HeadStatistics, LayerReport
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.lab.figures import COLOURS, figure_files
from convattn.lab.tables import markdown_table

SEEDS = (0, 1, 2)
"""Seeds of the random heads."""

Heads = Sequence[tuple[str, int]]


def by_score(report: HeadReport) -> list[tuple[str, int]]:
    """Lists the heads, those with the highest position score first."""
    scored = []
    for layer in report.layers:
        scored += [(head.position_score.value, layer.name, head.head) for head in layer.heads]
    return [(layer, head) for _, layer, head in sorted(scored, reverse=True)]


def one_tap(report: HeadReport) -> HeadReport:
    """Returns the report of heads that look at the displacement alone that gets most of their attention."""

    def head_of(layer: LayerReport, head: HeadStatistics) -> HeadStatistics:
        kernel = [0.0] * len(layer.displacements)
        kernel[layer.displacements.index(head.hard_shift)] = 1.0
        return replace(head, position_kernel=tuple(kernel))

    layers = []
    for layer in report.layers:
        heads = tuple(head_of(layer, head) for head in layer.heads)
        layers.append(replace(layer, measured=replace(layer.measured, heads=heads)))
    return replace(report, layers=tuple(layers))


class MeanHeads(nn.Module):
    """Attention in which some heads have the same weights for every image."""

    def __init__(
        self,
        layer: TokenAttention,
        heads: Sequence[int],
        maps: Float[Tensor, "all_heads queries keys"],
    ) -> None:
        """Takes a layer, which of its heads are to be replaced, and the weights of all."""
        super().__init__()
        self.layer = layer
        self.heads = list(heads)
        self.register_buffer("maps", maps[self.heads])

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch tokens outputs"]:
        """Attends to every token."""
        layer = self.layer
        query, key, value = (
            part(tokens).unflatten(-1, (layer.heads, -1)).movedim(-2, 1)
            for part in (layer.query, layer.key, layer.value)
        )
        scale = layer.head_width**-0.5 if layer.scale is None else layer.scale
        weights = (scale * query @ key.mT).softmax(-1)
        weights[:, self.heads] = self.maps
        y = (weights @ value).movedim(1, -2).flatten(-2)
        return y if layer.output is None else layer.output(y)


def mean_maps(network: nn.Module, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """Averages the weights of every layer over images."""
    sums: dict[str, Tensor] = {}
    count = 0

    def add(call: AttentionCall) -> None:
        total = call.weights[:, 0].double().sum(0)
        sums[call.name] = sums.get(call.name, 0) + total

    for batch in batches:
        watch(network, batch, add)
        count += len(batch)
    return {name: (total / count).float() for name, total in sums.items()}


def with_means(network: nn.Module, heads: Heads, maps: Mapping[str, Tensor]) -> nn.Module:
    """Copies a network and gives some heads their mean weights."""
    copied = copy_network(network)
    changed: dict[nn.Module, nn.Module] = {}
    for name in {layer for layer, _ in heads}:
        old = copied.get_submodule(name)
        matrices = read_matrices(old)
        own = [head for layer, head in heads if layer == name]
        changed[old] = matrices.wrap(MeanHeads(matrices, own, maps[name]))
    return graft(copied, changed).eval()


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
        maps: Mean weights by layer.
        effect: Measures a network.
        counts: How many heads to replace.
        seeds: Seeds of the random heads.

    Returns:
        A row for each count and each kind: "convolution", "one tap", "mean map", and "random" as convolutions.
    """
    order = by_score(report)
    taps = one_tap(report)
    rows: list[dict[str, Any]] = []
    for count in counts:
        heads = order[:count]
        drawn = {f"random {seed}": random_heads(report, count, seed=seed) for seed in seeds}
        if count == len(order):
            drawn = {}
        made: dict[str, Callable[[], nn.Module]] = {
            "convolution": lambda heads=heads: _replaced(network, report, heads),
            "one tap": lambda heads=heads: _replaced(network, taps, heads),
            "mean map": lambda heads=heads: with_means(network, heads, maps),
        }
        for name, random in drawn.items():
            made[name] = lambda random=random: _replaced(network, report, random)
        for kind, make in made.items():
            rows.append({"replaced": count, "kind": kind, **effect(make())})
            print(rows[-1], flush=True)
    return rows


def _replaced(network: nn.Module, report: HeadReport, heads: Heads) -> nn.Module:
    return replace_heads(network, report, heads=heads)[0]


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
