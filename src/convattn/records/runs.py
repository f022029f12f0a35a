"""Records of a training run and of its data."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from convattn.records.record import Record


@dataclass(frozen=True)
class DataRecord(Record):
    """Which data a run saw."""

    name: str  # Data set and copy, for instance "cifar10, JPEG quality 75"
    source: str  # Where it was read from, without private paths
    hashes: dict[str, str]  # SHA-256 of each file or array, by its name
    counts: dict[str, int]  # Number of images by split
    split: str  # How the splits were made


@dataclass(frozen=True)
class RunRecord(Record):
    """Everything that is needed to read, repeat and check a training run.

    Attributes:
        name: Name of the recipe.
        claim: What the recipe says it shows.
        command: Command that repeats the run.
        recipe: The recipe as resolved, overrides included.
        seed: Seed of all random numbers.
        data: Which data the run saw.
        parameters: Number of trainable parameters.
        results: Final numbers by name; accuracies are fractions in [0, 1]. Those of held-out training images are called
            "validation_accuracy" and "validation_loss", and then there are none of test images.
        seconds: Wall time of training and evaluation, in seconds.
        peak_memory: Peak memory of the process (CPU) or of the device (GPU), in bytes.
        memory_estimate: What was expected of each device before the first step, in bytes; libraries are not in it.
        energy: Energy of the device over the run, in joules; None where it does not report it.
        resumed: How often the run was resumed from a checkpoint.
        hardware: Processor or accelerator, cores, memory.
        versions: Versions of Python and of the packages that computed.
        started: Start, ISO 8601 in UTC.
        revision: Code revision (git), or None outside a checkout.
        not_covered: What the run says nothing about.
    """

    schema_version: ClassVar[int] = 2

    name: str
    claim: str
    command: str
    recipe: dict[str, Any]
    seed: int
    data: DataRecord
    parameters: int
    results: dict[str, float]
    seconds: float
    peak_memory: int
    memory_estimate: int
    energy: float | None
    resumed: int
    hardware: dict[str, str]
    versions: dict[str, str]
    started: str
    revision: str | None
    not_covered: tuple[str, ...] = field(default=())

    @property
    def measured(self) -> str:
        """Which images were measured: "test", or "validation" for held-out training images."""
        return "validation" if "validation_accuracy" in self.results else "test"

    @property
    def accuracy(self) -> float:
        """Share of the measured images classified correctly after the last epoch, in [0, 1]."""
        return self.results[f"{self.measured}_accuracy"]
