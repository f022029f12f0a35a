"""Convolutions with large kernels: the planned layers against torch's layouts and other libraries, on a CPU.

Every contender is first compared with float64; what is wrong gets no time. Then all take turns in one process. Writes
large-kernels.json, the page large-kernels.md and all rows as large-kernels-tables.md:

    python -m benchmarks.large_kernels --output docs/results

Peers that are not installed are left out: scipy, julius, fft-conv-pytorch, torchaudio. `--other FILE` adds the record
of another run to the page, for instance one with two threads.
"""

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import extra_memory, in_a_process_of_its_own
from convattn import accelerate_large_kernels
from convattn.files import write_atomically
from convattn.functional.large_kernel import Sizes, plan_convolution
from convattn.layers import LargeKernelConv1d, LargeKernelConv2d, LargeKernelConv3d
from convattn.provenance import describe_hardware, describe_versions, find_revision

OWN = {1: LargeKernelConv1d, 2: LargeKernelConv2d, 3: LargeKernelConv3d}
PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
LAYOUT_NAMES = ("default", "channels-last")
SLOW = 0.5
"""Seconds of a call from which a contender runs once."""

TURN = 0.02
"""Seconds that the calls of one turn may take together, from the third call on."""

FEW = 1.05
"""Largest ratio to the better layout of torch that is aimed at."""

WRONG = 1e-4
"""Largest error that is timed, as a share of the largest value: 100 times what rounding does in float32."""


