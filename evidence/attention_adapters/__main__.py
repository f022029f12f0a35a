"""Attention weights of whole architectures at their native sizes: read with their layout and proved, or refused.

Builds each architecture of `attention_subjects` with random weights, runs it on one random image of its native size,
and reads every attention layer. Each layer's weights × values must be what the module itself computed within the error
budget, or the script fails. Writes attention-adapters.json:

    python -m evidence.attention_adapters
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads.catalogue import attention_layers
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.lab.tables import markdown_table
from evidence.attention_adapters.subjects import SUBJECTS, Subject
from evidence.results import environment, new_parser, publish, versions_in_words

PAGE = """\
# Attention weights of {total} architectures

Which architectures can [`watch`](../reference/adapters.md) read, and are the weights right? Each network below has
random weights and sees one standard normal image, text or sound of its native size (n = 1 each, seed 0). For every
attention layer the weights are computed from what the module hands to its kernel, and weights × values is compared
with what the module itself computed.

{read} architectures with {layers} layers were read: the largest error takes {worst:.0%} of its
[budget](../explanation/error-budget.md), and the rows of {normalised} layers sum to one ({exceptions}). {refused}
architectures are refused, with a reason.

## Read

"Depth" is the number of layers built, where that is fewer than the network has. Error / budget is the largest over the
layers. How each layout was found is in
[attention-adapters.json](../../evidence/attention_adapters/attention-adapters.json).

{table}

Layers of these networks that are known and not read, with their reasons:

{skipped}

## Refused

{refusals}

## How it was measured

    {command}

{hardware[processor]}, {hardware[threads]} thread(s); {versions}; float32; revision {revision}; {seconds:.0f} s in all.

Not covered: trained weights, half precision, other image sizes. That tokens lie where the layouts say is shown by
tests, which move one position of small networks of every pattern and look at which queries and keys change.
"""

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


@dataclass
class Reading:
    """What was found in one architecture."""

    name: str
    library: str
    input: list[int]
    note: str
    layers: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # Reason by class
    refused: str | None = None

    @property
    def share(self) -> float:
        """Largest share of its budget that an error takes."""
        return max(layer["error"] / layer["budget"] for layer in self.layers)


def read(subject: Subject) -> Reading:
    """Builds an architecture and reads its layers."""
    torch.manual_seed(0)
    network = subject.build()
    given = subject.draw()
    shape = list(next(iter(given.values())).shape if isinstance(given, dict) else given.shape)
    found = Reading(subject.name, subject.library, shape, subject.note)

    def note(call: AttentionCall) -> None:
        found.layers.append(
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
        found.skipped = {layer.kind: layer.refused for layer in known if layer.refused is not None}
        watch(network, given, note)
    except (UnsupportedModelError, ArgumentError) as error:
        found.refused, found.layers = str(error), []
    return found


def page(record: Mapping[str, Any]) -> str:
    """Writes the page; every number comes from the readings."""
    readings = [Reading(**reading) for reading in record["architectures"]]
    done = [reading for reading in readings if reading.refused is None]
    layers: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for reading in done:
        layers += reading.layers
        skipped |= reading.skipped
    plain = {layer["kind"].rpartition(".")[2] for layer in layers if not layer["normalised"]}
    refusals = []
    for reading in readings:
        if reading.refused is not None:
            reasons = _reasons(reading.refused)
            refusals.append(f"- {reading.name} ({reading.library}): {reasons}")
    reasons = [f"- `{kind}`: {reason}" for kind, reason in sorted(skipped.items())]
    return PAGE.format(
        total=len(readings),
        read=len(done),
        layers=len(layers),
        worst=max(reading.share for reading in done),
        normalised=sum(layer["normalised"] for layer in layers),
        exceptions=f"those of {', '.join(sorted(plain))} need not" if plain else "all of them",
        refused=len(refusals),
        table=markdown_table(_COLUMNS, [_row(reading) for reading in done]),
        skipped="\n".join(reasons) or "None.",
        refusals="\n".join(refusals),
        versions=versions_in_words(record),
        **{name: record[name] for name in ("command", "hardware", "revision", "seconds")},
    )


def _row(reading: Reading) -> list[str]:
    layouts: dict[str, None] = {}
    for layer in reading.layers:
        layouts[f"{layer['pattern']} {' × '.join(map(str, layer['grid']))}"] = None
    prefixes = sorted({layer["prefix"] for layer in reading.layers})
    whole = all(layer["normalised"] for layer in reading.layers)
    return [
        f"{reading.name} ({reading.note})" if reading.note else reading.name,
        reading.library,
        " × ".join(map(str, reading.input[1:])),
        f"{len(reading.layers)}",
        ", ".join(layouts),
        ", ".join(map(str, prefixes)),
        f"{reading.share:.0%}",
        "yes" if whole else "no",
    ]


def _reasons(refused: str) -> str:
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
    """Reads all architectures and writes record and page."""
    new_parser(__doc__).parse_args()
    begun, readings = time.monotonic(), []
    for subject in SUBJECTS:
        reading = read(subject)
        readings.append(reading)
        print(f"{reading.name}: {reading.refused or len(reading.layers)}", flush=True)
        if (reading.refused is not None) is not subject.refused:
            raise SystemExit(f"{reading.name} was to be {'refused' if subject.refused else 'read'}")
    record = {
        **environment("evidence.attention_adapters", "timm", "transformers", "torchvision"),
        "seconds": time.monotonic() - begun,
        "architectures": [asdict(reading) for reading in readings],
    }
    file = Path(__file__).with_name("attention-adapters.json")
    publish(file, record)


if __name__ == "__main__":
    main()
