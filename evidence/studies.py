"""What pages of studies share: finished runs, spreads over seeds, paired differences, where the numbers come from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convattn.lab.study_record import difference_in_words
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
    runs = []
    for run in study["runs"]:
        place = folder / run["folder"]
        record = json.loads((place / "record.json").read_text(encoding="utf-8"))
        lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        runs.append(TrainedRun(place, run["label"], record, [json.loads(line) for line in lines]))
    return study, runs


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


def provenance(study: dict[str, Any], runs: Sequence[TrainedRun]) -> str:
    """Says which command, data and machine the numbers come from, and which runs failed."""
    first = runs[0].record
    hardware, data, counts = first["hardware"], first["data"], first["data"]["counts"]
    revisions = ", ".join(dict.fromkeys(f"`{run.record['revision']}`" for run in runs))
    images = f"{counts['train']:,} training and {counts['test']:,} test images"
    machine = f"{hardware['processor']} ({hardware['instructions']}), {hardware['threads']} thread(s) each run"
    lines = [
        f"Command: `{study['command']}`.",
        f"Data: {data['name']}, {data['source']}; {images}; accuracy after the last epoch.",
        f"Hardware: {machine}; torch {first['versions']['torch']}, revision {revisions}.",
        *(
            f"Failed: {item['label']}, seed {item['seed']}: {item['reason']}."
            for item in study["failures"]
        ),
        *(f"Warning: {text}." for text in study["warnings"]),
    ]
    return "\n".join(f"- {line}" for line in lines)
