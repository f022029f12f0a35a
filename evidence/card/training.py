"""Training runs by a plan, in order. Their records are those of `convattn train`; a stop leaves whole rounds.

A round is a seed with which every network of a part is trained, so that differences are between runs of one seed. It
begins only if the longest runs so far would fit. Runs whose record is there are left out: a later call goes on.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from convattn import load_recipe, train
from convattn.data import ImageDataset, ImageSplit
from convattn.lab.recipe import Recipe, StepsRecipe
from convattn.provenance import RunRecord
from evidence.card.rows import Stage

KEPT = ("metrics.jsonl", "heads.parquet", "record.json")
"""Files of a run that are kept; the record is last, so that half a run is none."""

_TRIAL = (2000, 500)
"""Training and test images of a trial, by which epochs are fitted to the time."""


@dataclass(frozen=True)
class Part:
    """Runs that belong together.

    Attributes:
        name: Name of the part, and of its folder.
        seeds: Seed of each round.
        runs: Recipe and overrides of each network, by name.
        share: Its share of the time is to those of other parts as this number is to theirs.
        fitted: Whether epochs are as many as fit the time; there is one round then.
    """

    name: str
    seeds: Sequence[int]
    runs: Mapping[str, tuple[str, Mapping[str, str]]]
    share: float
    fitted: bool = False


_MIXINGS = ("attention", "hard", "conv", "content", "random")

PARTS = (
    Part("headline", range(3, 8), {"speedrun": ("speedrun", {"training.epochs": "18"})}, 2),
    Part(
        "twelve",
        range(16),
        {mixing: ("speedrun", {"model.mixing": mixing}) for mixing in _MIXINGS},
        5,
    ),
    Part("paper", (0,), {name: (name, {}) for name in ("sa-quadratic", "resnet18")}, 3, True),
)
"""The plan. All runs have one precision, because accelerate allows one in a process."""


def run(stage: Stage, data: ImageDataset, parts: Sequence[Part], rank: int, processes: int) -> None:
    """Trains by the plan.

    Args:
        stage: The stage.
        data: Images to train and test on.
        parts: Parts of the plan.
        rank: Number of this process, from 0, of those that share the rounds.
        processes: How many there are.
    """
    if not stage.on_cuda:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    later = sum(part.share for part in parts)
    whole = stage.seconds / later
    for part in parts:
        later -= part.share
        if not part.fitted:
            run_rounds(stage, part, data, later * whole, range(rank, len(part.seeds), processes))
        elif rank == 0:
            run_fitted(stage, part, data, later * whole)


def run_rounds(
    stage: Stage, part: Part, data: ImageDataset, reserve: float, numbers: Sequence[int]
) -> None:
    """Trains rounds until the time that is left is the reserve of later parts."""
    longest: dict[str, float] = {}
    for number in numbers[:1] if stage.tiny else numbers:
        seed = part.seeds[number]
        if stage.left - reserve <= sum(longest.values()):
            stage.add(case=part.name, seed=seed, skipped="no time for another round")
            return
        for label, (name, overrides) in part.runs.items():
            before = stage.left
            one = partial(run_one, stage, part, label, recipe(stage, name, seed, overrides), data)
            stage.case(part.name, one, network=label, seed=seed)
            longest[label] = max(longest.get(label, 0.0), before - stage.left)


def run_fitted(stage: Stage, part: Part, data: ImageDataset, reserve: float) -> None:
    """Trains each network for as many epochs as its share of the time allows, the first longest."""
    for number, (label, (name, overrides)) in enumerate(part.runs.items(), start=1):
        share = 0.95 if number == len(part.runs) else 0.75
        seconds = share * (stage.left - reserve)
        own = recipe(stage, name, part.seeds[0], overrides)
        one = partial(run_one, stage, part, label, own, data, seconds)
        stage.case(part.name, one, network=label, seed=own.seed)


def recipe(stage: Stage, name: str, seed: int, overrides: Mapping[str, str]) -> Recipe:
    """Reads a recipe in the precision of all runs."""
    own = {**overrides, "seed": str(seed), "training.precision": "bf16"}
    if stage.tiny:
        own["training.epochs"] = "1"
    return load_recipe(name, scale="tiny" if stage.tiny else None, overrides=own)


def run_one(
    stage: Stage,
    part: Part,
    label: str,
    recipe: Recipe,
    data: ImageDataset,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Trains a network, unless that was done, and keeps its record and what was measured after each epoch.

    Args:
        stage: The stage, whose time ends the run after an epoch.
        part: Part of the plan.
        label: Name of the network there.
        recipe: Its recipe.
        data: Images to train and test on.
        seconds: Time that the epochs are fitted to; None leaves those of the recipe.

    Returns:
        The results.
    """
    place = stage.folder / "training" / part.name / f"{label}-{recipe.seed}"
    if (place / KEPT[-1]).exists():
        return {"skipped": "trained before"}
    with TemporaryDirectory() as work:
        if seconds is not None and not stage.tiny:
            recipe = fitted(recipe, data, seconds, Path(work, "trial"))
        record = trained(recipe, data, Path(work, "run"), stage)
        place.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if Path(work, "run", name).exists():
                shutil.copyfile(Path(work, "run", name), place / name)
    epochs = recipe.training.epochs
    peak = record.peak_memory / 2**20
    return {**record.results, "epochs": epochs, "seconds": record.seconds, "MiB": peak}


def trained(recipe: Recipe, data: ImageDataset, output: Path, stage: Stage | None) -> RunRecord:
    """Trains; raises TimeoutError after the epoch in which the time of the stage ends."""

    def tell(line: str) -> None:
        if stage is not None and stage.left <= 0:
            raise TimeoutError(line)

    return train(recipe, output=output, data=data, progress=False, tell=tell)


def fitted(recipe: Recipe, data: ImageDataset, seconds: float, work: Path) -> Recipe:
    """Returns a recipe with as many epochs as fit some seconds, by a trial with few images, and a schedule for them."""
    splits = []
    for split, count in zip((data.train, data.test), _TRIAL, strict=True):
        splits.append(ImageSplit(split.images[:count], split.labels[:count]))
    few = replace(data, train=splits[0], test=splits[1])
    trial = replace(recipe, training=replace(recipe.training, epochs=3))
    trained(trial, few, work, None)
    last = (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    rate = json.loads(last)["images_per_second"]
    epochs = int(0.9 * seconds * rate / len(data.train))  # a tenth is for tests and checkpoints
    if epochs < 1:
        raise TimeoutError(f"no epoch fits {seconds:.0f} s at {rate:.0f} images a second")
    schedule = recipe.schedule
    if isinstance(schedule, StepsRecipe):
        share = epochs / recipe.training.epochs
        milestones = [max(1, round(share * epoch)) for epoch in schedule.milestones]
        schedule = replace(schedule, milestones=tuple(milestones))
    training = replace(recipe.training, epochs=epochs)
    return replace(recipe, training=training, schedule=schedule)
