"""Attention weights of whole architectures at their native sizes: read with their layout and proved, or refused.

Builds each architecture of `subjects.py` with random weights, runs it on one random image of its native size,
and reads every attention layer. Each layer's weights × values must be what the module itself computed within the error
budget, or the script fails. Writes attention-adapters.json:

    python -m evidence.attention_adapters
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.catalogue import attention_layers
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.lab.tables import markdown_table
from evidence.attention_adapters.subjects import SUBJECTS, Subject
from evidence.results import environment, new_parser, publish

_COLUMNS = [
    "architecture",
    "library",
    "input",
    "layers",
    "layout",
    "prefix",
    "error / budget",
    "rows sum to 1",
]

Reading = Mapping[str, Any]
"""What was found in one architecture."""


def read(subject: Subject) -> dict[str, Any]:
    """Builds an architecture and reads its layers."""
    torch.manual_seed(0)
    network = subject.build()
    given = subject.draw()
    tensor = next(iter(given.values())) if isinstance(given, dict) else given
    layers: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    refused = None

    def note(call: AttentionCall) -> None:
        layers.append(
            {
                "name": call.name,
                "kind": call.kind,
                "pattern": call.layout.pattern,
                "grid": list(call.layout.grid),
                "prefix": call.layout.prefix,
                "weights": list(call.weights.shape),
                "masked": call.layout.allowed is not None,
                "normalised": call.normalised,
                "error": call.error,
                "budget": call.budget,
            }
        )

    try:
        known = attention_layers(network)
        skipped = {layer.kind: layer.refused for layer in known if layer.refused is not None}
        watch(network, given, note)
    except (UnsupportedModelError, ArgumentError) as error:
        refused, layers = str(error), []
    return {
        "name": subject.name,
        "library": subject.library,
        "input": list(tensor.shape),
        "note": subject.note,
        "layers": layers,
        "skipped": skipped,
        "refused": refused,
    }


def largest_share(readings: Iterable[Reading]) -> float:
    """Returns the largest share of its budget that the error of a layer takes."""
    layers = [layer for reading in readings for layer in reading["layers"]]
    return max(layer["error"] / layer["budget"] for layer in layers)


def not_normalised(layers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lists the classes whose rows need not sum to one."""
    return sorted({layer["kind"].rpartition(".")[2] for layer in layers if not layer["normalised"]})


def skipped(readings: Iterable[Reading]) -> list[tuple[str, str]]:
    """Lists the classes that are known and not read, each with its reason."""
    reasons: dict[str, str] = {}
    for reading in readings:
        reasons |= reading["skipped"]
    return sorted(reasons.items())


def table(readings: Iterable[Reading]) -> str:
    """Tabulates the architectures that were read."""
    return markdown_table(_COLUMNS, map(_row, readings))


def _row(reading: Reading) -> list[str]:
    name, layers = reading["name"], reading["layers"]
    layouts: dict[str, None] = {}
    for layer in layers:
        layouts[f"{layer['pattern']} {' × '.join(map(str, layer['grid']))}"] = None
    prefixes = sorted({layer["prefix"] for layer in layers})
    return [
        f"{name} ({reading['note']})" if reading["note"] else name,
        reading["library"],
        " × ".join(map(str, reading["input"][1:])),
        f"{len(layers)}",
        ", ".join(layouts),
        ", ".join(map(str, prefixes)),
        f"{largest_share([reading]):.0%}",
        "no" if not_normalised(layers) else "yes",
    ]


def reasons(refused: str) -> str:
    """Returns each reason once, with the classes and the number of layers for which it is given."""
    classes: dict[str, list[str]] = {}
    for line in refused.splitlines()[1:]:
        layer, _, reason = line.strip().rpartition("): ")
        classes.setdefault(reason, []).append(layer.rpartition("(")[2])
    words = []
    for reason, names in classes.items():
        layers = f" ({', '.join(sorted(set(names)))}, {len(names)} layers)" if names[0] else ""
        words.append(reason + layers)
    return "; ".join(words)


def main() -> None:
    """Reads all architectures and writes the record."""
    new_parser(__doc__).parse_args()
    begun, readings = time.monotonic(), []
    for subject in SUBJECTS:
        reading = read(subject)
        readings.append(reading)
        print(f"{reading['name']}: {reading['refused'] or len(reading['layers'])}", flush=True)
        if (reading["refused"] is not None) is not subject.refused:
            raise SystemExit(f"{subject.name} was to be {'refused' if subject.refused else 'read'}")
    record = {
        **environment(__file__, "timm", "transformers", "torchvision"),
        "seconds": time.monotonic() - begun,
        "architectures": readings,
    }
    publish(__file__, record)


if __name__ == "__main__":
    main()
