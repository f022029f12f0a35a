"""Runs of every recipe of table 1, so small that each takes a moment; their numbers say nothing."""

import dataclasses
import json
import shutil
from pathlib import Path

from convattn.data import ImageDataset, ImageSplit, load_digits
from convattn.lab import load_recipe, train
from convattn.lab.paper_table import TABLE1

SIZES = {
    "model.width": "8",
    "model.depth": "2",
    "model.ffn": "8",
    "model.dropout": "0",
    "data.name": "digits",
}
STEPS = {"optim.learning_rate": "0.01", "training.epochs": "2", "training.batch_size": "20"}
MODELS = {
    "sa-quadratic-16-heads": {"model.heads": "16"},
    "sa-learned": {"model.encoding": "learned_axial"},
    "sa-learned-content": {"model.encoding": "learned_axial", "model.content": "true"},
    "sa-quadratic-generalized": {"model.encoding": "generalized_quadratic"},
    "sa-quadratic-generalized-pruned": {
        "model.encoding": "generalized_quadratic",
        "model.heads": "2",
    },
    "sa-sinusoidal": {"model.encoding": "sinusoidal"},
    "sa-distance": {"model.encoding": "distance"},
    "sa-distance-table-start": {"model.encoding": "distance", "model.position_start": "table"},
}
RECIPES = tuple(row.recipe for row in TABLE1)


def few_digits() -> ImageDataset:
    """The digits, but for most of their images."""
    data = load_digits()
    train = ImageSplit(data.train.images[:60], data.train.labels[:60])
    test = ImageSplit(data.test.images[:30], data.test.labels[:30])
    return dataclasses.replace(data, train=train, test=test)


def make_run(
    folder: Path, recipe: str, *, seed: int = 0, scale: str | None = None, **overrides: str
) -> Path:
    """Trains a tiny network under the name of a recipe; `epochs="3"` overrides training.epochs."""
    base = "convnet" if recipe in {"convnet", "resnet18"} else "sa-quadratic"
    heads = {} if base == "convnet" else {"model.heads": "3", "model.initializer_range": "0.1"}
    changed = {f"training.{key}": value for key, value in overrides.items()}
    resolved = load_recipe(
        base, overrides={**SIZES, **STEPS, **heads, **MODELS.get(recipe, {}), **changed}
    )
    named = dataclasses.replace(resolved, name=recipe, seed=seed)
    record = train(named, output=folder, data=few_digits(), progress=False)
    if scale is not None:
        dataclasses.replace(record, recipe={**record.recipe, "scale": scale}).save(
            folder / "record.json"
        )
    return folder


def make_all(folder: Path) -> Path:
    """Trains every recipe once, and sa-quadratic with three seeds, one of them a folder deeper."""
    for recipe in RECIPES:
        make_run(folder / f"{recipe}-0", recipe)
    make_run(folder / "sa-quadratic-1", "sa-quadratic", seed=1)
    make_run(folder / "deeper" / "sa-quadratic-2", "sa-quadratic", seed=2)
    return folder


def copy_run(runs: Path, name: str, folder: Path) -> Path:
    """Copies a run, to be damaged."""
    return Path(shutil.copytree(runs / name, folder / name))


def change_record(run: Path, **changes: object) -> None:
    """Changes fields of a run's record."""
    path = run / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
