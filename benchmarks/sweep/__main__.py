"""Converts one network of every family of several homes, on both paths, and writes down what came of it.

    python -m benchmarks.sweep docs/results/networks.jsonl [--homes timm] [--families resnet convnext] [--seconds 900]

Each network has a process of its own, so that one that fails or takes too long costs no other. The record has one line
of JSON for each, and one for each start of the sweep, with versions and hardware; families that have a line already
are passed over, so the same command goes on where it was stopped.
"""

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.sweep.homes import HOMES

_ROOT = Path(__file__).parents[2]


def in_its_own_process(home: str, family: str, seconds: float) -> dict[str, Any]:
    """Converts one network in a child process.

    Args:
        home: Name of the home.
        family: Name of the family.
        seconds: Time that it may take.

    Returns:
        Its line, in any case.
    """
    line: dict[str, Any] = {"home": home, "family": family}
    command = [sys.executable, "-m", "benchmarks.sweep", "--one", home, family]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {**line, "outcome": "too slow", "reason": f"over {seconds:g} seconds"}
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {**line, "outcome": "crashed", "reason": said[0]}
    return json.loads(done.stdout.splitlines()[-1])


def start_line(homes: list[str], arguments: list[str]) -> dict[str, Any]:
    """Describes a start of the sweep.

    Args:
        homes: Names of the homes.
        arguments: What the command was given.

    Returns:
        Its line.
    """
    import torch

    from convattn.training.environment import describe_hardware, describe_versions, find_revision

    hardware = describe_hardware(torch.device("cpu"))
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks.sweep", *arguments]),
        "versions": describe_versions(("torch", *(name for home in homes for name in HOMES[home].packages))),
        "hardware": {key: hardware[key] for key in ("device", "processor", "threads")},
        "revision": find_revision(),
    }


def main() -> None:
    """Runs what is missing of the sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument("--homes", nargs="*", choices=list(HOMES), default=list(HOMES))
    parser.add_argument("--families", nargs="*")
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--one", nargs=2, metavar=("HOME", "FAMILY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        from benchmarks.sweep.convert import convert_family

        sys.stdout.write(json.dumps(convert_family(*options.one)) + "\n")
        return
    if options.record is None:
        parser.error("say where to write")
    sweep(options.record, options.homes, options.families, options.seconds)


def sweep(record: Path, homes: list[str], families: list[str] | None, seconds: float) -> None:
    """Converts what has no line in the record yet.

    Args:
        record: File of lines, appended to.
        homes: Names of the homes.
        families: Names of the families; all where None.
        seconds: Time that one network may take.
    """
    lines = [json.loads(text) for text in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []
    done = {(line["home"], line["family"]) for line in lines if "family" in line}
    missing = [
        (home, family)
        for home in homes
        for family in HOMES[home].families()
        if (home, family) not in done and (families is None or family in families)
    ]
    if not missing:
        return
    _append(record, start_line(homes, sys.argv[1:]))
    for home, family in missing:
        line = in_its_own_process(home, family, seconds)
        _append(record, line)
        sys.stderr.write(f"{home} {family}: {line['outcome']} {line.get('model', '')} {line.get('reason', '')}\n")


def _append(record: Path, line: dict[str, Any]) -> None:
    """Adds a line, whole, and on the disk before the next network is begun."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
