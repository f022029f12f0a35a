"""Finds training runs in a folder: finished ones with their records, and the state of the others."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from convattn.errors import ArgumentError, CheckpointError, must_be
from convattn.fields import read
from convattn.files import AnyPath
from convattn.lab.own_images import FOLDER_SIZE
from convattn.lab.recipe import Recipe, command_for, flatten
from convattn.models import AttentionNet
from convattn.networks import load_network
from convattn.networks.datasets import IMAGE_SIZES
from convattn.provenance import RunRecord

_DEPTH = 2
_RECORD, _METRICS = "record.json", "metrics.jsonl"
_SIGNS = (_RECORD, "recipe.toml", _METRICS)
_OF_ONE_RUN = ("seed", "claim", "data.folder", "start.folder")
"""What runs of one recipe may differ in."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its folder and its record."""

    folder: Path
    record: RunRecord

    @property
    def image_size(self) -> int | None:
        """Rows and columns of the images, in pixels; None for images that this version does not know."""
        if self.record.data.name.startswith("folder "):
            return self.record.recipe["data"].get("size", FOLDER_SIZE)
        return IMAGE_SIZES.get(self.record.data.name.partition(" (")[0])

    @property
    def changes(self) -> tuple[str, ...]:
        """What of the run is not as in today's recipe of its name, seed and folders apart."""
        words = shlex.split(command_for(read(Recipe, self.record.recipe)))
        if "recipe.toml" in words:
            return ("by its own recipe.toml",)
        values = [value for word, value in pairwise(words) if word == "--set"]
        return tuple(value for value in values if value.partition("=")[0] not in _OF_ONE_RUN)

    @property
    def pruned(self) -> str:
        """Says that no head was degenerate, if the run was to leave such heads out and left out none."""
        recipe = self.record.recipe
        if not recipe["start"]["prune"]:
            return ""
        network = load_network(self.folder)
        assert isinstance(network, AttentionNet)
        whole = set(network.heads) == {recipe["model"]["heads"]}
        return "; no head was degenerate" if whole else ""

    @property
    def settings(self) -> str:
        """Recipe without seed, claim and folders, and data: equal in runs that differ only in the seed."""
        values = flatten(self.record.recipe)
        recipe = {key: value for key, value in values.items() if key not in _OF_ONE_RUN}
        return json.dumps([recipe, self.record.data.name, self.record.data.hashes], sort_keys=True)


class RunGroup(NamedTuple):
    """Runs of one recipe with the same settings and data, one for each seed."""

    runs: tuple[Run, ...]  # The runs, by seed
    repeats: tuple[Run, ...]  # Further runs of the same seed, which add no evidence

    @property
    def first(self) -> Run:
        """The run of the lowest seed."""
        return self.runs[0]


RunGroups: TypeAlias = Mapping[str, Sequence[RunGroup]]
"""By recipe, the best group first; none is empty."""


class RunListing(NamedTuple):
    """The runs in a folder."""

    finished: Sequence[Run]  # Runs with a record, by folder
    unfinished: Sequence[Path]  # Folders of runs without one
    unreadable: Sequence[str]  # Folders whose record cannot be read, each with the reason


def find_runs(folder: AnyPath) -> RunListing:
    """Finds the runs in a folder, at most two folders deep; hidden folders are left out.

    A folder is a run if it holds a recipe.toml, a metrics.jsonl or a record.json.
    """
    if not Path(folder).is_dir():
        wrong = must_be("runs", "a folder that exists", str(folder))
        raise ArgumentError(f"{wrong}; convattn reproduce --train makes it")
    finished, unfinished, unreadable = [], [], []
    for place in _run_folders(Path(folder), _DEPTH):
        if not (place / _RECORD).exists():
            unfinished.append(place)
            continue
        try:
            finished.append(_read_run(place))
        except CheckpointError as error:
            unreadable.append(f"{place}: {error}")
    return RunListing(finished, unfinished, unreadable)


def group_runs(runs: Sequence[Run], scale: str) -> RunGroups:
    """Selects the runs of a scale, and groups those that differ only in the seed; returns the groups by recipe.

    The group with the fewest changes to the recipe is first, among equals the one with most seeds.
    """
    by_settings: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.record.seed):
        if run.record.recipe["scale"] == scale:
            by_settings.setdefault(run.settings, []).append(run)
    groups: dict[str, list[RunGroup]] = {}
    for _, alike in sorted(by_settings.items()):
        of_seeds: dict[int, Run] = {}
        for run in alike:
            of_seeds.setdefault(run.record.seed, run)
        repeats = [run for run in alike if run not in of_seeds.values()]
        group = RunGroup(tuple(of_seeds.values()), tuple(repeats))
        groups.setdefault(group.first.record.name, []).append(group)
    for of_recipe in groups.values():
        of_recipe.sort(key=lambda group: (len(group.first.changes), -len(group.runs)))
    return groups


def read_curve(folder: Path, measured: str = "test") -> list[tuple[int, float]]:
    """Reads ``metrics.jsonl`` in the folder of a run: pairs of epochs done and accuracy after them, in [0, 1].

    `measured` is "test", or "validation" for held-out training images. A missing, empty or damaged file raises
    CheckpointError.
    """
    path = folder / _METRICS
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        pairs = [(int(row["epoch"]), float(row[f"{measured}_accuracy"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"cannot read metrics from {path}: {type(error).__name__}: {error}"
        ) from None
    if not pairs:
        raise CheckpointError(f"cannot read metrics from {path}: it holds no epoch")
    return pairs


def _read_run(folder: Path) -> Run:
    record = RunRecord.load(folder / _RECORD)
    if "test_accuracy" not in record.results:
        measured = ", ".join(record.results)
        raise CheckpointError(
            f"{folder / _RECORD}: the run measured no test images, but {measured}"
        )
    try:
        read(Recipe, record.recipe)
    except ArgumentError as error:
        raise CheckpointError(f"{folder / _RECORD}: recipe: {error}") from None
    return Run(folder, record)


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the folders of runs, by name; the folders inside a run belong to it."""
    if any((folder / name).exists() for name in _SIGNS):
        yield folder
    elif depth:
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _run_folders(inner, depth - 1)
