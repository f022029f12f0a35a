"""The runs of a study: recipes × variants × seeds, each with its folder and its state."""

import hashlib
import itertools
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convattn.errors import ArgumentError, CheckpointError, DataError, RecipeError, must_be
from convattn.lab.recipe import Recipe, differing_keys, load_recipe
from convattn.lab.run_process import has_checkpoint, is_finished
from convattn.provenance import RunRecord
from convattn.wording import some

_LONGEST = 80
_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""Names that every file system keeps as they are, also one that does not tell capitals from small letters."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    label: str  # Name of the recipe, with the values that make the variant in brackets
    source: str  # The recipe as `load_recipe` takes it
    scale: str | None  # Scale of the recipe; None as the recipe says
    overrides: Mapping[str, str]  # Values that differ from the recipe, by dotted key
    recipe: Recipe  # The recipe as resolved, with its seed
    folder: Path  # Folder for the run

    @property
    def name(self) -> str:
        """Name of the folder, different for each run of the study."""
        return self.folder.name

    @property
    def log(self) -> Path:
        """File for everything that the run prints."""
        return self.folder.with_name(f"{self.name}.log")


def train_command(run: PlannedRun, resume: bool) -> list[str]:
    """Returns the command that starts a run, or continues it from its last checkpoint."""
    scale = [] if run.scale is None else ["--scale", run.scale]
    changes = [word for key, value in run.overrides.items() for word in ("--set", f"{key}={value}")]
    words = [
        sys.executable,
        "-m",
        "convattn",
        "train",
        run.source,
        *scale,
        *changes,
        "-o",
        str(run.folder),
    ]
    return [*words, "--resume"] if resume else words


def plan_runs(
    recipes: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    seeds: Sequence[int],
    scale: str | None,
    overrides: Mapping[str, str],
    grid: Mapping[str, Sequence[str]],
) -> list[PlannedRun]:
    """Plans every run, by recipe, variant and seed, and checks every recipe before the first run begins.

    Each combination of the values in `grid` is a variant. Wrong arguments, or two runs that would be the same,
    raise ArgumentError; recipes with different data raise DataError.
    """
    _check(recipes, seeds, overrides, grid)
    place, runs = Path(output).absolute(), []
    variants = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    for given, variant, seed in itertools.product(recipes, variants, seeds):
        name = os.fspath(given)
        source = str(Path(name).absolute()) if name.endswith(".toml") else name
        changes = {**overrides, **variant, "seed": str(seed)}
        recipe = load_recipe(source, scale=scale, overrides=changes)
        label = recipe.name + (
            f"[{','.join(f'{key}={value}' for key, value in variant.items())}]" if variant else ""
        )
        runs.append(
            PlannedRun(label, source, scale, changes, recipe, place / f"{_safe(label)}-{seed}")
        )
    _check_runs(runs)
    return runs


def _check(
    recipes: Sequence[str | os.PathLike[str]],
    seeds: Sequence[int],
    overrides: Mapping[str, str],
    grid: Mapping[str, Sequence[str]],
) -> None:
    if not recipes or isinstance(recipes, str):
        raise ArgumentError(must_be("recipes", "a list of at least one recipe", recipes))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError(must_be("seeds", "at least one number, each once", list(seeds)))
    if "seed" in overrides or "seed" in grid:
        raise ArgumentError("seed cannot be set in a study: use seeds")
    for key, values in grid.items():
        if not values or isinstance(values, str) or len(set(values)) < len(values):
            raise ArgumentError(
                must_be(f"grid {key}", "a list of at least one value, each once", values)
            )
        if key in overrides:
            raise ArgumentError(f"the key {key} is in overrides and in grid: remove one of the two")


def _check_runs(runs: Sequence[PlannedRun]) -> None:
    """Raises if two runs would share a folder, or runs use different data."""
    labels: dict[str, PlannedRun] = {}
    for run in runs:
        other = labels.setdefault(run.name, run)
        if other is not run:
            raise ArgumentError(
                f"two recipes are called {run.label}: {other.source} and {run.source}; rename one"
            )
        (first, one), (second, two) = (
            (each.label, _data_in_words(each.recipe)) for each in (runs[0], run)
        )
        if one != two:
            raise DataError(
                f"runs on different data cannot be compared ({first}: {one}, {second}: {two})"
            )
    for run, other in itertools.combinations(runs, 2):
        if run.recipe == other.recipe:
            raise ArgumentError(f"{run.label} and {other.label} are the same run: leave one out")


def _data_in_words(recipe: Recipe) -> str:
    held = recipe.data.held_out
    return recipe.data.name + (f", {held} held out" if held else "")


def _safe(label: str) -> str:
    """Returns a label as a file name; if characters were replaced, a few digits of its hash are added."""
    if _SAFE.fullmatch(label) and len(label) <= _LONGEST:
        return label
    digits = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^a-z0-9.-]+', '_', label.lower())[:_LONGEST].strip('._-')}-{digits}"


State = Literal["finished", "under way", "stopped early", "new"]

_SHOWN = 4
"""Differences between two recipes that a message names."""


def find_state(run: PlannedRun) -> State:
    """Returns the state of a run; "stopped early" is before its first checkpoint.

    A folder that holds a run of another recipe raises RecipeError; one that holds no run, CheckpointError.
    """
    folder = run.folder
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, but must be the folder of a run")
    if not folder.exists() or not any(folder.iterdir()):
        return "new"
    if is_finished(folder):
        _require_same(folder, RunRecord.load(folder / "record.json").recipe, run.recipe)
        return "finished"
    try:
        found = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CheckpointError(
            f"{folder} holds no run: recipe.toml cannot be read ({error})"
        ) from None
    _require_same(folder, found, run.recipe)
    return "under way" if has_checkpoint(folder) else "stopped early"


def read_run(run: PlannedRun) -> tuple[RunRecord, str]:
    """Returns the record of a finished run, and the SHA-256 of its file."""
    content = (run.folder / "record.json").read_bytes()
    return RunRecord.from_json(content.decode()), hashlib.sha256(content).hexdigest()


def last_line(log: Path) -> str:
    """Returns the last non-empty line of a log, or "no log"."""
    if not log.is_file():
        return "no log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no log")


def require_own(place: Path, runs: Sequence[PlannedRun]) -> None:
    """Raises ArgumentError for a file, and for a folder whose contents are neither of a study nor of the runs."""
    if place.exists() and not place.is_dir():
        raise ArgumentError(f"output must be a folder, but {str(place)!r} is a file")
    own = {"study.json", ".lock", *(name for run in runs for name in (run.name, run.log.name))}
    found = sorted(item.name for item in place.iterdir()) if place.is_dir() else []
    if found and own.isdisjoint(found):
        expected = "output must be new, empty or the folder of a study"
        raise ArgumentError(f"{expected}, but {str(place)!r} holds {some(found)}")


def _require_same(folder: Path, found: Mapping[str, Any], wanted: Recipe) -> None:
    differing = differing_keys(found, wanted.to_dict())
    if differing:
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise RecipeError(
            f"{folder} holds a run of another recipe: {'; '.join(differing[:_SHOWN])}{more}"
        )
