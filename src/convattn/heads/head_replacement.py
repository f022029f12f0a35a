"""Which heads of a network now run as convolutions, and what that changed."""

from dataclasses import dataclass
from typing import ClassVar

from convattn.convert.fit import Refinement
from convattn.record import Record
from convattn.wording import counted


@dataclass(frozen=True)
class ReplacedHead:
    """One head of a network, and what became of it."""

    layer: str  # Dotted name of the layer
    head: int  # Number in the layer, from 0
    score: float  # Position score R² in the report
    replaced: bool  # Whether it averages by displacement now
    box: tuple[int, ...]  # Taps along each axis of the kernel that it runs in; empty if it was left
    reason: str  # Why it was replaced or left


@dataclass(frozen=True)
class ReplacementTrial:
    """The network before and after, on images."""

    images: int  # Number of images
    outputs: int  # Number of numbers in the output for one image
    largest_change: float  # Largest difference of an output
    relative_change: float  # Root of the mean squared difference over that of the outputs before
    predictions: int  # Number of predictions: largest entries along the output's last axis
    predictions_changed: int  # How many of them are another class now
    milliseconds_before: float  # Time for an image, median over rounds
    milliseconds_after: float
    rounds: int  # Turns, before and after in alternation
    batch: int  # Images at once
    threads: int  # Threads that computed

    @property
    def speedup(self) -> float:
        """Time before over time after."""
        return self.milliseconds_before / self.milliseconds_after


@dataclass(frozen=True)
class HeadReplacement(Record):
    """What `replace_convolutional_heads` has made of a network.

    Attributes:
        model: Class of the network.
        threshold: Position score from which heads were replaced; nan if they were named.
        heads: All heads of the report.
        layers_without_softmax: Layers of which all heads were replaced; they hold no query, key and softmax.
        parameters: Number of parameters now.
        parameters_before: Number of parameters before.
        refinement: How the output matrices were fitted anew; None if they were kept.
        trial: The network before and after, on images; None if none were given.
        not_covered: What this says nothing about.
    """

    schema_version: ClassVar[int] = 2

    model: str
    threshold: float
    heads: tuple[ReplacedHead, ...]
    layers_without_softmax: tuple[str, ...]
    parameters: int
    parameters_before: int
    refinement: Refinement | None
    trial: ReplacementTrial | None
    not_covered: tuple[str, ...] = ()

    @property
    def replaced(self) -> tuple[ReplacedHead, ...]:
        """The heads that were replaced."""
        return tuple(head for head in self.heads if head.replaced)

    @property
    def left(self) -> tuple[ReplacedHead, ...]:
        """The heads that were left as they are."""
        return tuple(head for head in self.heads if not head.replaced)

    def summary(self) -> str:
        """Returns the record in a few lines of plain text."""
        chosen = "named by the caller" if self.threshold != self.threshold else f"R² ≥ {self.threshold:g}"
        without = counted(len(self.layers_without_softmax), "layer")
        lines = [
            f"head replacement: {len(self.replaced)} of {counted(len(self.heads), 'head')} of {self.model} ({chosen})",
            f"  softmax         none left in {without}",
            f"  parameters      {self.parameters_before:,} before, {self.parameters:,} now",
        ]
        if self.refinement is not None:
            lines += [f"  {line}" for line in self.refinement.summary().splitlines()]
        if (trial := self.trial) is not None:
            changed = f"{trial.predictions_changed} of {counted(trial.predictions, 'prediction')} changed"
            images = counted(trial.images, "image")
            times = f"{trial.milliseconds_before:.3g} ms before, {trial.milliseconds_after:.3g} ms now"
            lines += [
                f"  outputs         changed by {trial.relative_change:.2%}, {changed}, {images}",
                f"  an image        {times}: {trial.speedup:.2f} times as fast, {counted(trial.threads, 'thread')}",
            ]
        reasons = {head.reason for head in self.left}
        for reason in sorted(reasons):
            count = sum(head.reason == reason for head in self.left)
            lines.append(f"  left            {counted(count, 'head')}: {reason}")
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)
