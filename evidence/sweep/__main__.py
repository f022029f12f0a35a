"""Converts one network of every family of several homes, on both paths, and writes down what came of it.

    python -m evidence.sweep [--homes timm] [--families resnet convnext] [--seconds 900]

Each network has a process of its own. The record has one line of JSON for each, and one for each start of the sweep,
with versions and hardware; families that have a line already are passed over, so the same command goes on where it was
stopped. Writes networks.jsonl.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from convattn.provenance import describe_hardware, describe_versions, find_revision
from evidence.sweep.homes import HOMES, home
from evidence.sweep.process import import_once, in_its_own_process
from evidence.sweep.randomise import HOW
from evidence.sweep.record import append, families, read

RECORD = Path(__file__).with_name("networks.jsonl")


def main() -> None:
    """Runs what is missing of the sweep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--homes", nargs="*", choices=list(HOMES), default=list(HOMES), help="all by default"
    )
    parser.add_argument("--families", nargs="*", help="names of families; all by default")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="time that one network may take"
    )
    options = parser.parse_args()
    done = {(line["home"], line["family"]) for line in families(read(RECORD))}
    every = ((place, family) for place in options.homes for family in home(place).families())
    wanted = [one for one in every if options.families is None or one[1] in options.families]
    missing = [one for one in wanted if one not in done]
    if missing:
        append(RECORD, start(options.homes))
        import_once(options.homes)
    for place, family in missing:
        line = in_its_own_process(place, family, options.seconds)
        append(RECORD, line)
        sys.stderr.write(
            f"{place} {family}: {line['outcome']} {line.get('model', '')} {line.get('reason', '')}\n"
        )


def start(homes: list[str]) -> dict[str, Any]:
    """Describes a start of the sweep.

    Args:
        homes: Names of the homes.

    Returns:
        Its line.
    """
    command = ["python -m evidence.sweep"]
    hardware = describe_hardware(torch.device("cpu"))
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(command if homes == list(HOMES) else [*command, "--homes", *homes]),
        "versions": describe_versions(
            ("torch", *(name for place in homes for name in home(place).packages))
        ),
        "hardware": {key: hardware[key] for key in ("device", "processor", "threads")},
        "revision": find_revision(),
        "networks": HOW,
    }


if __name__ == "__main__":
    main()
