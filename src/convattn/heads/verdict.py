"""What a head, and a layer, is called: rules over measured numbers, and a sentence made of their results."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt
from typing import Any

from convattn.wording import counted

CONVOLUTIONAL = 0.9
"""Position score from which a head counts as a convolution."""


@dataclass(frozen=True)
class Rule:
    """A head is called `name` if one of its numbers passes a limit."""

    name: str  # What the head is called
    number: str  # Name of the number, such as "position_score"
    passes: Callable[[float, float], bool]  # Compares the number with the limit
    limit: float

    def holds(self, head: Any) -> bool:
        """Says whether a head's number passes; a number that is not known (nan) does not."""
        return self.passes(getattr(head, self.number).value, self.limit)


RULES = {
    rule.name: rule
    for rule in (
        Rule("convolutional", "position_score", ge, CONVOLUTIONAL),
        Rule("hard", "hard_share", gt, 0.5),
    )
}
"""The rules for heads, by name."""

_WORTH_SAYING = 0.005
"""Share of attention on prefix tokens from which the sentence names it."""

_RESOLVED = 2
"""Standard errors that a convolution score must be above 0."""


@dataclass(frozen=True)
class LayerVerdict:
    """What the heads of a layer are together."""

    heads: int  # Number of heads
    hard: int  # How many are hard
    largest_share: float  # Largest share of a head's attention at one displacement
    kernel: tuple[int, ...]  # Taps along each axis of the kernel that the layer is compared with
    tap_coverage: float  # Share of its taps that hard heads look at
    convolutional: int  # How many heads are convolutional
    unknown: int  # Of how many the position score is not known
    content_share: float  # Mean share of the variance of the weights that comes from content
    distance: float  # Mean distance, in cells
    prefix_share: float  # Mean share of attention on prefix tokens
    convolution: float  # R² of the best convolution; nan if it was not measured
    convolution_error: float  # Its standard error; nan if it is not known
    in_controls: dict[str, float]  # R² of the best convolution in each control

    def sentence(self) -> str:
        """Says what the heads do, how far they look, and what a convolution explains."""
        parts = [self._fixed(), self._positional(), self._reach(), self._explained()]
        return " ".join(f"{part}." for part in parts if part)

    def _fixed(self) -> str:
        if not self.hard:
            none = "The only head does not look"
            if self.heads > 1:
                none = f"None of {self.heads} heads looks"
            most = percent(self.largest_share)
            return f"{none} mostly at one fixed displacement (at most {most} of its attention)"
        covering = "look mostly at one fixed displacement, and together they cover"
        if self.hard == 1:
            covering = "looks mostly at one fixed displacement, and covers"
        heads = counted(self.heads, "head")
        taps = math.prod(self.kernel)
        covered = f"{round(self.tap_coverage * taps)} of the {taps} taps"
        return f"{self.hard} of {heads} {covering} {covered} of a {self._kernel_words()} kernel"

    def _positional(self) -> str:
        content = percent(self.content_share)
        return f"{self._by_position()}, and {content} of the variance of the weights comes from the content"

    def _by_position(self) -> str:
        if self.unknown == self.heads:
            return "It is not known which heads attend by position alone"
        attending = f"{self.convolutional} attend"
        if self.convolutional == self.heads:
            attending = "It attends" if self.heads == 1 else "All heads attend"
        elif self.convolutional == 0:
            attending = "No head attends"
        elif self.convolutional == 1:
            attending = "1 attends"
        unknown = ""
        if self.unknown:
            unknown = f", not known of {counted(self.unknown, 'head')}"
        return (
            f"{attending} by position alone (position score of at least {CONVOLUTIONAL}{unknown})"
        )

    def _reach(self) -> str:
        reach = f"A query looks {self.distance:.1f} cells away on average"
        if self.prefix_share > _WORTH_SAYING:
            reach += f", and pays {percent(self.prefix_share)} of its attention to prefix tokens"
        return reach

    def _explained(self) -> str:
        kernel = self._kernel_words()
        if self.convolution < _RESOLVED * self.convolution_error:
            return f"How much of its output a {kernel} convolution explains is not resolved on these images"
        if not math.isfinite(self.convolution):
            return ""
        share = f"{100 * max(self.convolution, 0):.0f}"
        if math.isfinite(self.convolution_error):
            share += f" ± {100 * self.convolution_error:.0f}"
        told = f"The best {kernel} convolution explains at least {share} % of its output"
        controls = [f"{percent(score)} with {name}" for name, score in self.in_controls.items()]
        return f"{told} ({', '.join(controls)})" if controls else told

    def _kernel_words(self) -> str:
        if len(self.kernel) == 1:
            return f"{self.kernel[0]}-tap"
        return " × ".join(map(str, self.kernel))


def percent(share: float) -> str:
    """Writes a share in per cent, at least 0 and at most 100."""
    if math.isnan(share):
        return "an unknown share"
    return f"{100 * min(max(share, 0), 1):.0f} %"
