"""Attention weights of whole architectures at their native sizes: read with their layout and proved, or refused.

Builds each architecture of `attention_subjects` with random weights, runs it on one random image of its native size,
and reads every attention layer. Each layer's weights × values must be what the module itself computed within the error
budget, or the script fails. Writes attention-adapters.json and the page attention-adapters-tables.md:

    python -m evidence.attention_adapters
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.files import write_atomically
from convattn.heads.catalogue import attention_layers
from convattn.heads.layout import AttentionCall
from convattn.heads.reading import watch
from convattn.provenance import describe_hardware, describe_versions, find_revision
from evidence.attention_adapters.subjects import SUBJECTS, Subject

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
                "source": call.layout.source,
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


def page(readings: Sequence[Reading], record: dict[str, Any]) -> str:
    """Writes the page; every number comes from the readings."""
    done = [found for found in readings if found.refused is None]
    layers = [layer for found in done for layer in found.layers]
    plain = sorted(
        {layer["kind"].rpartition(".")[2] for layer in layers if not layer["normalised"]}
    )
    skipped = {kind: reason for found in done for kind, reason in found.skipped.items()}
    rows = [
        "| architecture | library | input | layers | layout | prefix | error / budget | rows sum to 1 |"
    ]
    rows += ["|---" * 8 + "|"] + [_row(found) for found in done]
    reasons = [
        f"- {found.name} ({found.library}): {_reasons(found.refused)}"
        for found in readings
        if found.refused
    ]
    return PAGE.format(
        total=len(readings),
        read=len(done),
        layers=len(layers),
        worst=max(found.share for found in done),
        normalised=sum(layer["normalised"] for layer in layers),
        exceptions=f"those of {', '.join(plain)} need not" if plain else "all of them",
        refused=len(reasons),
        table="\n".join(rows),
        skipped="\n".join(f"- `{kind}`: {reason}" for kind, reason in sorted(skipped.items()))
        or "None.",
        refusals="\n".join(reasons),
        command=record["command"],
        hardware=record["hardware"],
        versions=", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        revision=record["revision"] or "unknown",
        seconds=record["seconds"],
    )


def _row(found: Reading) -> str:
    layouts: dict[str, None] = {}
    for layer in found.layers:
        layouts[f"{layer['pattern']} {' × '.join(map(str, layer['grid']))}"] = None
    prefix = sorted({layer["prefix"] for layer in found.layers})
    whole = all(layer["normalised"] for layer in found.layers)
    cells = (
        found.name + (f" ({found.note})" if found.note else ""),
        found.library,
        " × ".join(map(str, found.input[1:])),
        len(found.layers),
        ", ".join(layouts),
        ", ".join(map(str, prefix)),
        f"{found.share:.0%}",
        "yes" if whole else "no",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _one_line(reason: str | None) -> str:
    return " ".join((reason or "").split())


def _reasons(refused: str) -> str:
    """Returns each reason once, with the classes and the number of layers for which it is given."""
    classes: dict[str, list[str]] = {}
    for line in refused.splitlines()[1:]:
        layer, _, reason = line.strip().rpartition("): ")
        classes.setdefault(reason, []).append(layer.rpartition("(")[2])
    return "; ".join(
        f"{reason} ({', '.join(sorted(set(names)))}, {len(names)} layers)" if names[0] else reason
        for reason, names in classes.items()
    )


def main() -> None:
    """Reads all architectures and writes record and page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    folder = parser.parse_args().output
    begun, readings = time.monotonic(), []
    for subject in SUBJECTS:
        found = read(subject)
        readings.append(found)
        verdict = found.refused or f"{len(found.layers)} layers, {found.share:.0%} of the budget"
        print(f"{found.name}: {_one_line(verdict)[:150]}", flush=True)
        unexpected = (found.refused is None) is subject.refused
        if unexpected:
            raise SystemExit(
                f"{found.name} was {'read' if subject.refused else 'refused'}, which was not expected"
            )
    record = {
        "command": "python -m evidence.attention_adapters",
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(("torch", "timm", "transformers", "torchvision")),
        "revision": find_revision(Path(__file__).parent),
        "seconds": time.monotonic() - begun,
        "architectures": [asdict(found) for found in readings],
    }
    write_atomically(folder / "attention-adapters.json", json.dumps(record, indent=1) + "\n")
    write_atomically(folder / "attention-adapters-tables.md", page(readings, record))


if __name__ == "__main__":
    main()
