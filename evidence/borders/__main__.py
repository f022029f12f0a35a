"""Trained networks of this repository as convolutions that are exact at borders, beside plain ones and in runtimes.

Writes borders.md and borders.json, after each network anew:

    CONVATTN_CIFAR10=FOLDER python -m evidence.borders
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from convattn import freeze, network_to_conv
from convattn.data import load_cifar10, normalise
from convattn.files import write_atomically
from convattn.networks import load_network
from convattn.provenance import describe_hardware, describe_versions, find_revision, portable_path
from evidence.pretrained.__main__ import convertible, sources
from evidence.trained_networks.measure import BATCH, CERTIFIED, clocked

PADDINGS = ("zeros", "replicate")
"""Paddings of plain convolutions."""

EXPORTED = ("speedrun", "sa-learned-medium")
"""Networks that run in runtimes: one of narrow heads, and one whose heads see the whole image."""

Run = Callable[[Tensor], Tensor]


def scores(run: Run, images: Tensor) -> Tensor:
    """Returns the class scores of images, batch by batch."""
    with torch.no_grad():
        return torch.cat([run(batch) for batch in images.split(BATCH)])


def compared(plain: Tensor, made: Tensor, labels: Tensor) -> dict[str, Any]:
    """Compares scores with those of attention: accuracy, changed decisions, and how near a tie they were."""
    changed = plain.argmax(1) != made.argmax(1)
    first = plain.topk(2).values
    gap = (first[:, 0] - first[:, 1])[changed]
    return {
        "tests": len(labels),
        "accuracy": (made.argmax(1) == labels).double().mean().item(),
        "accuracy_of_attention": (plain.argmax(1) == labels).double().mean().item(),
        "changed": int(changed.sum()),
        "largest_gap_of_changed": gap.max().item() if len(gap) else None,
        "largest_difference": (plain - made).abs().max().item(),
        "largest_score": plain.abs().max().item(),
    }


def borders(network: nn.Module, images: Tensor, labels: Tensor, plain_tests: int) -> dict[str, Any]:
    """Converts a network exactly and with each padding, and tests what came of it."""
    attention = scores(network, images)
    made, certificate = network_to_conv(network, borders="exact", images=images[:CERTIFIED])
    content = json.loads(certificate.to_json())
    rows = {
        "exact": {
            **compared(attention, scores(freeze(made, images[:1]), images), labels),
            "certificate": content,
        }
    }
    for padding in PADDINGS if plain_tests else ():
        some = slice(plain_tests)
        made, certificate = network_to_conv(
            network, padding_mode=padding, images=images[:CERTIFIED]
        )
        rows[padding] = {
            **compared(attention[some], scores(made, images[some]), labels[some]),
            "certificate": json.loads(certificate.to_json()),
        }
    return rows


def onnx_runtime(file: Path) -> Run:
    """Opens a file in ONNX Runtime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def openvino(file: Path) -> Run:
    """Opens a file in OpenVINO, in float32 on one thread."""
    import openvino as ov

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = ov.Core().compile_model(file, "CPU", options)
    return lambda images: torch.from_numpy(compiled([images.numpy()])[0].copy())


def runtimes(
    network: nn.Module, images: Tensor, labels: Tensor, rounds: int
) -> list[dict[str, Any]]:
    """Runs a network as attention in torch, and as normalised convolutions in torch and from a file, by turns."""
    import onnx

    batch = images[:BATCH]
    made = freeze(network_to_conv(network, borders="exact", images=images[:CERTIFIED])[0], batch)
    with tempfile.TemporaryDirectory() as place:
        runs: dict[str, Run] = {"attention, torch": network, "exact convolutions, torch": made}
        sizes: dict[str, int] = {}
        operators: dict[str, list[str]] = {}
        for kind, module in {"attention": network, "exact convolutions": made}.items():
            file = Path(place) / f"{kind}.onnx"
            torch.onnx.export(
                module, (batch,), file, dynamo=True, verbose=False, external_data=False
            )
            nodes = onnx.load(file).graph.node
            for runtime, load in {"ONNX Runtime": onnx_runtime, "OpenVINO": openvino}.items():
                name = f"{kind}, {runtime}"
                runs[name], sizes[name] = load(file), file.stat().st_size
                operators[name] = sorted({f"{node.domain}::{node.op_type}" for node in nodes})
        attention = scores(network, images)
        found = {
            name: compared(attention, scores(run, images), labels) for name, run in runs.items()
        }
        with torch.no_grad():
            turns = [[clocked(run, batch) for run in runs.values()] for _ in range(rounds + 1)][1:]
    times = dict(zip(runs, zip(*turns, strict=True), strict=True))
    return [
        {
            "run": name,
            **found[name],
            "seconds": median(times[name]),
            "ratio": median(
                a / b for a, b in zip(times[name], times["attention, torch"], strict=True)
            ),
            "bytes": sizes.get(name),
            "operators": operators.get(name),
        }
        for name in runs
    ]


