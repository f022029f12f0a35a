"""What the layers of a network cost on some images: time and operations."""

import statistics
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from convattn.layers import RelativeAttention

_RUNS = 3
"""Timed runs, after one that is not; the median counts."""


class LayerCost(NamedTuple):
    """Cost of all calls of a layer in one run of its network."""

    seconds: float  # Median over a few runs, of forward
    # Two per multiplication and addition; 0 for what is no convolution and no attention
    flops: int


def layer_costs(network: nn.Module, x: Tensor, names: Iterable[str]) -> dict[str, LayerCost]:
    """Measures layers, and the network as a whole by the name "", while it runs on images.

    Args:
        network: The network; it runs without gradients, as it is.
        x: Images, (images, channels, *sizes).
        names: Dotted names of layers.

    Returns:
        The cost of each.
    """
    layers = {name: network.get_submodule(name) for name in ("", *names)}
    flops = dict.fromkeys(layers, 0)
    seconds = {name: [0.0] * (1 + _RUNS) for name in layers}
    started: dict[str, float] = {}

    def now() -> float:
        if x.is_cuda:
            torch.cuda.synchronize(x.device)  # it computes on while Python goes on
        return time.perf_counter()

    def begin(name: str, *_: Any) -> None:
        started[name] = now()

    def end(name: str, layer: nn.Module, arguments: Any, y: Any) -> None:
        seconds[name][run] += now() - started[name]
        if run == 0:
            flops[name] += _flops(layer, arguments, y)

    with ExitStack() as hooks, torch.no_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(begin, name)))
            hooks.enter_context(layer.register_forward_hook(partial(end, name)))
        for run in range(1 + _RUNS):  # noqa: B007 - read by the hooks
            network(x)
    costs = {}
    for name, times in seconds.items():
        costs[name] = LayerCost(statistics.median(times[1:]), flops[name])
    return costs


def _flops(layer: nn.Module, arguments: Any, y: Any) -> int:
    """Counts the operations of one call."""
    if isinstance(layer, RelativeAttention):
        x = arguments[0]
        return layer.plan(tuple(x.shape), x.dtype).flops
    if isinstance(layer, _ConvNd):
        pixels = arguments[0] if layer.transposed else y
        return 2 * pixels.numel() * layer.weight[0].numel()
    return 0
