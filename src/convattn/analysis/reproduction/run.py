"""Makes tables and figures of the paper from a folder of runs."""

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path

from convattn.analysis.reproduction.material import Material
from convattn.analysis.reproduction.published import TABLE1
from convattn.analysis.reproduction.record import MissingRun, Reproduction, TargetResult
from convattn.analysis.reproduction.targets import TARGETS
from convattn.analysis.runs import RunGroup, RunsFound, find_runs, group_runs
from convattn.errors import ArgumentError, ConvAttnError, MissingDependencyError, UnknownNameError, must_be
from convattn.files import new_folder, require_new_folder
from convattn.training.recipe_file import SCALES

_STARTS_FROM = {"sa-quadratic-generalized-pruned": "sa-quadratic-generalized"}
"""Recipes that train the network of another one's run further."""


def reproduce(
    targets: Sequence[str],
    runs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    scale: str = "paper",
    data: str | os.PathLike[str] | None = None,
) -> Reproduction:
    """Makes tables and figures from the runs in a folder, and says which runs are missing.

    Args:
        targets: Names of `TARGETS`.
        runs: Folder of runs, at most two folders deep.
        output: Folder to make; it appears when all is done, and not at all where no target can be made.
        scale: Scale of the recipes, one of `SCALES`.
        data: Folder with the files of CIFAR-10, for figures that show images; None takes what the runs name.

    Returns:
        The result for each target; saved as ``reproduction.json`` beside the files.

    Raises:
        ArgumentError: A folder is not there, or the output folder is not empty.
        MissingDependencyError: A package that the figures need is not installed.
        UnknownNameError: There is no such target or scale.
    """
    for kind, names, known in (("target", targets, TARGETS), ("scale", [scale], SCALES)):
        for name in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    if data is not None and not Path(data).is_dir():
        raise ArgumentError(must_be("data", "a folder that exists", str(data)))
    require_new_folder(output, "output")
    found = find_runs(runs)
    groups = {row.recipe: group_runs(found.finished, row.recipe, scale) for row in TABLE1}
    groups = {recipe: alike for recipe, alike in groups.items() if alike}
    material = Material(groups, scale, None if data is None else Path(data))
    can_be_made = any(_has_runs(name, groups) for name in targets)
    with new_folder(output, "output") if can_be_made else nullcontext() as folder:
        results = [_make_target(name, material, folder) for name in targets]
        report = _make_record(results, found, material, Path(runs))
        if folder is not None:
            report.save(folder / "reproduction.json")
    return report


def _has_runs(name: str, groups: Mapping[str, Sequence[RunGroup]]) -> bool:
    return sum(recipe in groups for recipe in TARGETS[name].recipes) >= TARGETS[name].least


def _make_target(name: str, material: Material, folder: Path | None) -> TargetResult:
    """Makes one target, all of its files or none."""
    target, groups = TARGETS[name], material.groups
    missing = tuple(recipe for recipe in target.recipes if recipe not in groups)
    if folder is None or not _has_runs(name, groups):
        return TargetResult(name, files=(), runs=(), missing=missing)
    problem, notes, files = None, [], []
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}.") as place:
        try:
            notes = target.make(material, name, Path(place))
        except MissingDependencyError:
            raise
        except ConvAttnError as error:
            problem = str(error)
        else:
            files = sorted(item.name for item in Path(place).iterdir())
            for file in files:
                os.replace(Path(place) / file, folder / file)
    runs = tuple(str(run.folder) for group in _shown(name, groups) for run in group.runs)
    return TargetResult(name, tuple(files), runs, missing, problem, tuple(notes))


def _shown(name: str, groups: Mapping[str, Sequence[RunGroup]]) -> list[RunGroup]:
    """Returns the groups that a target shows: the table all of them, a figure the best one of each recipe."""
    alike = [groups[recipe] for recipe in TARGETS[name].recipes if recipe in groups]
    return [group for several in alike for group in (several if name == "table1" else several[:1])]


def _notes(targets: Sequence[str], groups: Mapping[str, Sequence[RunGroup]]) -> tuple[str, ...]:
    """Says which runs have changed settings, and which are not shown."""
    notes = []
    for recipe in {recipe: None for name in targets for recipe in TARGETS[name].recipes if recipe in groups}:
        for number, group in enumerate(groups[recipe]):
            if group.first.changes:
                notes.append(f"changed settings of {group.first.folder}: {'; '.join(group.first.changes)}")
            if number:
                notes += [f"not in figures, because settings or data differ: {run.folder}" for run in group.runs]
            notes += [f"left out, because another run has the same seed: {run.folder}" for run in group.repeats]
    return tuple(notes)


def _make_record(results: Sequence[TargetResult], found: RunsFound, material: Material, runs: Path) -> Reproduction:
    missing = {recipe for result in results for recipe in result.missing}
    return Reproduction(
        runs=str(runs),
        scale=material.scale,
        finished=tuple(str(run.folder) for run in found.finished),
        unfinished=tuple(map(str, found.unfinished)),
        unreadable=tuple(f"{folder}: {reason}" for folder, reason in found.unreadable),
        targets=tuple(results),
        notes=_notes([result.target for result in results], material.groups),
        missing=tuple(
            MissingRun(row.recipe, _command(row.recipe, material, runs)) for row in TABLE1 if row.recipe in missing
        ),
    )


def _command(recipe: str, material: Material, runs: Path) -> str:
    """Returns the command that makes a missing run: seed 0, in a new folder."""
    words = ["convattn", "train", recipe, "--scale", material.scale]
    if material.folder is not None and material.scale != "tiny":
        words += ["--set", f"data.folder={material.folder}"]
    start = _STARTS_FROM.get(recipe)
    if start is not None:
        there = material.groups.get(start)
        words += ["--set", f"start.folder={there[0].first.folder if there else _free(runs / f'{start}-0')}"]
    return shlex.join([*words, "-o", str(_free(runs / f"{recipe}-0"))])


def _free(folder: Path) -> Path:
    """Returns the path, or the first of PATH-2, PATH-3, … that does not exist."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in count(1))
    return next(path for path in names if not path.exists())
