"""Records of a study, which can be saved; nothing here needs torch."""

from dataclasses import dataclass, field

from convattn.records import DataRecord, Record


@dataclass(frozen=True)
class Summary:
    """A quantity over the seeds of a recipe.

    Attributes:
        n: Number of runs.
        mean: Arithmetic mean.
        deviation: Standard deviation, with n − 1; None where n is 1.
        minimum: Smallest value.
        maximum: Largest value.
    """

    n: int
    mean: float
    deviation: float | None
    minimum: float
    maximum: float


@dataclass(frozen=True)
class StudyGroup:
    """A recipe, or a variant of it, over its seeds.

    Attributes:
        label: Name of the recipe, with the values that make the variant in brackets.
        accuracy: Test accuracy, a fraction in [0, 1].
        seconds: Wall time of a run, in seconds.
        parameters: Number of trainable parameters.
    """

    label: str
    accuracy: Summary
    seconds: Summary
    parameters: Summary


@dataclass(frozen=True)
class StudyDifference:
    """Test accuracy of one recipe less that of the baseline, seed by seed.

    Attributes:
        label: The recipe.
        baseline: The recipe with which it is compared.
        seeds: Seeds that both have finished.
        values: The differences, in the order of the seeds.
        mean: Their mean.
        deviation: Their standard deviation, with n − 1; None where there is one.
        low: Lower end of the 95 % bootstrap interval of the mean; None where there is one difference.
        high: Upper end.
        worth: How far an interval over so many seeds can be trusted.
    """

    label: str
    baseline: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    worth: str


@dataclass(frozen=True)
class StudyRun:
    """A finished run, and what is needed to check it.

    Attributes:
        label: The recipe.
        seed: Its seed.
        folder: Folder of the run, inside the study's.
        record_sha256: SHA-256 of the run's record.json.
        results: Final numbers by name, as in the run's record.
        seconds: Wall time, in seconds.
        parameters: Number of trainable parameters.
        data: Name of the data set and of its copy.
        data_hashes: SHA-256 of the data's files or arrays, by name.
        hardware: Processor or accelerator, cores, threads.
        versions: Versions of Python and of the packages that computed.
        revision: Code revision, or None outside a checkout.
    """

    label: str
    seed: int
    folder: str
    record_sha256: str
    results: dict[str, float]
    seconds: float
    parameters: int
    data: str
    data_hashes: dict[str, str]
    hardware: dict[str, str]
    versions: dict[str, str]
    revision: str | None


@dataclass(frozen=True)
class StudyFailure:
    """A run that did not finish.

    Attributes:
        label: The recipe.
        seed: Its seed.
        log: File with everything that the run printed, inside the study's folder.
        reason: The last line of that file.
    """

    label: str
    seed: int
    log: str
    reason: str


@dataclass(frozen=True)
class StudyRecord(Record):
    """Results of recipes over seeds, and their differences.

    Attributes:
        command: Command that repeats the study; with the study's folder as ``-o`` it continues the study.
        seeds: Seeds that each recipe is run with.
        baseline: The recipe with which the others are compared.
        groups: Each recipe over its finished runs; recipes without finished runs are left out.
        differences: Paired differences of each other recipe to the baseline.
        runs: Every finished run.
        failures: Every run that did not finish.
        data: Which data all runs saw; None where none has finished.
        warnings: What makes the runs less comparable: different code revisions, versions or hardware.
        not_covered: What the study says nothing about.
    """

    command: str
    seeds: tuple[int, ...]
    baseline: str
    groups: tuple[StudyGroup, ...]
    differences: tuple[StudyDifference, ...]
    runs: tuple[StudyRun, ...]
    failures: tuple[StudyFailure, ...]
    data: DataRecord | None
    warnings: tuple[str, ...] = field(default=())
    not_covered: tuple[str, ...] = field(default=())
