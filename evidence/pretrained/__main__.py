"""The trained networks of this repository, converted both ways and tested on all test images.

Takes the networks that come with the package and those under `pretrained`, or those named; makes convolutions of their
attention with windows of several sizes, fits the narrowest, and goes back to attention. Writes pretrained-tables.md and
pretrained.json:

    CONVATTN_CIFAR10=FOLDER python -m evidence.pretrained
"""

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convattn import network_to_attention, network_to_conv
from convattn.data import load_cifar10
from convattn.files import write_atomically
from convattn.layers import RelativeAttention
from convattn.networks import load_network
from convattn.networks.pretrained import pretrained_names
from convattn.provenance import describe_hardware, describe_versions, find_revision, portable_path
from evidence.trained_networks.measure import BATCH, CERTIFIED, Bench, Row
from evidence.trained_networks.page import conversion_table

KERNELS = (3, 5, 7)
"""Windows of the convolutions, beside the one that leaves each layer as many taps as it needs."""

FOLDERS = Path(__file__).parents[2] / "pretrained"


def conversions(bench: Bench, name: str, network: nn.Module) -> Iterator[Row]:
    """Converts one network in every way, and measures each."""
    images = bench.images[:CERTIFIED]
    for kernel in (None, *KERNELS):
        made, certificate = network_to_conv(network, kernel_size=kernel, images=images)
        window = "as wide as needed" if kernel is None else f"{kernel} × {kernel}"
        yield bench.row(name, f"to convolutions, {window}", network, made, certificate)
        if kernel is None:
            again, certificate = network_to_attention(made, images=images)
            yield bench.row(name, "these to attention again", made, again, certificate)


def convertible(network: nn.Module) -> bool:
    """Tells whether a network attends, and by position alone."""
    layers = [module for module in network.modules() if isinstance(module, RelativeAttention)]
    return bool(layers) and all(layer.content is None for layer in layers)


def sources(given: Sequence[str]) -> list[str]:
    """Returns what to load: what was named, or every network of the repository."""
    found = [f"convattn:{name}" for name in pretrained_names()]
    found += [str(path.parent) for path in sorted(FOLDERS.glob("*/config.json"))]
    return list(given) or found


def padding(row: Mapping[str, Any]) -> str:
    """Names the padding of the convolutions of a row, "zeros" or another one; several are joined by "and"."""
    named = json.dumps(row["certificate"])
    convolutions = re.findall(r"Conv2d\(.*?\)\"", named)
    modes = {
        found[1] if (found := re.search(r"padding_mode=(\w+)", one)) else "zeros"
        for one in convolutions
    }
    return " and ".join(sorted(modes))


def _tables(rows: Sequence[dict[str, Any]]) -> str:
    """Tabulates conversions, a table for each padding of the convolutions: with another one, rows do not compare."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(padding(row), []).append(row)
    return "\n\n".join(
        f"Padding of the convolutions: {name}.\n\n{conversion_table(own)}"
        for name, own in groups.items()
    )


def page(content: Mapping[str, Any]) -> str:
    """Words the results as Markdown."""
    busy = "\nOther programs ran at the same time: single times say little, ratios more.\n"
    return (
        (Path(__file__).parent / "page.txt")
        .read_text(encoding="utf-8")
        .format(
            tests=content["data"]["tests"],
            certified=CERTIFIED,
            table=_tables(content["rows"]),
            batch=content["batch"],
            rounds=content["rounds"],
            command=content["command"],
            hardware=f"{content['hardware']['processor']}, {content['hardware']['threads']} thread(s)",
            torch=content["versions"]["torch"],
            data=content["data"]["name"],
            revision=content["revision"],
            busy=busy if content["busy"] else "",
        )
    )


def main() -> None:
    """Converts, measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sources", nargs="*", help="networks, as for load_network; default: all of this repository"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--rounds", type=int, default=9, help="turns for each time")
    parser.add_argument(
        "--busy", action="store_true", help="say that other programs ran at the same time"
    )
    given = parser.parse_args()
    data = load_cifar10(os.environ.get("CONVATTN_CIFAR10"))
    bench = Bench(data, given.rounds)
    rows: list[dict[str, Any]] = []
    for source in sources(given.sources):
        network, name = load_network(source).eval(), Path(source).name
        if convertible(network):
            rows += [asdict(row) for row in conversions(bench, name, network)]
    words = [
        "python -m evidence.pretrained",
        *given.sources,
        "--output",
        portable_path(given.output),
    ]
    words += [f"--rounds {given.rounds}", *(["--busy"] if given.busy else [])]
    content = {
        "command": " ".join(["CONVATTN_CIFAR10=FOLDER", *words]),
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(),
        "revision": find_revision(),
        "batch": BATCH,
        "rounds": given.rounds,
        "busy": given.busy,
        "data": {"name": data.record.name, "hashes": data.record.hashes, "tests": len(data.test)},
        "rows": rows,
    }
    given.output.mkdir(parents=True, exist_ok=True)
    write_atomically(given.output / "pretrained.json", json.dumps(content, indent=1) + "\n")
    write_atomically(given.output / "pretrained-tables.md", page(content))


if __name__ == "__main__":
    main()
