"""What trained networks lose and gain when heads that are convolutions run as convolutions.

Takes finished runs of `evidence.trained_heads.small_vits`. Measures heads on training images, replaces those that
meet each threshold, and as many random ones, and classifies test images. What is measured of a network is kept in the
folder WORK, so that a stopped run goes on. Writes head-replacement.json, .png and head-replacement-tables.md:

    CONVATTN_CIFAR10=FOLDER python -m evidence.head_replacement RUNS/vit-* --work WORK
"""

import argparse
import json
import os
from pathlib import Path

import torch

from convattn.data import ImageDataset, load_cifar10, normalise
from convattn.files import write_atomically
from convattn.provenance import describe_hardware, describe_versions, find_revision, portable_path
from evidence.head_replacement.measure import Subject, measure
from evidence.head_replacement.page import draw, page
from evidence.trained_heads.small_vits import load_small_vit

NAME = "head-replacement"


def subject(folder: Path, data: ImageDataset, images: int, tests: int) -> Subject:
    """Loads a network, training images to measure its heads on, and test images."""
    return Subject(
        name=folder.name,
        model=load_small_vit(folder),
        measured=normalise(data.train.images[:images], data.mean, data.std),
        tests=normalise(data.test.images[:tests], data.mean, data.std),
        labels=data.test.labels[:tests],
    )


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "networks",
        type=Path,
        nargs="+",
        help="folders of runs of evidence.trained_heads.small_vits",
    )
    parser.add_argument(
        "-w", "--work", type=Path, required=True, help="folder for what is measured of each network"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--images", type=int, default=500, help="training images to measure heads on"
    )
    parser.add_argument("--tests", type=int, default=10_000, help="test images")
    parser.add_argument("--controls", type=int, default=3, help="draws of random heads")
    parser.add_argument(
        "--busy", action="store_true", help="say that other programs ran at the same time"
    )
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    data = load_cifar10(os.environ.get("CONVATTN_CIFAR10"))
    networks, runs = [], []
    for folder in given.networks:
        kept = given.work / f"{folder.name}.json"
        if not kept.is_file():
            found = measure(
                subject(folder, data, given.images, given.tests), controls=given.controls
            )
            write_atomically(
                kept, json.dumps({**found, "revision": find_revision()}, indent=1) + "\n"
            )
        networks.append(json.loads(kept.read_text(encoding="utf-8")))
        runs.append(json.loads((folder / "record.json").read_text(encoding="utf-8")))
    words = [
        "python -m evidence.head_replacement",
        *(portable_path(folder) for folder in given.networks),
    ]
    words += ["--work", portable_path(given.work), "--output", portable_path(given.output)]
    words += [
        "--images",
        str(given.images),
        "--tests",
        str(given.tests),
        "--controls",
        str(given.controls),
    ]
    content = {
        "command": " ".join(
            ["CONVATTN_CIFAR10=FOLDER", *words, *(["--busy"] if given.busy else [])]
        ),
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": describe_versions(("torch", "timm", "numpy")),
        "revision": find_revision(),
        "busy": given.busy,
        "data": json.loads(data.record.to_json()),
        "runs": runs,
        "networks": networks,
    }
    given.output.mkdir(parents=True, exist_ok=True)
    write_atomically(given.output / f"{NAME}.json", json.dumps(content, indent=1) + "\n")
    draw([given.output / f"{NAME}.png"], networks)
    write_atomically(given.output / f"{NAME}-tables.md", page(content))


if __name__ == "__main__":
    main()
