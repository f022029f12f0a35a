"""Times layers and networks of two checkouts in turn, and prints how much longer the second takes.

Use: python scripts/compare_speed.py BEFORE AFTER [--processes 5] [--rounds 5] [--only TEXT …]. Each checkout has some
processes of its own, with one thread, because two processes of one checkout may differ by a tenth. In each round of a
pair of processes both run the same case once, and who is first alternates. A row gives the medians over the pairs of
their medians, of their ratios, and the lowest and highest ratio.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """What is timed: some calls of a module, built by the checkout that is imported."""

    name: str
    build: Callable[[], Any]
    channels: int
    batch: int
    size: int
    calls: int = 1
    training: bool = False


def layer(encoding: str, channels: int, batch: int, size: int, **options: Any) -> Case:
    """Describes a layer of nine heads, 40 calls of it where it is tiny; options are those of the layer."""

    def build() -> Any:
        import convattn

        settings = {"encoding": encoding, **options}
        if "gate" in options:
            settings["content"] = convattn.Content(position=False, content_bias=False)
        return convattn.RelativeAttention2d(channels, channels, num_heads=9, **settings)

    words = [f"{size} x {size}", f"{channels} channels", encoding, *options]
    return Case(", ".join(words), build, channels, batch, size, calls=40 if size == 8 else 1)


def converted(name: str, batch: int, **options: Any) -> Case:
    """Describes a ResNet-18 as attention; options are those of the conversion."""

    def build() -> Any:
        import convattn

        return convattn.network_to_attention(convattn.resnet18().eval(), **options)[0]

    return Case(f"ResNet-18, converted{name}", build, 3, batch, 32)


def paper() -> Any:
    """Builds the paper's network."""
    import convattn

    return convattn.AttentionNet("quadratic")


FORWARD = (
    layer("quadratic", 16, 1, 8),
    layer("quadratic", 128, 16, 16),
    layer("quadratic", 16, 1, 64),
    layer("quadratic", 16, 1, 224),
    layer("quadratic", 64, 1, 64),
    layer("quadratic", 128, 1, 64),
    layer("learned_axial", 128, 16, 16),
    layer("generalized_quadratic", 128, 8, 16),
    layer("distance", 128, 2, 32),
    layer("quadratic", 64, 4, 16, content=True),
    layer("quadratic", 64, 4, 16, gate="sigmoid"),
    Case("the paper's network, quadratic", paper, 3, 2, 32),
    converted("", 4),
    converted(", separable", 1, impl="separable"),
    converted(", sharpness 5", 1, sharpness=5.0),
)


def cases() -> Iterator[Case]:
    """Yields every case at inference, then in training."""
    for training in (False, True):
        for case in FORWARD:
            name = f"{case.name}, {'training' if training else 'forward'}"
            shape = (case.channels, case.batch, case.size, case.calls)
            yield Case(name, case.build, *shape, training=training)


def prepare(case: Case) -> Callable[[], None]:
    """Builds what a case times, with a backward pass in training."""
    import torch

    torch.manual_seed(0)
    module = case.build().train(case.training)
    x = torch.randn(case.batch, case.channels, case.size, case.size)

    def call() -> None:
        for _ in range(case.calls):
            with torch.set_grad_enabled(case.training):
                y = module(x)
            if case.training:
                y.square().mean().backward()
                module.zero_grad()

    return call


_FREED = 1 << 24
"""Bytes that a process frees at first. From then on the C library keeps as many for the next call; else a call of a few
megabytes takes 1.1 times as long or not, by chance, since its pages are new to the process each time."""


def serve() -> None:
    """Answers a line of standard input, the name of a case, with the seconds that one round of it takes."""
    import torch

    torch.set_num_threads(1)
    torch.empty(_FREED, dtype=torch.uint8)
    by_name = {case.name: case for case in cases()}
    name, call = "", None
    for line in sys.stdin:
        if call is None or line.strip() != name:
            name = line.strip()
            call = prepare(by_name[name])
            call()
        start = time.perf_counter()
        call()
        sys.stdout.write(f"{time.perf_counter() - start}\n")
        sys.stdout.flush()


def start(checkout: Path) -> subprocess.Popen[str]:
    """Starts the process of a checkout."""
    place = {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=os.environ | place, text=True, **pipes)


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


def timed(
    case: Case, pair: tuple[subprocess.Popen[str], subprocess.Popen[str]], rounds: int
) -> tuple[float, float]:
    """Returns the median seconds of a call in each of two processes, by turns."""
    for process in pair:
        ask(process, case.name)
    seconds: dict[Any, list[float]] = {process: [] for process in pair}
    for turn in range(rounds):
        for process in pair if turn % 2 == 0 else pair[::-1]:
            seconds[process].append(ask(process, case.name) / case.calls)
    before, after = map(statistics.median, seconds.values())
    return before, after


def main() -> None:
    """Times all cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=5, help="processes of each checkout")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names of cases")
    options = parser.parse_args()
    pairs = [(start(options.before), start(options.after)) for _ in range(options.processes)]
    print("| case | before, ms | after, ms | after / before | lowest and highest |")  # noqa: T201
    print("|---|---|---|---|---|")  # noqa: T201
    for case in cases():
        if not any(text in case.name for text in options.only):
            continue
        old, new = [], []
        for pair in pairs:
            times = timed(case, pair, options.rounds)
            old.append(1000 * times[0])
            new.append(1000 * times[1])
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        times = f"{statistics.median(old):.2f} | {statistics.median(new):.2f}"
        limits = f"{min(ratios):.2f}, {max(ratios):.2f}"
        print(f"| {case.name} | {times} | {statistics.median(ratios):.2f} | {limits} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
