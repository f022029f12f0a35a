"""Records of reproduced tables and figures, and of missing runs."""

from dataclasses import dataclass

from convattn.records import Record


@dataclass(frozen=True)
class MissingRun:
    """A missing run that a table or a figure needs.

    Attributes:
        recipe: Its recipe.
        command: What makes it.
    """

    recipe: str
    command: str


@dataclass(frozen=True)
class TargetResult:
    """Result for one table or figure.

    Attributes:
        target: Its name.
        files: Names of the files made; none where it could not be made.
        runs: Folders of the runs that it shows.
        missing: Recipes without a finished run.
        problem: Why it could not be made although the runs exist; None if nothing went wrong.
        notes: What to know when reading it.
    """

    target: str
    files: tuple[str, ...]
    runs: tuple[str, ...]
    missing: tuple[str, ...]
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every file of it was made, from all its runs."""
        return bool(self.files) and not self.missing and self.problem is None

    def summary(self) -> str:
        """Returns the result in one line of plain text, and one for each note."""
        without = [f"missing {', '.join(self.missing)}"] if self.missing else []
        without += [self.problem] if self.problem is not None else []
        verdict = "made" if self.complete else "incomplete" if self.files else "not made"
        line = f"{self.target}: {verdict}" + "".join(f"; {item}" for item in without)
        return "\n".join([line, *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True)
class Reproduction(Record):
    """Results for all tables and figures.

    Attributes:
        runs: Folder of the runs.
        scale: Scale of the recipes.
        finished: Folders of finished runs, of whatever scale and recipe.
        unfinished: Folders of runs that have no record.
        unreadable: Folders whose record cannot be read, each with the reason.
        targets: The tables and figures.
        notes: Runs whose settings are not their recipe's own, and runs that are not shown, with the reason.
        missing: Missing runs, in an order in which they can be made.
    """

    runs: str
    scale: str
    finished: tuple[str, ...]
    unfinished: tuple[str, ...]
    unreadable: tuple[str, ...]
    targets: tuple[TargetResult, ...]
    notes: tuple[str, ...]
    missing: tuple[MissingRun, ...]

    @property
    def complete(self) -> bool:
        """Whether everything was made completely."""
        return all(target.complete for target in self.targets)

    def summary(self) -> str:
        """Returns everything in a few lines of plain text."""
        others = f"{len(self.unfinished)} unfinished, {len(self.unreadable)} unreadable"
        lines = [f"{self.runs}: {len(self.finished)} finished runs of any scale, {others}; asked for: {self.scale}"]
        lines += [f"  unfinished: {folder}" for folder in self.unfinished]
        lines += [f"  unreadable: {reason}" for reason in self.unreadable]
        lines += [f"  {note}" for note in self.notes]
        lines += [target.summary() for target in self.targets]
        if self.missing:
            lines += ["missing runs, and what makes them:", *(f"  {run.command}" for run in self.missing)]
        return "\n".join(lines)
