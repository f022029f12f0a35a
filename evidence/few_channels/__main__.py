"""Times quadratic heads at their start against `nn.Conv2d` by channels and size: python -m evidence.few_channels.

Nine heads, one image, one thread; the convolution is 3 × 3 between the same channels. Both take turns in one process,
and what is timed is the processor's time, so that other programs disturb less. The rate of one large product of
matrices tells how long the operations would take at least. Writes few-channels.json.
"""

import time
from itertools import product
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from benchmarks.measure import make_call, ratios, time_rounds
from convattn import RelativeAttention2d
from evidence.results import environment, new_parser, publish

CHANNELS = ((16, 16), (64, 64), (3, 64))
"""Input and output channels; the last are those of a stem."""

SIZES = (64, 224)
"""Pixels along an axis."""


def compare(
    channels: int, outputs: int, size: int, rounds: int, *, training: bool
) -> dict[str, Any]:
    """Times both, and gives the quartiles of the ratios of one round."""
    torch.manual_seed(0)
    x = torch.randn(1, channels, size, size)
    upstream = torch.randn(1, outputs, size, size)
    layer = RelativeAttention2d(channels, outputs, num_heads=9, encoding="quadratic")
    modules = {"layer": layer, "conv": nn.Conv2d(channels, outputs, 3, padding=1)}
    calls = {}
    for name, module in modules.items():
        calls[name] = make_call(module, x, training=training, upstream=upstream)
    taken = time_rounds(calls, rounds=rounds, clock=time.process_time)
    operations = layer.plan(x.shape).flops
    convolution = 18 * channels * outputs * size**2
    if training:  # means again, and their two gradients; two gradients of the heads' matrices
        operations = 4 * operations - convolution
        convolution *= 3
    return {
        "channels": channels,
        "outputs": outputs,
        "size": size,
        "training": training,
        "milliseconds": {name: 1000 * median(times) for name, times in taken.items()},
        "ratio": quantiles(ratios(taken, "conv")["layer"], n=4),
        "operations": operations,
        "operations_of_conv": convolution,
    }


def main() -> None:
    """Times every case, and writes the record."""
    options = new_parser(__doc__, "--rounds", "--busy").parse_args()
    torch.set_num_threads(1)
    rows = []
    for (channels, outputs), size, training in product(CHANNELS, SIZES, (False, True)):
        rows.append(compare(channels, outputs, size, options.rounds, training=training))
    left = torch.randn(20, 2048, 2048)
    began = time.process_time()
    torch.bmm(left, left)
    seconds = time.process_time() - began
    content = {
        **environment(__file__),
        "rounds": options.rounds,
        "busy": options.busy,
        "product_rate": 2 * 2048 * left.numel() / seconds,
        "rows": rows,
    }
    publish(__file__, content)


if __name__ == "__main__":
    main()
