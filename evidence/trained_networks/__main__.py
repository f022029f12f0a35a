"""Trained networks converted both ways: accuracy, time and certificates before and after.

Takes the folders of runs at scale small (resnet18-0, sa-quadratic-0 and so on; the page has their commands), converts
their networks, tests before and after on all test images, and times both by turns in one process. What has been
measured of a network is kept in the work folder and not measured again. Writes trained-networks-tables.md and
trained-networks.json:

    CONVATTN_CIFAR10=FOLDER python -m evidence.trained_networks --runs small --work work
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from convattn.data import load_cifar10
from convattn.files import write_atomically
from convattn.provenance import (
    RunRecord,
    describe_hardware,
    describe_versions,
    find_revision,
    portable_path,
)
from evidence.trained_networks.measure import BATCH, Bench, attentional, convolutional, fine_tuned
from evidence.trained_networks.page import page


def seeds_of(runs: Path, *names: str) -> list[int]:
    """Finds the seeds for which every one of some runs is finished."""
    found = [path.name.rpartition("-")[2] for path in runs.glob(f"{names[0]}-*")]
    seeds = sorted({int(last) for last in found if last.isdecimal()})
    return [
        seed
        for seed in seeds
        if all((runs / f"{name}-{seed}" / "record.json").is_file() for name in names)
    ]


def kept(file: Path, measure: Callable[[], list[Any]]) -> list[dict[str, Any]]:
    """Reads what was measured before, or measures and writes it, each with the revision of the code."""
    if not file.is_file():
        revision = find_revision()
        measured = [{**asdict(item), "revision": revision} for item in measure()]
        write_atomically(file, json.dumps(measured, indent=1) + "\n")
    return json.loads(file.read_text(encoding="utf-8"))


def described(runs: Path, name: str) -> dict[str, Any]:
    """Tells what a run was."""
    record = RunRecord.load(runs / name / "record.json")
    return {
        "run": name,
        "command": record.command,
        "accuracy": record.results["test_accuracy"],
        "seconds": record.seconds,
        "revision": record.revision,
        "record": json.loads(record.to_json()),
    }


def command(given: argparse.Namespace) -> str:
    """Words the command that repeats the run; of folders that lie elsewhere it says the name alone."""
    runs, work, output = map(portable_path, (given.runs, given.work, given.output))
    words = [
        "python -m evidence.trained_networks",
        "--runs",
        runs,
        "--work",
        work,
        "--output",
        output,
    ]
    words += ["--rounds", str(given.rounds), *(["--busy"] if given.busy else [])]
    return " ".join(["CONVATTN_CIFAR10=FOLDER", *words])


def main() -> None:
    """Converts, measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-r", "--runs", type=Path, required=True, help="folder of the runs' folders"
    )
    parser.add_argument(
        "-w", "--work", type=Path, required=True, help="folder for what is measured of each network"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--rounds", type=int, default=9, help="turns for each time")
    parser.add_argument(
        "--busy", action="store_true", help="say that other programs ran at the same time"
    )
    given = parser.parse_args()
    runs, work = given.runs, given.work
    work.mkdir(parents=True, exist_ok=True)
    data = load_cifar10(os.environ.get("CONVATTN_CIFAR10"))
    bench = Bench(data, given.rounds)
    rows: dict[str, list[dict[str, Any]]] = {}
    names: list[str] = []
    for kind, convert in (("resnet18", convolutional), ("sa-quadratic", attentional)):
        found = [runs / f"{kind}-{seed}" for seed in seeds_of(runs, kind)]
        names += [folder.name for folder in found]
        rows[kind] = [
            row
            for folder in found
            for row in kept(work / f"{folder.name}.json", lambda f=folder, c=convert: c(bench, f))
        ]
    tuned = seeds_of(runs, "resnet18", "resnet18-to-attention", "resnet18-longer")
    names += [
        f"{name}-{seed}" for seed in tuned for name in ("resnet18-to-attention", "resnet18-longer")
    ]
    learned = [
        item
        for seed in tuned
        for item in kept(work / f"tuned-{seed}.json", lambda s=seed: [fine_tuned(bench, runs, s)])
    ]
    content = {
        "command": command(given),
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(),
        "batch": BATCH,
        "busy": given.busy,
        "data": {"name": data.record.name, "hashes": data.record.hashes, "tests": len(data.test)},
        "runs": [described(runs, name) for name in names],
        **rows,
        "fine_tuned": learned,
    }
    given.output.mkdir(parents=True, exist_ok=True)
    write_atomically(given.output / "trained-networks.json", json.dumps(content, indent=1) + "\n")
    write_atomically(given.output / "trained-networks-tables.md", page(content))


if __name__ == "__main__":
    main()