@dataclass(frozen=True)
class Case:
    """A convolution with padding that keeps the size."""

    batch: int
    channels: int
    groups: int
    image: tuple[int, ...]
    kernel: int

    @property
    def name(self) -> str:
        """The sizes in words."""
        kinds = {1: "dense", self.channels: "depthwise" if self.channels > 1 else "dense"}
        kind = kinds.get(self.groups, f"{self.groups} groups")
        image, kernel = (
            " × ".join(map(str, n)) for n in (self.image, (self.kernel,) * len(self.image))
        )
        return f"{self.batch} × {self.channels} channels, {image}, {kernel}, {kind}"

    def layers(self) -> tuple[nn.Module, nn.Module]:
        """Makes torch's convolution and the planned layer with the same parameters."""
        torch.manual_seed(0)
        dims, options = len(self.image), {"padding": self.kernel // 2, "groups": self.groups}
        plain = PLAIN[dims](self.channels, self.channels, self.kernel, **options)
        return plain, OWN[dims].of(plain)


def grid() -> list[Case]:
    """Returns the cases: two, one and three axes; depthwise, grouped and dense."""
    cases = [Case(1, 128, 128, (56, 56), k) for k in (3, 5, 7, 9, 11, 13, 15, 21, 31, 47, 63)]
    cases += [Case(8, 64, 64, (28, 28), k) for k in (7, 15, 31)]
    cases += [Case(16, 128, 128, (14, 14), k) for k in (7, 15, 31)]
    cases += [Case(1, 16, 16, (224, 224), k) for k in (7, 15, 31, 63)]
    cases += [Case(1, 32, 1, (56, 56), k) for k in (7, 15, 31)]
    cases += [Case(4, 64, 4, (28, 28), k) for k in (7, 15)]
    cases += [Case(1, 1, 1, (256, 256), k) for k in (7, 15, 31, 63)]
    cases += [Case(1, 64, 64, (16000,), k) for k in (15, 65, 257, 1025, 4095, 16383)]
    cases += [Case(1, 1, 1, (64000,), k) for k in (65, 1025, 16383)]
    cases += [Case(4, 16, 1, (4000,), k) for k in (33, 129, 1025)]
    return cases + [Case(1, 16, 16, (16, 16, 16), k) for k in (3, 5, 9)]


def channels_last(conv: Any, x: Tensor) -> Tensor:
    """Computes in torch's other layout, from and to the default one; a sequence is an image of one row."""
    weight = conv.weight
    if x.ndim == 3:
        x, weight = (
            t[:, :, None].contiguous(memory_format=torch.channels_last) for t in (x, weight)
        )
        y = nn.functional.conv2d(
            x, weight, conv.bias, padding=(0, *conv.padding), groups=conv.groups
        )
        return y[:, :, 0].contiguous()
    x, weight = (t.contiguous(memory_format=LAYOUTS[x.ndim - 2]) for t in (x, weight))
    return conv._conv_forward(x, weight, conv.bias).contiguous()


def oaconvolve(signal: Any, conv: Any, x: Tensor) -> Tensor:
    """Computes a depthwise convolution by `scipy.signal.oaconvolve`."""
    axes = tuple(range(2, x.ndim))
    padded = nn.functional.pad(x, [conv.kernel_size[0] // 2] * (2 * len(axes)))
    kernel = conv.weight.detach().flip(axes).movedim(1, 0)
    y = torch.from_numpy(signal.oaconvolve(padded.numpy(), kernel.numpy(), mode="valid", axes=axes))
    return y + conv.bias.detach().view(-1, *(1,) * len(axes))


def contenders(
    case: Case, plain: Any, own: nn.Module, *, training: bool
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns what computes a case, by name; peers without gradients only where none are asked for."""
    calls: dict[str, Callable[[Tensor], Tensor]] = {"planned": own, "default": plain}
    calls["channels-last"] = partial(channels_last, plain)
    line, pad = len(case.image) == 1, plain.padding
    with suppress(ImportError):
        fft_conv = import_module("fft_conv_pytorch").fft_conv
        calls["fft-conv-pytorch"] = lambda x: fft_conv(
            x, plain.weight, plain.bias, padding=pad, groups=case.groups
        )
    with suppress(ImportError):
        julius = import_module("julius")
        if line and case.groups == 1:
            calls["julius"] = lambda x: julius.fft_conv1d(
                x, plain.weight, plain.bias, padding=pad[0]
            )
    if not training and case.groups == case.channels:
        with suppress(ImportError):
            calls["oaconvolve"] = partial(oaconvolve, import_module("scipy.signal"), plain)
        with suppress(ImportError):
            audio = import_module("torchaudio.functional")
            if line:
                turned = plain.weight.detach().flip(2).movedim(1, 0)
                calls["torchaudio"] = lambda x: (
                    audio.fftconvolve(x, turned, mode="same") + plain.bias[:, None]
                )
    return calls


def call_of(
    compute: Callable[[Tensor], Tensor], plain: nn.Module, x: Tensor, *, training: bool
) -> Callable[[], Any]:
    """Makes the call that is timed: the result, or the result and the gradients of images and parameters."""
    if not training:
        return torch.no_grad()(lambda: compute(x))
    leaf, upstream = x.clone().requires_grad_(), torch.randn_like(x)
    return lambda: torch.autograd.grad(compute(leaf), [leaf, *plain.parameters()], upstream)


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the least seconds of each call, for other programs only add to them; what is slow runs once.

    A turn is two to ten calls, up to TURN seconds: the first finds in the caches what the contender before has left.
    """
    seconds = {name: _seconds(call) for name, call in calls.items()}
    fast = [name for name, first in seconds.items() if first < SLOW]
    for name in fast:  # the first call prepared
        seconds[name] = _seconds(calls[name])
    for number in range(rounds):
        for name in fast[number % len(fast) :] + fast[: number % len(fast)] if fast else ():
            turn = max(2, min(10, int(TURN / seconds[name])))
            seconds[name] = min(seconds[name], *(_seconds(calls[name]) for _ in range(turn)))
    return seconds


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(case: Case, rounds: int) -> Iterator[dict[str, Any]]:
    """Checks and times all contenders, for the result alone and with gradients."""
    plain, own = case.layers()
    x = torch.randn(case.batch, case.channels, *case.image)
    zeros, ones = (case.kernel // 2,) * len(case.image), (1,) * len(case.image)
    kernel = (case.kernel,) * len(case.image)
    plan = plan_convolution(
        Sizes(
            case.batch,
            case.channels,
            case.channels,
            case.groups,
            case.image,
            kernel,
            ones,
            zeros,
            ones,
            x.dtype,
        )
    )
    exact = OWN[len(case.image)].of(plain).double()(x.double()).detach()
    plain.float()
    slow = set[str]()
    for training in (False, True):
        calls, wrong = {}, {}
        for name, compute in contenders(case, plain, own, training=training).items():
            if name in slow:
                continue
            start = time.perf_counter()
            with torch.no_grad():
                error = ((compute(x) - exact).abs().max() / exact.abs().max()).item()
            if time.perf_counter() - start > SLOW:
                slow.add(name)
            if error <= WRONG:
                calls[name] = call_of(compute, plain, x, training=training)
            else:
                wrong[name] = error
        yield {
            "case": asdict(case),
            "name": case.name,
            "training": training,
            "paths": [plan.forward.path, plan.input_gradient.path, plan.weight_gradient.path],
            "seconds": in_turns(calls, rounds),
            "wrong": wrong,
        }


class Block(nn.Module):
    """A block of a network with large kernels: a depthwise convolution and two products, with a shortcut."""

    def __init__(self, dims: int, channels: int, kernel: int) -> None:
        """Makes the three convolutions."""
        super().__init__()
        conv = PLAIN[dims]
        self.mix = conv(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.wide, self.narrow = conv(channels, 4 * channels, 1), conv(4 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the block."""
        return x + self.narrow(nn.functional.gelu(self.wide(self.mix(x))))


def networks() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yields a network like RepLKNet and one for sound, with images."""
    torch.manual_seed(0)
    blocks = [Block(2, 64, 31) for _ in range(4)]
    stem, head = nn.Conv2d(3, 64, 4, 4), [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    yield (
        "2-D, 4 blocks of 31 × 31, 64 channels",
        nn.Sequential(stem, *blocks, *head),
        torch.randn(2, 3, 224, 224),
    )
    blocks = [Block(1, 32, 1023) for _ in range(4)]
    stem, head = nn.Conv1d(1, 32, 16, 4), [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 10)]
    yield (
        "1-D, 4 blocks of 1,023 taps, 32 channels",
        nn.Sequential(stem, *blocks, *head),
        torch.randn(2, 1, 32000),
    )


def measure_network(number: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Times a network as it is, in torch's other layout, and accelerated; memory is that of a process for each."""
    name, network, x = list(networks())[number]
    made, certificate = accelerate_large_kernels(network, x)
    nets = {"planned": made, "default": network}
    if x.ndim == 4:
        nets["channels-last"] = copy.deepcopy(network).to(memory_format=torch.channels_last)
    for training in (False, True):
        calls = {kind: network_call(net, x, kind, training=training) for kind, net in nets.items()}
        asked = {kind: (number, kind, training, torch.get_num_threads()) for kind in nets}
        memory = {
            kind: in_a_process_of_its_own(network_memory, *arguments)
            for kind, arguments in asked.items()
        }
        row = {
            "name": name,
            "training": training,
            "verdict": certificate.verdict,
            "seconds": in_turns(calls, rounds),
        }
        yield {**row, "bytes": memory}


def network_call(network: nn.Module, x: Tensor, kind: str, *, training: bool) -> Callable[[], Any]:
    """Makes the call that is timed: scores, or the gradients of all parameters."""
    images = x.contiguous(memory_format=torch.channels_last) if kind == "channels-last" else x
    if not training:
        return torch.no_grad()(partial(network, images))
    parameters = list(network.parameters())
    return lambda: torch.autograd.grad(network(images).square().sum(), parameters)


def network_memory(number: int, kind: str, training: bool, threads: int) -> int | None:
    """Measures the memory of one call beyond what is held before it, in bytes; meant for a process of its own."""
    torch.set_num_threads(threads)
    _, network, x = list(networks())[number]
    if kind == "planned":
        network = accelerate_large_kernels(network, x)[0]
    elif kind == "channels-last":
        network = network.to(memory_format=torch.channels_last)
    network_call(
        network, x[:1, ..., : x.shape[-1] // 4], kind, training=training
    )()  # which loads all code
    return extra_memory(network_call(network, x, kind, training=training), torch.device("cpu"))


def page(record: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """Returns the page: findings, the reproduction, and for each record a summary and the networks."""
    text = Path(__file__).with_name("large_kernels_page.txt").read_text(encoding="utf-8")
    gains = {
        (kind, task): f"{gain(record, kind, training=task):.2g}"
        for kind in LAYOUT_NAMES
        for task in (False, True)
    }
    words = {"{forward}": ("default", False), "{training}": ("default", True)}
    words |= {
        "{forward last}": ("channels-last", False),
        "{training last}": ("channels-last", True),
    }
    for word, of in words.items():
        text = text.replace(word, gains[of])
    return text.replace("{setting}", _setting(record)).replace(
        "{summaries}", "\n\n".join(map(_summary, (record, *others)))
    )


def gain(record: dict[str, Any], kind: str, *, training: bool) -> float:
    """Returns how many times as fast the networks are as in a layout of torch, at least."""
    rows = [
        row["seconds"]
        for row in record["networks"]
        if row["training"] == training and kind in row["seconds"]
    ]
    return min((seconds[kind] / seconds["planned"] for seconds in rows), default=math.nan)


def _number(value: float) -> str:
    """Writes three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,g}"


def tables(record: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """Returns the page of all rows."""
    parts = [
        "# Large kernels: all rows",
        "What they say, and how to read them: [large kernels](large-kernels.md).",
    ]
    for one in (record, *others):
        parts += [f"## {_setting(one)}", "\n".join(_rows(one))]
    return "\n\n".join(parts) + "\n"


def _setting(record: dict[str, Any]) -> str:
    """Names the instructions and the number of threads."""
    threads = record["hardware"]["threads"]
    return f"{record['instructions']}, {threads} thread{'s' * (threads != '1')}"


def _summary(record: dict[str, Any]) -> str:
    """Sums a record up, and gives the whole networks."""
    compared = [
        (ratio, row["seconds"]["planned"])
        for row in record["cases"]
        if (ratio := _ratio(row)) is not None
    ]
    ratios = sorted(ratio for ratio, _ in compared)
    within, lost = (
        sum(ratio <= FEW for ratio in ratios),
        [s * (1 - 1 / max(1.0, ratio)) for ratio, s in compared],
    )
    about = (
        f"{record['hardware']['processor']}; {len(record['cases']) // 2} of {len(grid())} cases; the best of"
        f" {record['rounds']} rounds (what takes more than {SLOW:g} s runs once), revision"
        f" {str(record['revision'])[:12]}. {record['note']}"
    )
    found = "No row."
    if ratios:
        found = (
            f"In {within} of {len(ratios)} rows the planned layer is at most 5 % slower than the better layout of"
            f" torch; in the others it loses at most {1e3 * max(lost):.2g} ms. The ratio is {ratios[0]:.2g} to"
            f" {ratios[-1]:.2g}, with a median of {median(ratios):.2g}."
        )
    lines = [f"### {_setting(record)}", "", about, "", found, ""]
    kinds = ("planned", *LAYOUT_NAMES)
    if not record["networks"]:
        return "\n".join(lines[:-1])
    lines.append(
        f"| network | | {', '.join(kinds)}: ms | the same: MB beyond what is held before | same function |"
    )
    lines.append("|---|---|---|---|---|")
    for row in record["networks"]:
        task = "training" if row["training"] else "forward"
        ms = " / ".join(
            _number(1e3 * row["seconds"][kind]) if kind in row["seconds"] else "–" for kind in kinds
        )
        held = row.get("bytes", {})
        megabytes = " / ".join(
            _number(held[kind] / 1e6) if held.get(kind) is not None else "–" for kind in kinds
        )
        lines.append(f"| {row['name']} | {task} | {ms} | {megabytes} | {row['verdict']} |")
    return "\n".join(lines)


def _rows(record: dict[str, Any]) -> Iterator[str]:
    """Yields the table of all cases."""
    yield "| convolution | | plan | planned, ms | ÷ better layout | default, ms | channels-last, ms | others, ms |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in record["cases"]:
        ms = {name: _number(1e3 * seconds) for name, seconds in row["seconds"].items()}
        planned, default, last = (ms.pop(name, "–") for name in ("planned", *LAYOUT_NAMES))
        kind, paths = (
            ("training", row["paths"]) if row["training"] else ("forward", row["paths"][:1])
        )
        ratio = _ratio(row)
        cells = [row["name"], kind, ", ".join(dict.fromkeys(paths)), planned]
        cells += ["–" if ratio is None else f"{ratio:.2g}", default, last]
        cells.append(", ".join(f"{name} {time}" for name, time in ms.items()) or "–")
        yield f"| {' | '.join(cells)} |"


def _ratio(row: dict[str, Any]) -> float | None:
    """Returns the time of the planned layer over that of the better layout of torch; None if neither was timed."""
    layouts = [row["seconds"][name] for name in LAYOUT_NAMES if name in row["seconds"]]
    return row["seconds"]["planned"] / min(layouts) if layouts else None


def main() -> None:
    """Measures, and writes the record and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of record and page")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no case and no network after so many"
    )
    parser.add_argument(
        "--note",
        default="Nothing else ran on the machine.",
        help="what the page says of the setting",
    )
    parser.add_argument(
        "--other",
        type=Path,
        action="append",
        default=[],
        help="record of another run, for the page",
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    begun = time.perf_counter()
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.large_kernels {' '.join(sys.argv[1:])}",
        "hardware": describe_hardware(torch.device("cpu")),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "versions": describe_versions(),
        "revision": find_revision(),
        "rounds": given.rounds,
        "note": given.note,
        "cases": [],
        "networks": [],
    }
    others = [json.loads(path.read_text(encoding="utf-8")) for path in given.other]
    order = [case.name for case in grid()]
    given.output.mkdir(parents=True, exist_ok=True)
    list(
        measure(Case(1, 2, 2, (9, 9), 3), 1)
    )  # what is loaded when it is first used takes no time below
    cases = [case for first in range(3) for case in grid()[first::3]]
    for case in cases:
        if time.perf_counter() - begun > given.seconds:
            break
        rows = [*record["cases"], *measure(case, given.rounds)]
        record["cases"] = sorted(rows, key=lambda row: order.index(row["name"]))
        _save(given.output, record, others)
    for number in range(len(list(networks()))):
        if time.perf_counter() - begun > given.seconds:
            break
        record["networks"] += measure_network(number, given.rounds)
        _save(given.output, record, others)


def _save(folder: Path, record: dict[str, Any], others: Sequence[dict[str, Any]]) -> None:
    """Writes what there is, so that a run that is stopped leaves what it measured."""
    write_atomically(folder / "large-kernels.json", json.dumps(record, indent=2) + "\n")
    write_atomically(folder / "large-kernels.md", page(record, others))
    write_atomically(folder / "large-kernels-tables.md", tables(record, others))


if __name__ == "__main__":
    main()
