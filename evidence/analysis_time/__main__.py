"""What `analyze` costs: a vision transformer measured, against its plain forward pass with explicit attention.

Builds timm's ViT-B/16 with random weights, and takes turns: the network alone on all images, with attention written
out (fused kernels off); `analyze` without controls, and with them. Time is that of the processor, with one
thread, so that other programs disturb little; memory is the peak of the resident memory beyond network and images.
Writes analysis-time.json and the page analysis-time.md:

    python -m evidence.analysis_time
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.measure import extra_memory
from convattn import analyze
from convattn.lab.tables import markdown_table
from evidence.results import environment, new_parser, publish, versions_in_words

NETWORK, SIZE, BATCH = "vit_base_patch16_224", 224, 20
EXPLICIT, ALONE, CONTROLS = "forward, explicit attention", "analyze", "analyze with both controls"

PAGE = """\
# What an analysis costs

How long does [`analyze`](../how-to/analyse.md) take, and how much memory? timm's `{network}` with random weights sees
{images} images of standard normal numbers, {size} × {size}. Processor time of one thread, {rounds};
memory is the largest beyond the network and the images.

{rows}

The first is a forward pass alone, in batches of {batch}; `analyze` runs the network fused, as it is. Controls are
measured on a tenth of the images each, with a copy of the network for the second.

## How it was measured

    {command}

{processor}, 1 thread; {versions}; float32; revision {revision}. All numbers are in
[analysis-time.json](../../evidence/analysis_time/analysis-time.json).

Not covered: {spread}other networks, whose layers
may be larger or smaller beside the rest, several threads, other devices.
"""


def contenders(images: Tensor) -> dict[str, Callable[[], object]]:
    """Returns what is measured, by name."""
    network = timm.create_model(NETWORK).eval()

    def forward() -> None:
        _set_fused(network, False)
        with torch.no_grad():
            for batch in images.split(BATCH):
                network(batch)

    def measure(*controls: str) -> None:
        _set_fused(network, True)
        analyze(network, images, controls=controls, progress=False)

    return {
        EXPLICIT: forward,
        ALONE: measure,
        CONTROLS: lambda: measure("shuffled images", "untrained weights"),
    }


def _set_fused(network: nn.Module, fused: bool) -> None:
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", fused)  # noqa: B010 - timm's plain attribute, which types take for a tensor


def measure_all(images: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Measures every contender in every round, each time in another order."""
    torch.manual_seed(0)
    contenders(torch.randn(3, 3, SIZE, SIZE))[CONTROLS]()  # loads all code
    calls = contenders(torch.randn(images, 3, SIZE, SIZE))
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    memory = dict.fromkeys(names, 0)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.process_time()
            extra = extra_memory(calls[name], torch.device("cpu"))
            seconds[name].append(time.process_time() - began)
            memory[name] = max(memory[name], extra or 0)
            print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
    measured = {}
    for name in names:
        pairs = zip(seconds[name], seconds[EXPLICIT], strict=True)
        ratios = [own / explicit for own, explicit in pairs]
        measured[name] = {"seconds": seconds[name], "bytes": memory[name], "ratios": ratios}
    return measured


def page(record: dict[str, Any]) -> str:
    """Writes the page; every number comes from the record."""
    once = record["rounds"] == 1
    rows = []
    for name, one in record["measured"].items():
        extremes = "" if once else f" ({min(one['ratios']):.2f} to {max(one['ratios']):.2f})"
        ratio = f"{median(one['ratios']):.2f}{extremes}"
        rows.append([name, f"{median(one['seconds']):.1f}", ratio, f"{one['bytes'] / 2**30:.2f}"])
    rounds = f"medians of {record['rounds']} rounds in turns, ratios with extremes"
    return PAGE.format(
        **{name: record[name] for name in ("network", "images", "size", "batch", "command")},
        rounds="measured once" if once else rounds,
        spread="the spread between rounds, " if once else "",
        rows=markdown_table(["", "seconds", "× explicit attention", "GiB"], rows),
        processor=record["hardware"]["processor"],
        versions=versions_in_words(record),
        revision=record["revision"],
    )


def main() -> None:
    """Measures, and writes record and page."""
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        **environment("evidence.analysis_time", "timm"),
        "network": NETWORK,
        "size": SIZE,
        "images": options.images,
        "batch": BATCH,
        "rounds": options.rounds,
        "measured": measure_all(options.images, options.rounds),
    }
    file = Path(__file__).with_name("analysis-time.json")
    publish(file, record, "analysis-time", page(record))


if __name__ == "__main__":
    main()
