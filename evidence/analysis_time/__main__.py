"""What `analyze` costs: a vision transformer measured, against its plain forward pass with explicit attention.

Builds timm's ViT-B/16 with random weights, and takes turns: the network alone on all images, with attention written
out (fused kernels off); `analyze` without controls, and with them. Time is that of the processor, with one
thread, so that other programs disturb little; memory is the peak of the resident memory beyond network and images.
Writes analysis-time.json:

    python -m evidence.analysis_time
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.measure import extra_memory
from convattn import analyze
from evidence.results import environment, new_parser, publish

NETWORK, SIZE, BATCH = "vit_base_patch16_224", 224, 20
EXPLICIT, ALONE, CONTROLS = "forward, explicit attention", "analyze", "analyze with both controls"


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


def main() -> None:
    """Measures, and writes the record."""
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
    publish(file, record)


if __name__ == "__main__":
    main()
