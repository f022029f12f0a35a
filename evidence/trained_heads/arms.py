"""What heads do in the place of what they learned."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from convattn import replace_convolutional_heads
from convattn.heads.head_report import HeadReport, HeadStatistics, LayerReport
from evidence.replacing import one_tap, with_means

Head = tuple[str, int]
"""Name of a layer, and the number of a head in it."""

OWN, MEAN, ZERO, UNIFORM = "own kernel", "mean map", "zero", "uniform"
ANOTHER, TAP, OTHERS = "another's kernel", "one tap", "other heads"
TURNED = ("turned by 90°", "turned by 180°", "turned by 270°")
REVERSED = "reversed"

Shift = tuple[float, ...]
"""A displacement."""


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
) -> nn.Module:
    """Copies a network and puts some of its heads into an arm.

    Args:
        network: The network.
        report: Its heads, with kernels that reach over the whole grid.
        maps: Mean weights by layer, (heads, queries, keys).
        heads: The heads.
        arm: What they do.
        draw: Number of the draw.
    """
    if arm in (MEAN, ZERO, UNIFORM):
        return with_means(network, heads, {name: _MAPS[arm](maps[name]) for name, _ in heads})
    if arm == OTHERS:
        heads = matched(report, heads, draw)
    names = {name for name, _ in heads}
    part = replace(
        report,
        layers=tuple(layer for layer in report.layers if layer.name in names),
        weights={name: report.weights[name] for name in names},
    )
    if arm == TAP:
        part = one_tap(part)
    elif arm == ANOTHER:
        part = _with_kernels(part, permuted(report, heads, draw))
    elif arm in _STEPS:
        part = _turned(part, _STEPS[arm])
    return replace_convolutional_heads(network, part, heads=heads)[0].eval()


_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    MEAN: lambda maps: maps,
    ZERO: torch.zeros_like,
    UNIFORM: lambda maps: torch.full_like(maps, 1 / maps.shape[-1]),
}

_STEPS: dict[str, Callable[[Shift], Shift]] = {
    TURNED[0]: lambda shift: (-shift[1], shift[0]),
    TURNED[1]: lambda shift: (-shift[0], -shift[1]),
    TURNED[2]: lambda shift: (shift[1], -shift[0]),
    REVERSED: lambda shift: (-shift[0],),
}
"""Where a weight at a displacement goes."""


def _turned(report: HeadReport, step: Callable[[Shift], Shift]) -> HeadReport:
    """Moves every weight of every kernel to where `step` says."""
    kernels: dict[Head, tuple[float, ...]] = {}
    for layer in report.layers:
        places = {shift: number for number, shift in enumerate(layer.displacements)}
        for head in layer.heads:
            kernel = [0.0] * len(places)
            for shift, weight in zip(layer.displacements, head.position_kernel, strict=True):
                kernel[places[step(shift)]] = weight
            kernels[layer.name, head.head] = tuple(kernel)
    return _with_kernels(report, kernels)


def _with_kernels(report: HeadReport, kernels: Mapping[Head, tuple[float, ...]]) -> HeadReport:
    """Gives some heads other kernels; their shares for class tokens stay."""

    def head_of(layer: LayerReport, head: HeadStatistics) -> HeadStatistics:
        kernel = kernels.get((layer.name, head.head), head.position_kernel)
        return replace(head, position_kernel=kernel)

    layers = []
    for layer in report.layers:
        heads = tuple(head_of(layer, head) for head in layer.heads)
        layers.append(replace(layer, measured=replace(layer.measured, heads=heads)))
    return replace(report, layers=tuple(layers))


def permuted(report: HeadReport, heads: Sequence[Head], draw: int) -> dict[Head, tuple[float, ...]]:
    """Gives each head the kernel of another one of them, none its own: a permutation by the number of the draw."""
    order = list(range(len(heads)))
    chance = random.Random(draw)
    while any(place == number for place, number in enumerate(order)):
        chance.shuffle(order)
    kernels = {}
    for head, other in zip(heads, order, strict=True):
        name, number = heads[other]
        kernels[head] = report.layer(name).heads[number].position_kernel
    return kernels


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
