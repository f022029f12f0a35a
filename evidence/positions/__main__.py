"""Times layers with relative positions against plain attention of the same sizes, and measures their memory.

Contenders take turns in one process. Plain attention is torch's fused kernel between the same projections, without
positions. Memory is measured in a process for each case. Writes positions.json:

    python -m evidence.positions

Needs timm, and a C++ compiler for FlexAttention.
"""

from itertools import product
from statistics import quantiles
from typing import Any

import torch

from benchmarks.measure import in_a_process_of_its_own, make_call, ratios, time_rounds
from evidence.positions.contenders import HEADS, MEASURED, PLAIN, contenders, memory
from evidence.results import environment, new_parser, publish

SIZES = ((14, 8), (28, 2), (38, 1))
"""Pixels along an axis, and images."""

WIDE = (56, 112)
"""Pixels along an axis where memory is measured, of one image."""


def timed(width: int, threads: int, size: int, batch: int, rounds: int, *, training: bool) -> Any:
    """Times all contenders, and gives the quartiles of their times by that of plain attention of the round."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    x = torch.randn(batch, HEADS * width, size, size)
    calls = {}
    for name, module in contenders(width, size, training=training).items():
        calls[name] = make_call(module.train(training), x, training=training)
    by_round = ratios(time_rounds(calls, rounds=rounds), PLAIN)
    quartiles = {name: quantiles(values, n=4) for name, values in by_round.items()}
    setting = {"width": width, "threads": threads, "size": size, "images": batch}
    return {**setting, "training": training, "ratios": quartiles}


def main() -> None:
    """Times and measures every case, and writes the record."""
    options = new_parser(__doc__, "--rounds", "--busy").parse_args()
    rows = []
    cases = product((32, 64), (1, 2), SIZES, (False, True))
    for width, threads, (size, batch), training in cases:
        rows.append(timed(width, threads, size, batch, options.rounds, training=training))
    taken = {}
    for name in MEASURED:
        taken[name] = [in_a_process_of_its_own(memory, name, size) for size in WIDE]
    content = {
        **environment(__file__, "timm"),
        "rounds": options.rounds,
        "busy": options.busy,
        "rows": rows,
        "memory": {"sizes": WIDE, "bytes": taken},
    }
    publish(__file__, content)


if __name__ == "__main__":
    main()
