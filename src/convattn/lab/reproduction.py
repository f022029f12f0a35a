"""Reproduces the paper's tables and figures from the training runs in a folder."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from convattn.errors import ConvAttnError, MissingDependencyError, require_name
from convattn.files import AnyPath, new_folder, require_new_folder, write_atomically
from convattn.lab.cifar10 import holds_cifar10
from convattn.lab.loop import train
from convattn.lab.paper_figures import (
    Material,
    make_attention,
    make_curves,
    make_final_heads,
    make_head_paths,
)
from convattn.lab.paper_table import TABLE1, table_page, table_rows
from convattn.lab.recipe import SCALES, load_recipe
from convattn.lab.run_cost import announce
from convattn.lab.run_setup import data_changes, require_for_run
from convattn.lab.runs import RunGroups, find_runs, group_runs
from convattn.record import Record
from convattn.wording import counted


@dataclass(frozen=True)
class TargetResult:
    """Result for one table or figure."""

    target: str  # Its name
    files: tuple[str, ...]  # Names of the files made; none where it could not be made
    runs: tuple[str, ...]  # Folders of the runs that it shows
    missing: tuple[str, ...]  # Recipes without a finished run
    # Why it could not be made although the runs exist; None if nothing went wrong
    problem: str | None = None
    notes: tuple[str, ...] = ()  # What to know when reading it

    @property
    def complete(self) -> bool:
        """Whether every file of it was made, from all its runs."""
        return bool(self.files) and not self.missing and self.problem is None

    def summary(self) -> str:
        """Returns the result in one line of plain text, and one for each note."""
        parts = [f"{self.target}: not made"]
        if self.complete:
            parts = [f"{self.target}: made"]
        elif self.files:
            recipes = len(TARGETS[self.target].recipes)
            parts = [f"{self.target}: made without {len(self.missing)} of {recipes} recipes"]
        if self.missing:
            parts.append(f"missing {', '.join(self.missing)}")
        if self.problem:
            parts.append(self.problem)
        return "\n  ".join(["; ".join(parts), *self.notes])


@dataclass(frozen=True)
class Reproduction(Record):
    """Results for all tables and figures."""

    runs: str  # Folder of the runs
    scale: str  # Scale of the recipes
    finished: tuple[str, ...]  # Folders of finished runs, of whatever scale and recipe
    unfinished: tuple[str, ...]  # Folders of runs that have no record
    unreadable: tuple[str, ...]  # Folders whose record cannot be read, each with the reason
    targets: tuple[TargetResult, ...]  # The tables and figures
    # Runs whose settings are not their recipe's own, and runs not shown, with the reason
    notes: tuple[str, ...]
    missing: tuple[str, ...]  # Recipes without a run, in an order in which they can be trained

    @property
    def complete(self) -> bool:
        """Whether everything was made completely."""
        return all(target.complete for target in self.targets)

    def summary(self) -> str:
        """Returns everything in a few lines of plain text."""
        finished = counted(len(self.finished), "finished run")
        others = f"{len(self.unfinished)} unfinished, {len(self.unreadable)} unreadable"
        lines = [f"{self.runs}: {finished} of any scale, {others}; asked for: {self.scale}"]
        lines += [f"  unfinished: {folder}" for folder in self.unfinished]
        lines += [f"  unreadable: {reason}" for reason in self.unreadable]
        lines += [f"  {note}" for note in self.notes]
        lines += [target.summary() for target in self.targets]
        if self.missing:
            names = ", ".join(self.missing)
            lines.append(f"missing runs: {names}; --train trains them")
        return "\n".join(lines)


def _make_table(material: Material, name: str, folder: Path) -> list[str]:
    """Writes table 1 as Markdown and as JSON; returns which operations could not be counted."""
    rows, problems = table_rows(material.groups)
    write_atomically(folder / f"{name}.md", table_page(rows, material.scale))
    write_atomically(folder / f"{name}.json", json.dumps(rows, indent=2) + "\n")
    return problems


class Target(NamedTuple):
    """A table or a figure."""

    recipes: tuple[str, ...]  # Recipes whose runs it shows
    # Writes files into a folder, under names that begin with the target's, and returns what to note on them
    make: Callable[[Material, str, Path], list[str]]
    # Whether it shows every recipe, in each of the settings with which it was run, and those without runs
    of_all: bool = False


def _one_recipe(recipe: str, make: Callable[..., list[str]], **options: Any) -> Target:
    return Target((recipe,), partial(make, recipe=recipe, **options))


_ALL = tuple(row.recipe for row in TABLE1)
_CONTENT = "sa-learned-content"
_AVERAGED = 100
_AT_THE_END = "heads of each layer after training"

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "table1": Target(_ALL, _make_table, of_all=True),
        "fig2": Target(_ALL, make_curves),
        "fig3": _one_recipe("sa-quadratic", make_head_paths),
        "fig4": _one_recipe("sa-quadratic", make_final_heads, what=_AT_THE_END),
        "fig5": _one_recipe("sa-learned", make_attention),
        "fig6": _one_recipe(_CONTENT, make_attention, averaged=_AVERAGED, places=[(0.5, 0.5)]),
        "fig7": _one_recipe(
            _CONTENT, make_attention, averaged=_AVERAGED, places=[(0.25, 0.25), (0.75, 0.75)]
        ),
        "fig8": _one_recipe(_CONTENT, make_attention, image=0),
        "fig9": _one_recipe(_CONTENT, make_attention, image=1),
        "fig10": _one_recipe(_CONTENT, make_attention, image=2),
        "fig12": _one_recipe(
            "sa-quadratic-generalized", make_final_heads, what="generalised heads before pruning"
        ),
        "fig13": _one_recipe(
            "sa-quadratic-generalized-pruned",
            make_final_heads,
            what="generalised heads after pruning",
        ),
        "fig14": _one_recipe("sa-quadratic-16-heads", make_final_heads, what=_AT_THE_END),
    }
)
"""Every table and figure by its name, in the paper's order."""

