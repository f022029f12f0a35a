"""What heads do in the place of what they learned."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from convattn import replace_heads
from convattn.heads.head_report import HeadReport

Head = tuple[str, int]
"""Name of a layer, and the number of a head in it."""

OWN, MEAN, ZERO, UNIFORM = "own kernel", "mean map", "zero", "uniform"
ANOTHER, TAP, OTHERS = "another's kernel", "one tap", "other heads"
TURNED = ("turned by 90°", "turned by 180°", "turned by 270°")
REVERSED = "reversed"

_BY = {
    OWN: "kernel",
    OTHERS: "kernel",
    MEAN: "mean_map",
    ZERO: "zero",
    UNIFORM: "uniform",
    TAP: "one_tap",
    TURNED[0]: "turned_270",  # counted against the clock
    TURNED[1]: "turned_180",
    TURNED[2]: "turned_90",
    REVERSED: "reversed",
}
"""What `replace_heads` calls an arm."""


def turns(report: HeadReport) -> tuple[str, ...]:
    """Names the arms in which kernels are turned: a sequence can only be reversed."""
    return TURNED if len(report.layers[0].grid) > 1 else (REVERSED,)


def half_turn(report: HeadReport) -> str:
    """Names the arm in which kernels look the other way."""
    return TURNED[1] if len(report.layers[0].grid) > 1 else REVERSED


def altered(
    network: nn.Module,
    report: HeadReport,
    maps: Mapping[str, Tensor],
    heads: Sequence[Head],
    arm: str,
    draw: int = 0,
    prefix: str = "mean",
) -> nn.Module:
    """Copies a network and puts some of its heads into an arm.

    Args:
        network: The network.
        report: Its heads, with kernels that reach over the whole grid.
        maps: Mean weights by layer.
        heads: The heads.
        arm: What they do.
        draw: Number of the draw.
        prefix: What queries of class tokens do, as in `replace_heads`.
    """
    if arm == OTHERS:
        heads = matched(report, heads, draw)
    names = {name for name, _ in heads}
    part = replace(
        report,
        layers=tuple(layer for layer in report.layers if layer.name in names),
        weights={name: report.weights[name] for name in names},
    )
    if arm == ANOTHER:
        by = permuted(heads, draw)
        made, _ = replace_heads(network, part, by=by, prefix=prefix)
    else:
        made, _ = replace_heads(network, part, heads, _BY[arm], maps=maps, prefix=prefix)
    return made.eval()


def permuted(heads: Sequence[Head], draw: int) -> dict[Head, Head]:
    """Gives each head another one of them, none itself: a permutation by the number of the draw."""
    order = list(range(len(heads)))
    chance = random.Random(draw)
    while any(place == number for place, number in enumerate(order)):
        chance.shuffle(order)
    return {head: heads[other] for head, other in zip(heads, order, strict=True)}


def matched(report: HeadReport, heads: Sequence[Head], draw: int) -> list[Head]:
    """Draws as many other heads of each layer, or all others if there are fewer."""
    chance = random.Random(draw)
    drawn: list[Head] = []
    for layer in report.layers:
        chosen = [head for name, head in heads if name == layer.name]
        others = [head.head for head in layer.heads if head.head not in chosen]
        count = min(len(chosen), len(others))
        drawn += [(layer.name, head) for head in sorted(chance.sample(others, count))]
    return drawn
