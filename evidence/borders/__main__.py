"""Trained networks of this repository as convolutions that are exact at borders, beside plain ones and in runtimes.

Writes borders.json, after each network anew:

    CONVATTN_CIFAR10=FOLDER python -m evidence.borders
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import ratios, time_rounds
from convattn import load_network, network_to_conv
from convattn.data import normalise
from evidence.pretrained.__main__ import convertible, sources
from evidence.results import (
    cifar10,
    environment,
    new_parser,
    publish,
)
from evidence.runtimes import Run, onnx_runtime, openvino
from evidence.trained_networks.measure import BATCH, CERTIFIED

PADDINGS = ("zeros", "replicate")
"""Paddings of plain convolutions."""

EXPORTED = ("speedrun", "sa-learned-medium")
"""Networks that run in runtimes: one of narrow heads, and one whose heads see the whole image."""


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


def borders(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """Converts a network exactly and with each padding, and tests what came of it."""
    attention = scores(network, images)
    few = images[:CERTIFIED]
    exact, certificate = network_to_conv(network, borders="exact", images=few)
    made = scores(exact.eval(), images)
    certified = {"certificate": json.loads(certificate.to_json())}
    rows = {"exact": compared(attention, made, labels) | certified}
    plain, _ = network_to_conv(network, images=few)
    for padding in PADDINGS:
        for module in plain.modules():
            if isinstance(module, nn.Conv2d):
                module.padding_mode = padding
        rows[padding] = compared(attention, scores(plain, images), labels)
    return rows


def runtimes(
    network: nn.Module, images: Tensor, labels: Tensor, rounds: int
) -> list[dict[str, Any]]:
    """Runs a network as attention in torch, and as normalised convolutions in torch and from a file, by turns."""
    import onnx

    batch = images[:BATCH]
    exact = network_to_conv(network, borders="exact", images=images[:CERTIFIED])[0].eval()
    runs: dict[str, Run] = {"attention, torch": network, "exact convolutions, torch": exact}
    facts: dict[str, dict[str, Any]] = {name: {"bytes": None, "operators": None} for name in runs}
    with tempfile.TemporaryDirectory() as place, torch.no_grad():
        for kind, module in {"attention": network, "exact convolutions": exact}.items():
            file = Path(place) / f"{kind}.onnx"
            torch.onnx.export(
                module, (batch,), file, dynamo=True, verbose=False, external_data=False
            )
            nodes = onnx.load(file).graph.node
            operators = sorted({f"{node.domain}::{node.op_type}" for node in nodes})
            for runtime, load in {"ONNX Runtime": onnx_runtime, "OpenVINO": openvino}.items():
                name = f"{kind}, {runtime}"
                runs[name] = load(file)
                facts[name] = {"bytes": file.stat().st_size, "operators": operators}
        attention = scores(network, images)
        results = {
            name: compared(attention, scores(run, images), labels) for name, run in runs.items()
        }
        calls = {name: partial(run, batch) for name, run in runs.items()}
        times = time_rounds(calls, rounds=rounds)
    by_round = ratios(times, "attention, torch")
    rows = []
    for name, result in results.items():
        seconds = {"seconds": median(times[name]), "ratio": median(by_round[name])}
        rows.append({"run": name, **result, **seconds, **facts[name]})
    return rows


def main() -> None:
    """Converts, measures and writes."""
    parser = new_parser(__doc__, "--rounds", "--busy")
    parser.add_argument(
        "sources", nargs="*", help="as for load_network; default: all of this repository"
    )
    parser.add_argument("--tests", type=int, default=10_000, help="test images")
    options = parser.parse_args()
    data = cifar10()
    images = normalise(data.test.images[: options.tests], data.mean, data.std)
    labels = data.test.labels[: options.tests]
    content: dict[str, Any] = {
        **environment(__file__, "onnx", "onnxruntime", "openvino"),
        "data": data.record.name,
        "rounds": options.rounds,
        "busy": options.busy,
        "batch": BATCH,
        "networks": {},
        "runtimes": {},
    }
    for source in sources(options.sources):
        network, name = load_network(source).eval(), Path(source).name.removeprefix("convattn:")
        if not convertible(network):
            continue
        content["networks"][name] = borders(network, images, labels)
        if name in EXPORTED:
            content["runtimes"][name] = runtimes(network, images, labels, options.rounds)
        publish(__file__, content)


if __name__ == "__main__":
    main()
