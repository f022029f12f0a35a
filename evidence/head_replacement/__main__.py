"""What trained networks lose and gain when heads that are convolutions run as convolutions.

Takes finished runs of `evidence.trained_heads.small_vits`. Measures heads on training images, replaces those that
meet each threshold, and as many random ones, and classifies test images. What is measured of a network is kept in the
folder WORK, so that a stopped run goes on. Writes head-replacement.json, and the figure:

    CONVATTN_CIFAR10=FOLDER python -m evidence.head_replacement RUNS/vit-* --work WORK
"""

import json
from functools import partial
from pathlib import Path

from convattn.data import ImageDataset, normalise
from evidence.head_replacement.measure import Subject, measure
from evidence.head_replacement.page import draw
from evidence.results import (
    PAGES,
    add_work,
    cifar10,
    environment,
    kept,
    new_parser,
    publish,
)
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
    parser = new_parser(__doc__)
    parser.add_argument("networks", type=Path, nargs="+", help="folders of runs of small_vits")
    add_work(parser)
    parser.add_argument("--images", type=int, default=500, help="training images to measure on")
    parser.add_argument("--tests", type=int, default=10_000, help="test images")
    parser.add_argument("--controls", type=int, default=3, help="draws of random heads")
    parser.add_argument("--busy", action="store_true", help="say that other programs ran as well")
    options = parser.parse_args()
    data, networks, runs = cifar10(), [], []
    setting = environment("evidence.head_replacement", "timm", "numpy")
    for folder in options.networks:
        trained = subject(folder, data, options.images, options.tests)
        file = options.work / f"{folder.name}.json"
        measured = kept(file, partial(measure, trained, controls=options.controls))
        networks.append({**measured, "revision": setting["revision"]})
        runs.append(json.loads((folder / "record.json").read_text(encoding="utf-8")))
    content = {
        **setting,
        "busy": options.busy,
        "data": json.loads(data.record.to_json()),
        "runs": runs,
        "networks": networks,
    }
    draw([PAGES / f"{NAME}.png"], networks)
    record = Path(__file__).with_name(f"{NAME}.json")
    publish(record, content)


if __name__ == "__main__":
    main()
