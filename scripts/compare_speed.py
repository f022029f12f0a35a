"""Times layers and networks of two checkouts in turn, and prints how much longer the second takes.

Use: python scripts/compare_speed.py BEFORE AFTER [--rounds 15] [--only TEXT …]. Each checkout has a process of its own,
with one thread. In each round both run the same case once, and who is first alternates. A row gives the medians, and
the median of the rounds' ratios with their quartiles.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    f"{name}, {'training' if training else 'forward'}": {**case, "training": training}
    for training in (False, True)
    for name, case in {
        **{
            f"8 x 8, 16 channels, {encoding}": {
                "encoding": encoding,
                "channels": 16,
                "shape": (1, 8),
                "calls": 40,
            }
            for encoding in ("quadratic", "generalized_quadratic", "learned_axial", "distance")
        },
        **{
            f"{size} x {size}, 128 channels, {encoding}": {
                "encoding": encoding,
                "channels": 128,
                "shape": (batch, size),
            }
            for encoding in ("quadratic", "learned_axial")
            for batch, size in ((16, 16), (4, 32))
        },
        "64 x 64, 128 channels, quadratic": {
            "encoding": "quadratic",
            "channels": 128,
            "shape": (1, 64),
        },
        "16 x 16, 128 channels, generalized_quadratic": {
            "encoding": "generalized_quadratic",
            "channels": 128,
            "shape": (8, 16),
        },
        "32 x 32, 128 channels, distance": {
            "encoding": "distance",
            "channels": 128,
            "shape": (2, 32),
        },
        "16 x 16, 64 channels, content": {
            "encoding": "quadratic",
            "channels": 64,
            "shape": (4, 16),
            "content": True,
        },
        "the paper's network, quadratic": {"network": "paper", "shape": (2, 32)},
        "ResNet-18, converted": {"network": "resnet18", "shape": (4, 32)},
        "ResNet-18, converted, separable": {
            "network": "resnet18",
            "shape": (1, 32),
            "options": {"impl": "separable"},
        },
        "ResNet-18, converted, sharpness 5": {
            "network": "resnet18",
            "shape": (1, 32),
            "options": {"sharpness": 5.0},
        },
    }.items()
}


def prepare(case: dict[str, Any]) -> Callable[[], None]:
    """Builds what a case times: some calls of a layer or a network, with a backward pass in training."""
    import torch

    import convattn

    torch.manual_seed(0)
    batch, size = case["shape"]
    if case.get("network") == "paper":
        module = convattn.AttentionNet("quadratic")
    elif case.get("network") == "resnet18":
        module, _ = convattn.network_to_attention(
            convattn.resnet18().eval(), **case.get("options", {})
        )
    else:
        channels, content = case["channels"], case.get("content", False)
        module = convattn.RelativeAttention2d(
            channels, channels, 9, encoding=case["encoding"], content=content
        )
    module.train(case["training"])
    x = torch.randn(batch, case.get("channels", 3), size, size)

    def call() -> None:
        for _ in range(case.get("calls", 1)):
            with torch.set_grad_enabled(case["training"]):
                y = module(x)
            if case["training"]:
                y.square().mean().backward()
                module.zero_grad()

    return call


def serve() -> None:
    """Answers a line of standard input, the name of a case, with the seconds that one round of it takes."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    name, call = "", None
    for line in sys.stdin:
        if call is None or line.strip() != name:
            name = line.strip()
            call = prepare(CASES[name])
            call()
        start = time.perf_counter()
        call()
        sys.stdout.write(f"{time.perf_counter() - start}\n")
        sys.stdout.flush()


def start(checkout: Path) -> subprocess.Popen[str]:
    """Starts the process of a checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout.resolve() / "src"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(process: subprocess.Popen[str], name: str) -> float:
    """Returns the seconds that one round of a case takes in a process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"{name}: the process ended")
    return float(answer)


def main() -> None:
    """Times all cases and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--only", nargs="*", default=[""], help="cases whose name contains one of these"
    )
    arguments = parser.parse_args()
    before, after = start(arguments.before), start(arguments.after)
    print("| case | before, ms | after, ms | after / before | quartiles |\n|---|---|---|---|---|")  # noqa: T201
    for name, case in CASES.items():
        if not any(text in name for text in arguments.only):
            continue
        for process in (before, after):
            ask(process, name)
        rounds = []
        for turn in range(arguments.rounds):
            order = (before, after) if turn % 2 == 0 else (after, before)
            seconds = {process: ask(process, name) for process in order}
            rounds.append((seconds[before], seconds[after]))
        calls = case.get("calls", 1)
        old, new = (
            1000 / calls * statistics.median(column) for column in zip(*rounds, strict=True)
        )
        low, middle, high = statistics.quantiles([new / old for old, new in rounds], n=4)
        row = f"| {name} | {old:.2f} | {new:.2f} | {middle:.2f} | {low:.2f}, {high:.2f} |"
        print(row, flush=True)  # noqa: T201


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
