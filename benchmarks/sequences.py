"""Attention on long sequences against a convolution: time and memory over the length N, and their exponents.

Nine heads, hard (sharpness 128; beyond the ends they look at the nearest pixel) and soft (sharpness 1), 16 channels,
one sequence, forward and with gradients; against `nn.Conv1d` with nine taps and a long convolution of N taps by
transforms (torch.fft, one kernel per channel). Before anything is timed, the attention is held against its definition
in float64. Medians of rounds in which all take turns in one process; memory is the peak of a process of its own
(VmHWM) beyond what was held before the call. Writes sequences.json and the page sequences.md:

    python -m benchmarks.sequences --output docs/results
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn.benchmark.measure import extra_memory, in_a_process_of_its_own, make_call, time_rounds
from convattn.encodings import Quadratic
from convattn.files import write_atomically
from convattn.layers import RelativeAttention1d
from convattn.provenance import describe_hardware, describe_versions, find_revision
from convattn.testing.budget import assert_within_budget

LENGTHS = (1024, 4096, 16384, 65536)
CHANNELS, HEADS = 16, 9
SHARPNESS = {"hard": 128.0, "soft": 1.0}
CHECKED = (1024, 2048)
CPU = torch.device("cpu")

PAGE = """\
# Long sequences

Nine heads at the displacements −4 … 4 of a sequence of N pixels, {channels} channels to {channels}, one sequence,
float32: hard (sharpness 128, which is one-hot) and soft (sharpness 1). Against `nn.Conv1d` with nine taps, and a
convolution of N taps per channel by transforms. The outputs were held against the definition in float64 at
N = {checked} before anything was timed.

{tables}

"exponent" is that of N in a straight line through the logarithms of all lengths. Memory is what a call takes beyond
input, parameters and loaded code.

## How it was measured

    {command}

Medians of {rounds} rounds after one that is not timed; in a round each runs once, in turn. Memory: one process each,
VmHWM. {hardware[processor]}, {hardware[threads]} thread(s), instruction set {capability}, torch {versions[torch]},
revision {revision}. All numbers are in [sequences.json](sequences.json).

Not covered: other channels, batches, dtypes and widths; images; a GPU.
"""


class LongConvolution(nn.Module):
    """A circular-free convolution with one kernel of N taps per channel, by transforms."""

    def __init__(self, length: int) -> None:
        """Draws the kernel."""
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(CHANNELS, length) / length**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Convolves (batch, channels, length)."""
        size = 2 * x.shape[-1]
        spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(self.kernel, size)
        return torch.fft.irfft(spectrum, size)[..., : x.shape[-1]]


def build(name: str, length: int) -> nn.Module:
    """Makes a contender."""
    torch.manual_seed(0)
    if name in SHARPNESS:
        centres = [[float(tap)] for tap in range(-(HEADS // 2), HEADS // 2 + 1)]
        encoding = Quadratic(HEADS, 1, centres=centres, sharpness=SHARPNESS[name])
        return RelativeAttention1d(CHANNELS, CHANNELS, HEADS, encoding)
    if name == "nn.Conv1d":
        return nn.Conv1d(CHANNELS, CHANNELS, HEADS, padding=HEADS // 2)
    return LongConvolution(length)


NAMES = (*SHARPNESS, "nn.Conv1d", "FFT, N taps")


def inputs(length: int) -> Tensor:
    """Draws a sequence."""
    return torch.randn(1, CHANNELS, length, generator=torch.Generator().manual_seed(1))


def check(length: int) -> None:
    """Holds the attention against its definition."""
    x = inputs(length)
    with torch.no_grad():
        for name in SHARPNESS:
            layer = build(name, length).eval()
            y = layer(x)
            layer.impl = "reference"
            low, high = layer(x), layer.double()(x.double())
            assert_within_budget(y, high, low, f"{name}, N = {length}")


def memory(name: str, length: int, kind: str) -> int | None:
    """Measures a contender's memory; called in a process of its own."""
    training = kind == "training"
    make_call(build(name, 512), inputs(512), training=training)()
    return extra_memory(make_call(build(name, length), inputs(length), training=training), CPU)


def measure(lengths: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Measures all contenders at all lengths."""
    found = []
    for length in lengths:
        for training in (False, True):
            calls = {name: make_call(build(name, length), inputs(length), training=training) for name in NAMES}
            times = time_rounds(calls, rounds=rounds, device=CPU)
            for name in NAMES:
                taken = in_a_process_of_its_own(memory, name, length, "training" if training else "forward")
                entry = {"name": name, "length": length, "training": training, "seconds": times[name], "memory": taken}
                found.append(entry)
    return found


def exponent(pairs: list[tuple[int, float]]) -> float:
    """Fits the exponent of N."""
    xs, ys = zip(*((math.log(n), math.log(value)) for n, value in pairs), strict=True)
    return statistics.linear_regression(xs, ys).slope


def table(found: list[dict[str, Any]], lengths: tuple[int, ...], *, training: bool) -> str:
    """Tabulates time, ratio and memory."""
    kept = [entry for entry in found if entry["training"] == training]
    lines = [f"## {'Forward and backward' if training else 'Forward'}", ""]
    lines += ["| | " + " | ".join(f"N = {n:,}" for n in lengths) + " | exponent |", "|---" * (len(lengths) + 2) + "|"]
    convolution = {e["length"]: statistics.median(e["seconds"]) for e in kept if e["name"] == "nn.Conv1d"}
    for name in NAMES:
        mine = [entry for entry in kept if entry["name"] == name]
        times = [(entry["length"], statistics.median(entry["seconds"])) for entry in mine]
        cells = [f"{1e3 * t:.2f} ms ({t / convolution[n]:.1f}×)" for n, t in times]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {exponent(times):.2f} |")
    for name in NAMES:
        taken = [(e["length"], e["memory"]) for e in kept if e["name"] == name]
        cells = ["?" if m is None else f"{m / 2**20:.1f} MiB" for _, m in taken]
        known = len(taken) > 1 and all(m for _, m in taken)
        power = f"{exponent([(n, float(m)) for n, m in taken[-2:]]):.2f}" if known else "?"
        lines.append(f"| {name}, memory | " + " | ".join(cells) + f" | {power} (last two) |")
    return "\n".join(lines)


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that are timed")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="leave longer sequences out")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)  # before anything is measured
    lengths = tuple(length for length in LENGTHS if length <= given.longest)
    for length in CHECKED:
        check(length)
    found = measure(lengths, given.rounds)
    setting = {
        "command": f"python -m benchmarks.sequences --output {given.output.as_posix()} --rounds {given.rounds}",
        "rounds": given.rounds,
        "hardware": describe_hardware(CPU),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "versions": describe_versions(),
        "revision": find_revision(),
    }
    tables = "\n\n".join(table(found, lengths, training=training) for training in (False, True))
    checked = " and ".join(f"{n:,}" for n in CHECKED)
    page = PAGE.format(tables=tables, channels=CHANNELS, checked=checked, **setting)
    write_atomically(given.output / "sequences.json", json.dumps({**setting, "measured": found}, indent=2) + "\n")
    write_atomically(given.output / "sequences.md", page)


if __name__ == "__main__":
    main()