_STARTS_FROM = {"sa-quadratic-generalized-pruned": "sa-quadratic-generalized"}
"""Recipes that train the network of another one's run further."""


def reproduce(
    targets: Sequence[str],
    runs: AnyPath,
    output: AnyPath,
    *,
    scale: str = "paper",
    data: AnyPath | None = None,
    tell: Callable[[str], None] | None = None,
    yes: bool = True,
) -> Reproduction:
    """Makes tables and figures from the runs in a folder, and says what is missing.

    Args:
        targets: Names of `TARGETS`, or "all".
        runs: Folder of runs, at most two folders deep.
        output: Folder to make; it appears when all is done, and not at all where no target can be made.
        scale: Scale of the recipes, one of `SCALES`.
        data: Folder with the files of CIFAR-10, or of your own pictures, for training and for figures that show images;
            None takes what the runs name.
        tell: Where it is given, runs that are missing are trained first, with seed 0, and those that were stopped go
            on; it is called with a line of text for each run and epoch, and before them with what they will take. The
            folder of runs is made if it is not there.
        yes: Whether more than an hour of training is confirmed, where there is a terminal.

    Returns:
        The result for each target; saved as ``reproduction.json`` beside the files.

    Raises:
        ArgumentError: A folder is not there, the output folder is not empty, or training will take more than an hour
            and is not confirmed.
        MissingDependencyError: A package that the figures need is not installed.
        UnknownNameError: There is no such target or scale.
    """
    if "all" in targets:
        targets = list(TARGETS)
    for name in targets:
        require_name("target", name, ["all", *TARGETS])
    require_name("scale", scale, SCALES)
    if data is not None:
        data_changes(data)  # raises unless it is a folder
    require_new_folder(output, "output")
    if tell is not None:
        Path(runs).mkdir(parents=True, exist_ok=True)
        _train_missing(targets, Path(runs), scale, data, tell, yes=yes)
    found = find_runs(runs)
    groups = group_runs(found.finished, scale)
    material = Material(groups, scale, data)
    missing = _missing(targets, groups)
    can_be_made = any(_has_runs(name, groups) for name in targets)
    with new_folder(output, "output") if can_be_made else nullcontext() as folder:
        results = [_make_target(name, material, folder) for name in targets]
        report = Reproduction(
            runs=str(Path(runs)),
            scale=scale,
            finished=tuple(str(run.folder) for run in found.finished),
            unfinished=tuple(map(str, found.unfinished)),
            unreadable=tuple(found.unreadable),
            targets=tuple(results),
            notes=_notes(targets, groups),
            missing=missing,
        )
        if folder is not None:
            report.save(folder / "reproduction.json")
    return report


def _train_missing(
    targets: Sequence[str],
    runs: Path,
    scale: str,
    data: AnyPath | None,
    tell: Callable[[str], None],
    *,
    yes: bool,
) -> None:
    """Trains the runs that targets lack, with seed 0."""
    groups = group_runs(find_runs(runs).finished, scale)
    folders = {recipe: alike[0].first.folder for recipe, alike in groups.items()}
    recipes = {}
    for name in _missing(targets, groups):
        changes = {}
        if data is not None and not (scale == "tiny" and holds_cifar10(Path(data))):
            changes = data_changes(data)
        if name in _STARTS_FROM:
            changes["start.folder"] = str(folders[_STARTS_FROM[name]])
        recipe = load_recipe(name, scale=scale, overrides=changes)
        folders[name] = runs / recipe.run_name
        recipes[folders[name]] = recipe
        require_for_run(recipe)
    announce(list(recipes.values()), tell, yes=yes)
    for place, recipe in recipes.items():
        tell(f"training {place}")
        try:
            train(recipe, output=place, resume=any(place.glob("*")), tell=tell)
        except ConvAttnError as error:  # the others do not need it, or say so
            tell(f"{place} FAILED: {error}")


def _missing(targets: Sequence[str], groups: RunGroups) -> tuple[str, ...]:
    """Lists the recipes without a run, and those that they start from, in an order in which they can be trained."""
    wanted = {recipe for name in targets for recipe in TARGETS[name].recipes}
    wanted |= {_STARTS_FROM[recipe] for recipe in wanted & _STARTS_FROM.keys() - groups.keys()}
    return tuple(row.recipe for row in TABLE1 if row.recipe in wanted - groups.keys())


def _has_runs(name: str, groups: RunGroups) -> bool:
    target = TARGETS[name]
    return target.of_all or any(recipe in groups for recipe in target.recipes)


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
    runs = []
    for recipe in target.recipes:
        shown = groups.get(recipe, ())
        if not target.of_all:
            shown = shown[:1]
        for group in shown:
            runs += [str(run.folder) for run in group.runs]
    return TargetResult(name, tuple(files), tuple(runs), missing, problem, tuple(notes))


def _notes(targets: Sequence[str], groups: RunGroups) -> tuple[str, ...]:
    """Says which runs have changed settings, and which are not shown."""
    notes = []
    for recipe in chain.from_iterable(TARGETS[name].recipes for name in targets):
        for number, group in enumerate(groups.get(recipe, ())):
            first = group.first
            if first.changes:
                notes.append(f"changed settings of {first.folder}: {'; '.join(first.changes)}")
            if number:
                others = "not in figures, because settings or data differ"
                notes += [f"{others}: {run.folder}" for run in group.runs]
            repeats = "left out, because another run has the same seed"
            notes += [f"{repeats}: {run.folder}" for run in group.repeats]
    return tuple(dict.fromkeys(notes))
