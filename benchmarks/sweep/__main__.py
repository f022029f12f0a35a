"""Converts one network of every family of several homes, on both paths, and writes down what came of it.

    python -m benchmarks.sweep docs/results/networks.jsonl [--homes timm] [--families resnet convnext] [--seconds 900]

Each network has a process of its own. The record has one line of JSON for each, and one for each start of the sweep,
with versions and hardware; families that have a line already are passed over, so the same command goes on where it was
stopped. Beside the record its tables are written, as RECORD-tables.md.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.sweep.homes import HOMES, home
from benchmarks.sweep.page import page
from benchmarks.sweep.process import import_once, in_its_own_process
from benchmarks.sweep.randomise import HOW
from benchmarks.sweep.record import append, families, read
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision, portable_path


def main() -> None:
    """Runs what is missing of the sweep, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="file of lines, appended to")
    parser.add_argument(
        "--homes", nargs="*", choices=list(HOMES), default=list(HOMES), help="all by default"
    )
    parser.add_argument("--families", nargs="*", help="names of families; all by default")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="time that one network may take"
    )
    options = parser.parse_args()
    done = {(line["home"], line["family"]) for line in families(read(options.record))}
    every = ((place, family) for place in options.homes for family in home(place).families())
    wanted = [one for one in every if options.families is None or one[1] in options.families]
    missing = [one for one in wanted if one not in done]
    if missing:
        append(options.record, start(options.record, options.homes))
        import_once(options.homes)
    for place, family in missing:
        line = in_its_own_process(place, family, options.seconds)
        append(options.record, line)
        sys.stderr.write(
            f"{place} {family}: {line['outcome']} {line.get('model', '')} {line.get('reason', '')}\n"
        )
    write_atomically(
        options.record.with_name(f"{options.record.stem}-tables.md"),
        page(read(options.record), options.record.name),
    )


def start(record: Path, homes: list[str]) -> dict[str, Any]:
    """Describes a start of the sweep.

    Args:
        record: The file that is written.
        homes: Names of the homes.

    Returns:
        Its line.
    """
    command = ["python -m benchmarks.sweep", portable_path(record)]
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
