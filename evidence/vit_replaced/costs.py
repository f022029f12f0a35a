"""Time and memory of a trained vision transformer with more and more heads replaced."""

from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import extra_memory, in_a_process_of_its_own, ratios, time_rounds
from convattn import replace_heads
from convattn.heads.head_report import HeadReport
from evidence.replacing import by_score, one_tap

COUNTS = (0, 8, 18, 36, 72)
KINDS = ("convolution", "one tap")
BATCH, ROUNDS = 8, 15


def replaced(network: nn.Module, report: HeadReport, count: int, kind: str) -> nn.Module:
    """Returns a network with the heads of the highest score replaced; the network itself if `count` is 0."""
    if count == 0:
        return network
    heads = by_score(report)[:count]
    kernels = one_tap(report) if kind == "one tap" else report
    return replace_heads(network, kernels, heads=heads)[0]


@torch.inference_mode()
def memory(
    network: nn.Module, report: HeadReport, images: Tensor, count: int, kind: str
) -> int | None:
    """Returns the largest memory of a call beyond what the network holds, in bytes; for a process of its own."""
    changed = replaced(network, report, count, kind)
    changed(images[:1])
    return extra_memory(partial(changed, images), torch.device("cpu"))


@torch.inference_mode()
def costs(network: nn.Module, report: HeadReport, images: Tensor) -> list[dict[str, Any]]:
    """Times networks by turns, and measures the memory of each in its own process."""
    cases = [(0, KINDS[0])]
    for count in COUNTS[1:]:
        cases += [(count, kind) for kind in KINDS]
    networks = {case: replaced(network, report, *case) for case in cases}
    calls = {str(case): partial(changed, images) for case, changed in networks.items()}
    seconds = time_rounds(calls, rounds=ROUNDS)
    by_round = ratios(seconds, str(cases[0]))
    rows = []
    for case, changed in networks.items():
        own = seconds[str(case)]
        faster = [1 / ratio for ratio in by_round[str(case)]]
        rows.append(
            {
                "replaced": case[0],
                "kind": case[1],
                "seconds": median(own),
                "times_as_fast": [min(faster), median(faster), max(faster)],
                "memory": in_a_process_of_its_own(memory, network, report, images, *case),
                "parameters": sum(weight.numel() for weight in changed.parameters()),
            }
        )
        print(rows[-1], flush=True)
    return rows
