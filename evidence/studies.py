"""What pages of studies share: finished runs, spreads over seeds, paired differences, where the numbers come from."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convattn.lab.study_record import difference_in_words, paired_difference
from convattn.lab.tables import markdown_table


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A finished run of a study."""

    folder: Path
    label: str
    record: dict[str, Any]
    epochs: list[dict[str, Any]]

    @property
    def results(self) -> dict[str, float]:
        """Final numbers by name."""
        return self.record["results"]

    def minutes_to(self, accuracy: float) -> float | None:
        """Returns the minutes of training and tests after which a test accuracy was first reached; None if never."""
        seconds = 0.0
        for epoch in self.epochs:
            seconds += epoch["seconds"]
            if epoch["test_accuracy"] >= accuracy:
                return seconds / 60
        return None


def read_study(folder: Path) -> tuple[dict[str, Any], list[TrainedRun]]:
    """Reads a study and its finished runs."""
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    return study, [_read_run(folder / run["folder"], run["label"]) for run in study["runs"]]


def finished_runs(folder: Path) -> list[TrainedRun]:
    """Reads the finished runs of a folder, which are named NETWORK-SEED, in the order of these names."""
    places = sorted(file.parent for file in folder.glob("*/record.json"))
    return [_read_run(place, place.name.rsplit("-", 1)[0]) for place in places]


def _read_run(place: Path, label: str) -> TrainedRun:
    record = json.loads((place / "record.json").read_text(encoding="utf-8"))
    lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return TrainedRun(place, label, record, [json.loads(line) for line in lines])


def compared(runs: Sequence[TrainedRun], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Compares pairs of networks seed by seed, as far as they are there."""
    seeds: dict[str, dict[int, float]] = {}
    for run in runs:
        seeds.setdefault(run.label, {})[run.record["seed"]] = run.results["test_accuracy"]
    differences = []
    for one, other in pairs:
        if one in seeds and other in seeds:
            pair = paired_difference(one, other, seeds[one], seeds[other])
            differences += [] if pair is None else [asdict(pair)]
    return differences


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Words mean and standard deviation (n − 1) of fractions, in percent."""
    mean = f"{100 * float(np.mean(values)):.{digits}f}"
    return (
        f"{mean} %"
        if len(values) == 1
        else f"{mean} ± {100 * float(np.std(values, ddof=1)):.{digits}f} %"
    )


def difference_table(differences: Sequence[dict[str, Any]], what: str) -> str:
    """Tabulates paired differences of accuracy, in points; `what` heads the recipes' column."""
    rows = []
    for item in differences:
        shown = ", ".join(f"{100 * value:+.2f}" for value in item["values"])
        rows.append(
            [
                f"`{item['label']}`",
                f"`{item['baseline']}`",
                difference_in_words(item["values"]),
                shown,
            ]
        )
    return markdown_table([what, "less", "mean", "by seed"], rows)


def provenance(command: str, runs: Sequence[TrainedRun], warnings: Sequence[str] = ()) -> str:
    """Says which command, data and machine the numbers come from."""
    first = runs[0].record
    hardware, data, counts = first["hardware"], first["data"], first["data"]["counts"]
    revisions = ", ".join(dict.fromkeys(f"`{run.record['revision']}`" for run in runs))
    images = f"{counts['train']:,} training and {counts['test']:,} test images"
    machine = f"{hardware['processor']} ({hardware['instructions']}), {hardware['threads']} thread(s) each run"
    lines = [
        f"Command: `{command}`.",
        f"Data: {data['name']}, {data['source']}; {images}; accuracy after the last epoch.",
        f"Hardware: {machine}; torch {first['versions']['torch']}, revision {revisions}.",
        *(f"Warning: {text}." for text in warnings),
    ]
    return "\n".join(f"- {line}" for line in lines)
