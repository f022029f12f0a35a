"""What `analyze` costs: a vision transformer measured, against its plain forward pass with explicit attention.

Builds timm's ViT-B/16 with random weights, and takes turns: the network alone on all images, with attention written
out (fused kernels off); `analyze` without controls, and with them. Time is that of the processor, with one
thread, so that other programs disturb little; memory is the peak of the resident memory beyond network and images.
Writes analysis-time.json:

    python -m evidence.analysis_time
"""

import time
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.measure import extra_memory, in_a_process_of_its_own, ratios, time_rounds
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


def memory(name: str, images: int) -> int | None:
    """Measures the memory of a contender, in a process that has loaded all code."""
    torch.set_num_threads(1)
    contenders(torch.randn(3, 3, SIZE, SIZE))[name]()
    call = contenders(torch.randn(images, 3, SIZE, SIZE))[name]
    return extra_memory(call, torch.device("cpu"))


def measure_all(images: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Measures every contender in every round, each time in another order."""
    torch.manual_seed(0)
    calls = contenders(torch.randn(images, 3, SIZE, SIZE))
    seconds = time_rounds(calls, rounds=rounds, clock=time.process_time)
    by_round = ratios(seconds, EXPLICIT)
    measured = {}
    for name, times in seconds.items():
        held = in_a_process_of_its_own(memory, name, images)
        measured[name] = {"seconds": times, "bytes": held, "ratios": by_round[name]}
    return measured


def main() -> None:
    """Measures, and writes the record."""
    parser = new_parser(__doc__, "--rounds")
    parser.add_argument("--images", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        **environment(__file__, "timm"),
        "network": NETWORK,
        "size": SIZE,
        "images": options.images,
        "batch": BATCH,
        "rounds": options.rounds,
        "measured": measure_all(options.images, options.rounds),
    }
    publish(__file__, record)


if __name__ == "__main__":
    main()
