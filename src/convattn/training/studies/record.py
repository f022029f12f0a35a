"""Records of a study, which can be saved; nothing here needs torch."""

from dataclasses import dataclass, field
from typing import ClassVar

from convattn.records import DataRecord, Record


@dataclass(frozen=True)
class Summary:
    """A quantity over the seeds of a recipe."""

    n: int  # Number of runs
    mean: float  # Arithmetic mean
    deviation: float | None  # Standard deviation, with n − 1; None where n is 1
    minimum: float  # Smallest value
    maximum: float  # Largest value


@dataclass(frozen=True)
class StudyGroup:
    """A recipe, or a variant of it, over its seeds."""

    label: str  # Name of the recipe, with the values that make the variant in brackets
    accuracy: Summary  # Accuracy on the measured images, a fraction in [0, 1]
    seconds: Summary  # Wall time of a run, in seconds
    parameters: Summary  # Number of trainable parameters


@dataclass(frozen=True)
class StudyDifference:
    """Accuracy of one recipe less that of the baseline, seed by seed."""

    label: str  # The recipe
    baseline: str  # The recipe with which it is compared
    seeds: tuple[int, ...]  # Seeds that both have finished
    values: tuple[float, ...]  # The differences, in the order of the seeds
    mean: float  # Their mean
    deviation: float | None  # Their standard deviation, with n − 1; None for a single one
    low: float | None  # Lower end of the 95 % bootstrap interval of the mean; None for a single difference
    high: float | None  # Upper end
    worth: str  # How far an interval over so many seeds can be trusted


@dataclass(frozen=True)
class StudyRun:
    """A finished run, and what is needed to check it."""

    label: str  # The recipe
    seed: int  # Its seed
    folder: str  # Folder of the run, inside the study's
    record_sha256: str  # SHA-256 of the run's record.json
    results: dict[str, float]  # Final numbers by name, as in the run's record
    seconds: float  # Wall time, in seconds
    parameters: int  # Number of trainable parameters
    data: str  # Name of the data set and of its copy
    data_hashes: dict[str, str]  # SHA-256 of the data's files or arrays, by name
    hardware: dict[str, str]  # Processor or accelerator, cores, threads
    versions: dict[str, str]  # Versions of Python and of the packages that computed
    revision: str | None  # Code revision, or None outside a checkout


@dataclass(frozen=True)
class StudyFailure:
    """A run that did not finish."""

    label: str  # The recipe
    seed: int  # Its seed
    log: str  # File with everything that the run printed, inside the study's folder
    reason: str  # The last line of that file


@dataclass(frozen=True)
class StudyCandidate:
    """A variant of a recipe in a search."""

    values: dict[str, str]  # What makes the variant, by dotted key
    accuracy: Summary | None  # Accuracy on held-out images; None where no run has finished
    failed: tuple[str, ...]  # Last line of the log of each run that did not finish; such a variant is not chosen


@dataclass(frozen=True)
class StudyChoice:
    """What a search chose for a recipe."""

    label: str  # The recipe
    values: dict[str, str]  # Values of the variant with the highest mean accuracy, by dotted key
    candidates: tuple[StudyCandidate, ...]  # Every variant, the chosen one as well


@dataclass(frozen=True)
class StudySearch:
    """A study on held-out images, by which values were chosen."""

    command: str  # Its command
    study_sha256: str  # SHA-256 of its study.json
    seeds: tuple[int, ...]  # Its seeds
    choices: tuple[StudyChoice, ...]  # One for each of its recipes


@dataclass(frozen=True)
class StudyRecord(Record):
    """Results of recipes over seeds, and their differences."""

    schema_version: ClassVar[int] = 2

    command: str  # Command that repeats the study; with the study's folder as ``-o`` it continues the study
    seeds: tuple[int, ...]  # Seeds that each recipe is run with
    baseline: str  # The recipe with which the others are compared
    groups: tuple[StudyGroup, ...]  # Each recipe over its finished runs; recipes without finished runs are left out
    differences: tuple[StudyDifference, ...]  # Paired differences of each other recipe to the baseline
    runs: tuple[StudyRun, ...]  # Every finished run
    failures: tuple[StudyFailure, ...]  # Every run that did not finish
    data: DataRecord | None  # Which data all runs saw; None where none has finished
    warnings: tuple[str, ...] = field(default=())  # Different code revisions, versions or hardware of the runs
    not_covered: tuple[str, ...] = field(default=())  # What the study says nothing about
    search: StudySearch | None = None  # The study by which values were chosen; None where none were

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        return "validation" if self.data is not None and "validation" in self.data.counts else "test"