def page(content: Mapping[str, Any]) -> str:
    """Words the results as Markdown."""
    lines = [
        "# Convolutions that are exact at borders",
        "",
        "Attention by position becomes a normalised convolution that decides as attention does, borders included.",
        "",
        (
            f"Test images of {content['data'].partition(' ')[0]}; n is their number, one view each. One thread of"
            f" {content['hardware']['processor']}, torch {content['versions']['torch']}."
        ),
        "",
        "| network | convolutions | n | attention | convolutions | changed | their largest gap | largest difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in content["networks"].items():
        for kind, row in rows.items():
            gap = row["largest_gap_of_changed"]
            lines.append(
                f"| `{name}` | {kind} | {row['tests']:,} | {row['accuracy_of_attention']:.2%} | {row['accuracy']:.2%}"
                f" | {row['changed']} | {'' if gap is None else f'{gap:.2g}'} | {row['largest_difference']:.2g} of"
                f" {row['largest_score']:.3g} |"
            )
    lines += [
        "",
        (
            '*exact*: `borders="exact"`. *zeros*, *replicate*: plain ones, as wide as heads need, with that padding.'
            " *changed*: decisions other than those of attention; the gap is between its two largest scores there."
        ),
    ]
    for name, rows in content["runtimes"].items():
        lines += [
            "",
            f"## `{name}` in runtimes",
            "",
            f"Batches of {BATCH}, by turns; turns: {content['rounds']}."
            + (
                " Other programs ran at the same time: single times say little, and so do ratios of one turn."
                if content["busy"]
                else ""
            ),
            "",
            "| as | n | accuracy | changed | time | beside attention in torch | file |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in rows:
            size = "" if row["bytes"] is None else f"{row['bytes'] / 2**20:.1f} MiB"
            lines.append(
                f"| {row['run']} | {row['tests']:,} | {row['accuracy']:.2%} | {row['changed']}"
                f" | {row['seconds'] * 1e3:.0f} ms | × {row['ratio']:.2f} | {size} |"
            )
    lines += [
        "",
        (
            "All operators of the files are of the standard set of ONNX. What this cannot say: other data and"
            " processors, several threads, the spread over seeds."
        ),
        "",
        "Record: [borders.json](../../evidence/borders/borders.json). Commands:",
        "",
        "```sh",
        *content["command"].split("; "),
        "```",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Converts, measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sources", nargs="*", help="networks, as for load_network; default: all of this repository"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--tests", type=int, default=10_000, help="test images for exact convolutions"
    )
    parser.add_argument(
        "--plain-tests", type=int, default=10_000, help="test images for plain ones, or 0"
    )
    parser.add_argument(
        "--runtime-tests", type=int, default=10_000, help="test images for runtimes, or 0"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns for each time")
    parser.add_argument(
        "--busy", action="store_true", help="say that other programs ran at the same time"
    )
    given = parser.parse_args(arguments)
    data = load_cifar10(os.environ.get("CONVATTN_CIFAR10"))
    images, labels = (
        normalise(data.test.images[: given.tests], data.mean, data.std),
        data.test.labels[: given.tests],
    )
    words = [
        f"--tests {given.tests}",
        f"--plain-tests {given.plain_tests}",
        f"--runtime-tests {given.runtime_tests}",
        f"--rounds {given.rounds}",
    ]
    words = [
        *given.sources,
        "--output",
        portable_path(given.output),
        *words,
        *(["--busy"] if given.busy else []),
    ]
    content: dict[str, Any] = {
        "command": " ".join(["CONVATTN_CIFAR10=FOLDER", "python -m evidence.borders", *words]),
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(("torch", "onnx", "onnxruntime", "openvino")),
        "revision": find_revision(),
        "data": data.record.name,
        "rounds": given.rounds,
        "busy": given.busy,
        "networks": {},
        "runtimes": {},
    }
    for source in sources(given.sources):
        network, name = load_network(source).eval(), Path(source).name.removeprefix("convattn:")
        if not convertible(network):
            continue
        content["networks"][name] = borders(network, images, labels, given.plain_tests)
        if name in EXPORTED and given.runtime_tests:
            some = slice(given.runtime_tests)
            content["runtimes"][name] = runtimes(network, images[some], labels[some], given.rounds)
        given.output.mkdir(parents=True, exist_ok=True)
        write_atomically(given.output / "borders.json", json.dumps(content, indent=1) + "\n")
        write_atomically(given.output / "borders.md", page(content))


if __name__ == "__main__":
    main()
