"""What came of networks with trained weights: conversions, the task's outputs, controls, and where it ran."""

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.record import Check
from convattn.record import Record


@dataclass(frozen=True)
class Decision:
    """Decisions of one kind: how many there are, and how many differ from those of the network as it is."""

    name: str
    total: int
    changed: int


@dataclass(frozen=True)
class Network:
    """A network of a package; `kernel` is that with most taps."""

    name: str
    parameters: int
    kernel: tuple[int, ...]


@dataclass(frozen=True)
class Conversion:
    """One conversion of one network, as its certificate says; `worst_layer` is the largest error ÷ allowed error."""

    network: str
    layers: int
    heads: int
    paths: dict[str, int]
    exact: bool
    passed: bool
    error: float
    rounding: float
    largest: float
    worst_layer: float
    shapes: tuple[tuple[int, ...], ...]
    left_alone: tuple[str, ...]
    returned: bool | None


@dataclass(frozen=True)
class Outcome:
    """The task done in one way; a check's `worst` is the output's name."""

    way: str
    conversions: tuple[Conversion, ...]
    checks: tuple[Check, ...]
    decisions: tuple[Decision, ...]
    words: str

    @property
    def passed(self) -> bool:
        """Whether every conversion and every output passed, and every decision stayed."""
        return (
            all(one.passed and one.returned is not False for one in self.conversions)
            and all(check.passed for check in self.checks)
            and not any(decision.changed for decision in self.decisions)
        )


@dataclass(frozen=True)
class Control:
    """A converted network with one weight turned about.

    Attributes:
        network: The network.
        layer: The layer whose largest weight changed its sign.
        share_of_budget: How far off the network's outputs are at least, in units of their budget.
        rejected: Whether that is beyond the budget.
        in_the_task: The largest error ÷ budget of the task's outputs with this network; infinite where they have
            another shape, or the task does not run to its end.
    """

    network: str
    layer: str
    share_of_budget: float
    rejected: bool
    in_the_task: float


@dataclass(frozen=True)
class TaskResult(Record):
    """What came of one task.

    Attributes:
        name: Name of the task.
        missing: Why it was not done; empty where it was.
        revision: Code revision (git), or None outside a checkout.
        seconds: Wall time, in seconds.
        largest_softmax: Bytes that the softmax of a layer might take.
        networks: The networks.
        words: What they found as they are, in a sentence.
        outcomes: What came of each way.
        controls: What came of wrong copies.
    """

    schema_version: ClassVar[int] = 1

    name: str
    missing: str
    revision: str | None = None
    seconds: float = 0.0
    largest_softmax: int = 0
    networks: tuple[Network, ...] = ()
    words: str = ""
    outcomes: tuple[Outcome, ...] = ()
    controls: tuple[Control, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every way passed and every wrong network was rejected; also where nothing was done."""
        return all(one.passed for one in self.outcomes) and all(
            one.rejected for one in self.controls
        )


@dataclass(frozen=True)
class RealWeightsRecord(Record):
    """A run of all tasks."""

    schema_version: ClassVar[int] = 1

    tasks: tuple[TaskResult, ...]
    command: str
    started: str
    hardware: dict[str, str]
    versions: dict[str, str]
    passed: bool
