"""Trained networks converted both ways: accuracy, time and certificates before and after.

Takes the folders of runs at scale small (resnet18-0, sa-quadratic-0 and so on; the page has their commands), converts
their networks, tests before and after on all test images, and times both by turns in one process. What has been
measured of a network is kept in the work folder and not measured again. Writes
trained-networks.json:

    CONVATTN_CIFAR10=FOLDER python -m evidence.trained_networks --runs small --work work
"""

import json
from pathlib import Path
from typing import Any

from convattn.provenance import RunRecord, find_revision
from evidence.results import (
    cifar10,
    environment,
    kept,
    new_parser,
    publish,
)
from evidence.trained_networks.measure import (
    BATCH,
    Bench,
    attentional,
    convolutional,
    fine_tuned,
)

TUNED = ("resnet18", "resnet18-to-attention", "resnet18-longer")


def seeds_of(runs: Path, *names: str) -> list[int]:
    """Finds the seeds for which every one of some runs is finished."""
    seeds = []
    for folder in runs.glob(f"{names[0]}-*"):
        seed = folder.name.rpartition("-")[2]
        records = [runs / f"{name}-{seed}" / "record.json" for name in names]
        if seed.isdecimal() and all(record.is_file() for record in records):
            seeds.append(int(seed))
    return sorted(seeds)


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


def main() -> None:
    """Converts, measures and writes."""
    parser = new_parser(__doc__, "--work", "--rounds", "--busy")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs' folders")
    options = parser.parse_args()
    runs, data, revision = options.runs, cifar10(), find_revision()
    bench = Bench(data, options.rounds)
    rows: dict[str, list[dict[str, Any]]] = {}
    names: list[str] = []
    for kind, convert in {"resnet18": convolutional, "sa-quadratic": attentional}.items():
        rows[kind] = []
        for seed in seeds_of(runs, kind):
            name = f"{kind}-{seed}"

            def measure() -> list[dict[str, Any]]:
                converted = convert(bench, runs / name)  # noqa: B023 - called at once
                return [{**row, "revision": revision} for row in converted]

            rows[kind] += kept(options.work / f"{name}.json", measure)
            names.append(name)
    learned = []
    for seed in seeds_of(runs, *TUNED):
        learned.append(fine_tuned(bench, runs, seed))
        names += [f"{name}-{seed}" for name in TUNED[1:]]
    content = {
        **environment(__file__),
        "batch": BATCH,
        "busy": options.busy,
        "data": {"name": data.record.name, "hashes": data.record.hashes, "tests": len(data.test)},
        "runs": [described(runs, name) for name in names],
        **rows,
        "fine_tuned": learned,
    }
    publish(__file__, content)


if __name__ == "__main__":
    main()
