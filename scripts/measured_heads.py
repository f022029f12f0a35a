"""Measures heads of a trained network for the last step of the tour, static/measured.json.

python scripts/measured_heads.py NAME FUNCTION LAYERS --work WORK --photographs FOLDER --source TEXT

The function of `evidence.packaged_weights`, such as load_vit, returns the network; LAYERS is a pattern for the names of
its layers, which have one grid. Of their heads the file gets, for each of the four neighbours, the one that
displacement explains best: its mean weights by displacement, and those of the same head with untrained weights. It
holds no weight of a network. Each run replaces one network, and the photograph on which the maps are shown.
"""

import argparse
import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn.errors import optional_module
from convattn.heads import analyze
from convattn.heads.catalogue import attention_layers
from convattn.heads.head_report import LayerReport
from convattn.heads.untrained import untrained
from evidence import packaged_weights
from evidence.photographs import photographs, prepared

WRITTEN = Path(__file__).parents[1] / "src/convattn/viewer/static/measured.json"
SIZE = 224
RADIUS = 6
"""Largest displacement that is shown, in cells of the grid."""

STEPS = 10_000
"""Weights are stored as whole numbers of this part of 1."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""By which `evidence.photographs` prepares."""

NEIGHBOURS = ((-1, 0), (0, -1), (0, 1), (1, 0))


def measured(network: nn.Module, images: Tensor, layers: str) -> tuple[LayerReport, ...]:
    """Measures layers of one grid."""
    report = analyze(network, images, layers=layers, radius=RADIUS, controls=())
    return report.layers


def described(network: nn.Module, images: Tensor, layers: str) -> dict[str, Any]:
    """Describes the head of each neighbour, trained and untrained."""
    trained = measured(network, images, layers)
    drawn = measured(untrained(network, seed=0), images, layers)
    depths = {layer.name: depth for depth, layer in enumerate(attention_layers(network), start=1)}
    heads = []
    for neighbour in NEIGHBOURS:
        best = None
        for place, layer in enumerate(trained):
            for number, head in enumerate(layer.heads):
                score = head.position_score.value
                if head.hard_shift == neighbour and (best is None or score > best[0]):
                    best = (score, place, number)
        assert best is not None, f"no head looks at {neighbour}"
        _, place, number = best
        name = f"{depths[trained[place].name]}.{number + 1}"
        conditions = {"trained": trained[place], "untrained": drawn[place]}
        found: dict[str, Any] = {"name": name}
        for condition, layer in conditions.items():
            found[condition] = _head(layer, number)
        heads.append(found)
    return {"grid": list(trained[0].grid), "images": len(images), "heads": heads}


def _head(layer: LayerReport, number: int) -> dict[str, Any]:
    head = layer.heads[number]
    return {
        "word": str(layer.verdicts[number]),
        "score": round(head.position_score.value, 3),
        "share": round(head.hard_share.value, 3),
        "kernel": [round(weight * STEPS) for weight in head.kernel],
    }


def _channels(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers).view(3, 1, 1)


def photograph() -> str:
    """Returns the photograph as the networks see it, a JPEG in base64."""
    datasets = optional_module("sklearn.datasets", "train").datasets
    image = optional_module("PIL.Image", "pictures").Image
    seen = prepared(image.fromarray(datasets.load_sample_image("flower.jpg")), SIZE)[1]
    file = io.BytesIO()
    seen.save(file, "JPEG", quality=70)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("name", "function", "layers", "--work", "--photographs", "--source"):
        parser.add_argument(name)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--mean", type=float, nargs=3, default=MEAN)
    parser.add_argument("--std", type=float, nargs=3, default=STD)
    given = parser.parse_args()
    network = getattr(packaged_weights, given.function)(Path(given.work))
    images, _ = photographs(Path(given.photographs), given.count, SIZE)
    pictures = images * _channels(STD) + _channels(MEAN)
    images = (pictures - _channels(given.mean)) / _channels(given.std)
    content: dict[str, Any] = {"networks": {}}
    if WRITTEN.is_file():
        content = json.loads(WRITTEN.read_text(encoding="utf-8"))
    found = {"source": given.source, **described(network, images, given.layers)}
    content |= {"photograph": photograph(), "radius": RADIUS, "steps": STEPS}
    content["networks"][given.name] = found
    WRITTEN.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
