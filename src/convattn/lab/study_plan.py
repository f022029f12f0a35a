"""The runs of a study: recipes × variants × seeds, each with its folder and its state."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convattn.errors import ArgumentError, CheckpointError, DataError, must_be
from convattn.files import AnyPath, require_new_folder
from convattn.lab.recipe import Recipe, load_recipe, safe_name
from convattn.lab.run_folder import RunFolder
from convattn.lab.run_setup import require_for_run
from convattn.provenance import RunRecord


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    label: str  # Name of the recipe, with the values that make the variant in brackets
    recipe: Recipe  # The recipe as resolved, with its seed
    folder: Path  # Folder for the run

    @property
    def name(self) -> str:
        """Name of the folder, different for each run of the study."""
        return self.folder.name

    @property
    def begun(self) -> bool:
        """Whether there is something in its folder, which appears with the first checkpoint."""
        return any(self.folder.glob("*"))

    @property
    def log(self) -> Path:
        """File for everything that the run prints."""
        return self.folder.with_name(f"{self.name}.log")

    @property
    def file(self) -> Path:
        """File with its recipe, which the run reads: what it is read from may change while the study runs."""
        return self.folder.with_name(f"{self.name}.toml")

    @property
    def data(self) -> str:
        """The images that the run measures, in words."""
        data = self.recipe.data
        name = f"{data.folder} at {data.size}" if data.name == "folder" else data.name
        return f"{name}, {data.held_out} held out" if data.held_out else name


def train_command(run: PlannedRun) -> list[str]:
    """Returns the command that starts a run, or continues it from its last checkpoint."""
    words = [sys.executable, "-m", "convattn", "train", str(run.file), "-o", str(run.folder)]
    if run.begun:
        words.append("--resume")
    return words


def plan_runs(
    recipes: Sequence[AnyPath],
    output: AnyPath,
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
    if not recipes or isinstance(recipes, str):
        raise ArgumentError(must_be("recipes", "a list of at least one recipe", recipes))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError(must_be("seeds", "at least one number, each once", list(seeds)))
    if "seed" in overrides or "seed" in grid:
        raise ArgumentError("seed cannot be set in a study: use seeds")
    for key, values in grid.items():
        if not values or isinstance(values, str) or len(set(values)) < len(values):
            expected = "a list of at least one value, each once"
            raise ArgumentError(must_be(f"grid {key}", expected, values))
        if key in overrides:
            raise ArgumentError(f"the key {key} is in overrides and in grid: remove one of the two")
    place = Path(output).absolute()
    runs = []
    for recipe, *values, seed in itertools.product(recipes, *grid.values(), seeds):
        variant = dict(zip(grid, values, strict=True))
        changes = {**overrides, **variant, "seed": str(seed)}
        resolved = load_recipe(str(recipe), scale=scale, overrides=changes)
        require_for_run(resolved, further=["matplotlib", "scipy"])  # for plots and intervals
        label = resolved.name
        if variant:
            label += f"[{','.join(f'{key}={value}' for key, value in variant.items())}]"
        folder = place / f"{safe_name(label)}-{seed}"
        runs.append(PlannedRun(label, resolved, folder))
    _require_distinct(runs)
    return runs


def _require_distinct(runs: Sequence[PlannedRun]) -> None:
    """Raises if two runs would share a folder or be the same, or runs use different data."""
    first = runs[0]
    for run, other in itertools.combinations(runs, 2):
        if run.folder == other.folder:
            raise ArgumentError(f"two recipes are called {run.label}: rename one")
        if run.recipe == other.recipe:
            raise ArgumentError(f"{run.label} and {other.label} are the same run: leave one out")
    for run in runs:
        if run.data != first.data:
            different = f"{first.label}: {first.data}, {run.label}: {run.data}"
            raise DataError(f"runs on different data cannot be compared ({different})")


def find_finished(run: PlannedRun) -> RunRecord | None:
    """Returns the record of a run that is finished.

    A folder that holds no run, or one of another recipe, raises CheckpointError.
    """
    if run.folder.is_file():
        raise CheckpointError(f"{run.folder} is a file, but must be the folder of a run")
    return RunFolder(run.folder).find_finished(run.recipe) if run.begun else None


def last_line(log: Path) -> str:
    """Returns the last non-empty line of a log, or "no log"."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return text.strip().rpartition("\n")[2].strip() or "no log"


def require_own(place: Path, runs: Sequence[PlannedRun]) -> None:
    """Raises ArgumentError unless a folder is new or empty, or holds something of the study."""
    own = ["study.json", ".lock"]
    for run in runs:
        own += [run.name, run.log.name, run.file.name]
    if not any((place / name).exists() for name in own):
        require_new_folder(place, "output", may_be="the folder of a study, ")
