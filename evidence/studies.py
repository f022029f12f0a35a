"""What pages of studies share: finished runs, spreads over seeds, paired differences, where the numbers come from."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from convattn.heads import HeadSnapshot, read_heads
from evidence.results import EVIDENCE

Layers = list[np.ndarray]
"""Centres of the heads of each layer, (row, col) in pixels."""


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A finished run of a study."""

    folder: Path
    label: str
    record: dict[str, Any]
    epochs: list[dict[str, Any]]

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.record["seed"]

    @property
    def results(self) -> dict[str, float]:
        """Final numbers by name."""
        return self.record["results"]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after each epoch."""
        return [epoch["test_accuracy"] for epoch in self.epochs]

    @property
    def has_heads(self) -> bool:
        """Whether it has a record of where its heads looked."""
        return (self.folder / "heads.parquet").exists()

    @cached_property
    def _snapshots(self) -> list[HeadSnapshot]:
        """The heads at every moment recorded, read once: the run is finished."""
        return read_heads(self.folder)

    def heads(self, epochs: Iterable[int]) -> list[list[HeadSnapshot]]:
        """Reads the heads of each layer as they were after some epochs."""
        kept = self._snapshots
        steps = [kept[-1].step * epoch // len(self.epochs) for epoch in epochs]
        return [[layer for layer in kept if layer.step == step] for step in steps]

    def ends(self) -> list[list[HeadSnapshot]]:
        """Reads the heads of each layer at the start and at the end."""
        return self.heads([0, len(self.epochs)])

    def centres(self, epochs: Iterable[int]) -> list[Layers]:
        """Reads the centres of each layer after some epochs."""
        return [[layer.centres for layer in layers] for layers in self.heads(epochs)]


@dataclass(frozen=True)
class Study:
    """Finished runs of a folder, by network and seed."""

    runs: dict[str, dict[int, TrainedRun]]

    @property
    def all(self) -> list[TrainedRun]:
        """All runs, by network and seed."""
        return [run for label in self.runs for run in self.of(label)]

    @property
    def seeds(self) -> list[int]:
        """Seeds that all networks have finished."""
        return sorted(set.intersection(*map(set, self.runs.values())))

    def of(self, label: str) -> list[TrainedRun]:
        """Lists the runs of a network by seed."""
        return [self.runs[label][seed] for seed in self.seeds]

    def first(self, label: str) -> dict[str, Any]:
        """Returns the record of the first seed."""
        return self.of(label)[0].record

    def accuracy(self, label: str, view: str = "test_accuracy") -> list[float]:
        """Lists test accuracies by seed."""
        return [run.results[view] for run in self.of(label)]

    def less(self, label: str, baseline: str) -> list[float]:
        """Lists differences of accuracy of the same seed, in points."""
        return less(self.accuracy(label), self.accuracy(baseline))

    def epochs(self, label: str) -> int:
        """Returns the epochs of a network's runs."""
        return len(self.of(label)[0].epochs)

    def centres(self, label: str, epoch: int) -> list[Layers]:
        """Returns the centres of the heads of each run after an epoch."""
        return [run.centres([epoch])[0] for run in self.of(label)]


def study(folder: str | Path) -> Study:
    """Reads the finished runs of a folder, from the folder of evidence; theirs are named NETWORK-SEED."""
    runs: dict[str, dict[int, TrainedRun]] = {}
    for file in sorted((EVIDENCE / folder).glob("*/record.json")):
        run = read_run(file.parent)
        runs.setdefault(run.label, {})[run.seed] = run
    return Study(runs)


def unfinished(finished: int, needed: int) -> str | None:
    """Says how many runs of a plan have finished, until they are as many as its rule is for."""
    if finished >= needed:
        return None
    verb = "has" if finished == 1 else "have"
    return f"{finished} of {needed} {verb} finished, and the rule is for all of them"


def less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Lists differences of two lists of fractions, in points."""
    return [100 * (a - b) for a, b in zip(one, other, strict=True)]


def read_run(place: Path) -> TrainedRun:
    """Reads a finished run."""
    record = json.loads((place / "record.json").read_text(encoding="utf-8"))
    lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return TrainedRun(
        place, place.name.rsplit("-", 1)[0], record, [json.loads(line) for line in lines]
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Words mean and standard deviation (n − 1) of fractions, in percent."""
    mean = f"{100 * float(np.mean(values)):.{digits}f}"
    if len(values) == 1:
        return f"{mean} %"
    return f"{mean} ± {100 * float(np.std(values, ddof=1)):.{digits}f} %"


PRECISIONS = {"bf16": "bfloat16", "no": "float32"}
"""Precisions of training by their names in recipes."""


def precision(*studies: Study) -> str:
    """Says in which precision the runs of studies were trained."""
    return _each(studies, lambda record: PRECISIONS[record["recipe"]["training"]["precision"]])


def setting(*studies: Study) -> str:
    """Says in one line how the runs of studies were trained: their number, precision, processor, torch and data."""
    counts = [len(one.seeds) for one in studies]
    seeds = " and ".join(f"{count}" for count in dict.fromkeys(counts))
    processor = _each(studies, lambda record: _processor(record["hardware"]))
    torch = _each(studies, lambda record: record["versions"]["torch"])
    data = _each(studies, lambda record: record["data"]["name"])
    plural = "" if max(counts) == 1 else "s"
    return f"n = {seeds} seed{plural}; {precision(*studies)}; {processor}; torch {torch}; {data}"


def _processor(hardware: dict[str, Any]) -> str:
    """Names a processor, and how many threads a run had on it."""
    name, instructions = hardware["processor"], hardware["instructions"]
    return f"{name} ({instructions}), {hardware['threads']} thread(s) each run"


def _each(studies: Iterable[Study], fact: Callable[[dict[str, Any]], str]) -> str:
    """Lists what the records of studies say, each once."""
    runs = chain.from_iterable(one.all for one in studies)
    return " and ".join(dict.fromkeys(fact(run.record) for run in runs))


def provenance(command: str, study: Study, warnings: Sequence[str] = ()) -> str:
    """Says which command, data and machine the numbers of a study come from."""
    runs = study.all
    first = runs[0].record
    data, counts = first["data"], first["data"]["counts"]
    revisions = ", ".join(dict.fromkeys(f"`{run.record['revision']}`" for run in runs))
    images = f"{counts['train']:,} training and {counts['test']:,} test images"
    lines = [
        f"Command: `{command}`.",
        f"Data: {data['name']}, {data['source']}; {images}; accuracy after the last epoch.",
        f"Setting: {setting(study)}; revision {revisions}.",
        *(f"Warning: {text}." for text in warnings),
    ]
    return "\n".join(f"- {line}" for line in lines)
