"""What a benchmark of whole networks found."""

import statistics
from dataclasses import dataclass

from convattn.benchmark.record import Check, Spread, spread
from convattn.records import Record

__all__ = ["NetworkMeasurement", "NetworkResult", "NetworksRecord"]


@dataclass(frozen=True)
class NetworkMeasurement:
    """One form of a network on images of one size.

    Attributes:
        contender: "original", "planned" (attention as the layers choose) or "separable" (softmax along each axis).
        check: Comparison with the original in float64; None of the original.
        seconds: Wall time of each round's call, in seconds; empty where the check failed.
        weights: Bytes of parameters and buffers.
        extra_memory: Largest memory of a call beyond what was held before the first, in bytes; None where not measured.
        memory_note: Why it could not be measured; empty where it was, or was not asked for.
    """

    contender: str
    check: Check | None
    seconds: tuple[float, ...]
    weights: int
    extra_memory: int | None
    memory_note: str


@dataclass(frozen=True)
class NetworkResult:
    """The forms of one network with one number of images; round i of all of them ran one after another.

    Attributes:
        name: Name of the case.
        network: Name of the network.
        size: Rows and columns of the images.
        images: Number of images in a call.
        layers: Number of attention layers.
        paths: How many of them compute in what way, by contender and path.
        pairs_largest: Bytes of the weights of all pairs of queries and keys, in float32, of the layer that has most.
        pairs_total: The same of all layers together.
        measurements: One per contender.
    """

    name: str
    network: str
    size: int
    images: int
    layers: int
    paths: dict[str, dict[str, int]]
    pairs_largest: int
    pairs_total: int
    measurements: tuple[NetworkMeasurement, ...]

    @property
    def passed(self) -> bool:
        """Whether no form is wrong."""
        return all(item.check is None or item.check.passed for item in self.measurements)

    def ratio(self, contender: str) -> Spread | None:
        """Divides the times of a form by those of the original, round by round.

        Args:
            contender: Name of the form.

        Returns:
            Median and extremes; None where there are no times.
        """
        times = {item.contender: item.seconds for item in self.measurements}
        above, below = times.get(contender, ()), times.get("original", ())
        return spread([a / b for a, b in zip(above, below, strict=True)]) if above and below else None

    def memory_ratio(self, contender: str) -> float | None:
        """Divides the memory of a form, weights and largest extra memory, by that of the original.

        Args:
            contender: Name of the form.

        Returns:
            The quotient; None where one of them was not measured.
        """
        held = {item.contender: item for item in self.measurements}
        upper, lower = held[contender], held["original"]
        if upper.extra_memory is None or lower.extra_memory is None:
            return None
        return (upper.weights + upper.extra_memory) / (lower.weights + lower.extra_memory)

    def median(self, contender: str) -> float | None:
        """Returns the median time of a form, in seconds; None where there is none."""
        times = next(item.seconds for item in self.measurements if item.contender == contender)
        return statistics.median(times) if times else None


@dataclass(frozen=True)
class NetworksRecord(Record):
    """A run of the suite "networks".

    Attributes:
        quick: Whether networks and images were tiny, so that times say nothing about speed.
        device: Where was computed.
        dtype: Dtype of weights and images.
        rounds: Number of rounds; of single images twenty times as many.
        results: Results by network and number of images.
        command: Command that repeats the run.
        started: Start, ISO 8601 in UTC.
        seconds: Wall time of everything, in seconds.
        hardware: Processor, cores, threads.
        versions: Versions of Python and of the packages that computed.
        revision: Code revision (git), or None outside a checkout.
        passed: Whether every check passed.
        not_covered: What the run says nothing about.
    """

    quick: bool
    device: str
    dtype: str
    rounds: int
    results: tuple[NetworkResult, ...]
    command: str
    started: str
    seconds: float
    hardware: dict[str, str]
    versions: dict[str, str]
    revision: str | None
    passed: bool
    not_covered: tuple[str, ...]
