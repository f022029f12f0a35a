"""What a head, and a layer, is called: rules over measured numbers, and sentences made of their results.

A rule holds if the number is beyond its limit by more than chance gives once in a hundred times. Words of position say
more: at least half of what displacement explains stays on images with shuffled patches (else what is near in an image
made it so), and with untrained weights the word or the place is another (else the architecture made it so).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, isfinite, isnan, prod
from typing import Any

from convattn.heads.jackknife import Estimate, held_out
from convattn.heads.layout import times
from convattn.wording import counted

CONVOLUTIONAL = 0.9
"""Position score from which a head is a convolution."""


@dataclass(frozen=True)
class Rule:
    """A head is called by a word if its numbers reach their limits."""

    word: str  # What the head is called
    limits: dict[str, float]  # Limits by the name of the number
    meaning: str  # The rule in words
    # Name of what says where the head looks; empty if the word does not say that displacement decides
    place: str = ""

    def holds(self, head: Any, images: int) -> bool:
        """Says whether a head, measured on some images, keeps the rule; a number that is not known does not."""
        for name, limit in self.limits.items():
            groups = held_out(images) if name == "position_score" else images
            if not getattr(head, name).least(groups) >= limit:
                return False
        return True


CONVOLUTION = "convolution"
NEIGHBOUR = "neighbour"
ANYWHERE = "anywhere"
RULES = (
    Rule(
        CONVOLUTION,
        {"position_score": CONVOLUTIONAL},
        "displacement explains at least 90 % of its attention",
        place="hard_shift",
    ),
    Rule(
        "special tokens",
        {"prefix_share": 0.5},
        "at least half of its attention is on class and register tokens",
    ),
    Rule(
        NEIGHBOUR,
        {"hard_share": 0.5},
        "at least half of its attention is at one displacement",
        place="hard_shift",
    ),
    Rule(
        "window",
        {"position_score": 0.5, "nearness": 0.5},
        "displacement explains at least half of its attention, which is at most half as far as by chance",
        place="hard_shift",
    ),
    Rule(
        "line",
        {"line_share": 0.6},
        "at least 60 % of its attention is in the query's own row, or column",
        place="line",
    ),
    Rule(
        "half-plane",
        {"side_share": 0.75},
        "at least three quarters of its attention are on one side of the query",
        place="side",
    ),
    Rule(ANYWHERE, {"evenness": 0.9}, "it looks everywhere nearly alike"),
    Rule(
        "content",
        {"content_share": 0.5},
        "at least half of the variance of its attention is between images",
    ),
)
"""The rules; the first that holds gives the word."""

_BY_WORD = {rule.word: rule for rule in RULES}

MIXED = "mixed"
"""Word of a head for which no rule holds."""

MEANINGS = {
    **{rule.word: rule.meaning for rule in RULES},
    "row": "at least 60 % of its attention is in the query's own row",
    "column": "at least 60 % of its attention is in the query's own column",
    "one side": "at least three quarters of its attention are on one side of the query",
    MIXED: "none of these",
}
"""What each word means."""

_STAYS = 0.5
"""Share of a position score that stays where patches are shuffled, for a head that looks by position."""


@dataclass(frozen=True)
class HeadVerdict:
    """What one head is."""

    word: str  # "convolution", "neighbour", "window", …
    place: str  # Where it looks, such as "1 below"; empty if nowhere in particular
    tap: (
        tuple[float, ...] | None
    )  # The displacement that gets most of its attention; None if none does
    by_construction: bool  # Whether it is so without training as well

    def __str__(self) -> str:
        """Returns the word, the place, and whether the architecture does it."""
        words = f"{self.word} {self.place}".rstrip()
        return f"{words} (by construction)" if self.by_construction else words


def judge(
    head: Any,
    images: int,
    *,
    shuffled: Any = None,
    untrained: Any = None,
    control_images: int = 0,
    without_content: bool = False,
) -> HeadVerdict:
    """Says what a head is.

    Args:
        head: Its `HeadStatistics`.
        images: On how many images they were measured.
        shuffled: The same on images with shuffled patches; None if not measured.
        untrained: The same with untrained weights; None if not measured.
        control_images: On how many images these were measured.
        without_content: Whether its class has no content, so that displacement decides whatever was measured.

    Returns:
        The verdict.
    """
    rule: Rule | None = _BY_WORD[CONVOLUTION]
    built = without_content
    if not without_content:
        rule = _first_rule(head, images, shuffled, control_images)
        if untrained is not None and rule is not None and rule.place:
            same_place = getattr(untrained, rule.place) == getattr(head, rule.place)
            built = same_place and _first_rule(untrained, control_images) is rule
    hard = _BY_WORD[NEIGHBOUR].holds(head, images)
    tap = head.hard_shift if hard else None
    word = MIXED if rule is None else rule.word
    place = ""
    if word in (CONVOLUTION, NEIGHBOUR) and tap is not None:
        place = direction(tap)
    elif word == "window" and any(head.hard_shift) and not any(head.hard_shift_error):
        place = direction(head.hard_shift)
    elif word == "line":
        word = ("row", "column")[head.line]
    elif word == "half-plane":
        place = direction(head.side).removeprefix("1 ")
        word = word if len(head.side) > 1 else "one side"
    return HeadVerdict(word, place, tap, built)


def _first_rule(
    head: Any, images: int, shuffled: Any = None, control_images: int = 0
) -> Rule | None:
    """Returns the first rule that gives a head its word, also on shuffled images if it was measured there.

    A head that looks everywhere nearly alike has no word of position: what little it leaves out says nothing.
    """
    even = _BY_WORD[ANYWHERE].holds(head, images)
    for rule in RULES:
        if not rule.holds(head, images):
            continue
        if not rule.place:
            return rule
        if not even and (shuffled is None or not _goes_away(head, shuffled, control_images)):
            return rule
    return None


def _goes_away(head: Any, shuffled: Any, images: int) -> bool:
    """Says whether most of what displacement explains is gone on shuffled images, by more than chance."""
    left = shuffled.position_score
    lost = Estimate(_STAYS * head.position_score.value - left.value, left.error)
    return lost.least(held_out(images)) > 0


_NOUNS = (CONVOLUTION, NEIGHBOUR, "window", "row", "column", "half-plane")

_SIDES = {1: (("before", "after"),), 2: (("above", "below"), ("left", "right"))}


def direction(shift: Sequence[float]) -> str:
    """Names a displacement.

    Example:
        >>> direction((1.0, -2.0)), direction((0, 0)), direction((-1,))
        ('1 below, 2 left', 'itself', '1 before')
    """
    sides = _SIDES.get(len(shift))
    if sides is None:
        return str(tuple(shift))
    parts = []
    for step, (back, forth) in zip(shift, sides, strict=True):
        if step:
            parts.append(f"{abs(step):g} {forth if step > 0 else back}")
    return ", ".join(parts) or "itself"


def count_words(verdicts: Sequence[HeadVerdict]) -> str:
    """Counts heads by their words, in the order of the rules: "2 neighbours, 4 content"."""
    counts = Counter(verdict.word for verdict in verdicts)
    parts = []
    for word in filter(counts.get, MEANINGS):
        if word in _NOUNS:
            parts.append(counted(counts[word], word))
        else:
            parts.append(f"{counts[word]} {word}")
    return ", ".join(parts)


_WORTH_SAYING = 0.005
"""Share of attention on prefix tokens from which the sentence names it."""

_RESOLVED = 2
"""Standard errors that a convolution score must be above 0."""


def held_in_words(heads: Sequence[HeadVerdict], kernel: Sequence[int]) -> str:
    """Says which taps of a kernel the heads hold; empty if none."""
    taps = taps_held(heads, kernel)
    if not taps:
        return ""
    count = prod(kernel)
    return f"They hold {len(taps)} of the {count} taps of a {_sizes(kernel)} kernel ({'; '.join(taps)})"


def reach_in_words(distance: float, prefix_share: float) -> str:
    """Says how far the heads look, in cells, and what they pay to prefix tokens."""
    words = f"A query looks {distance:.1f} cells away on average"
    if prefix_share > _WORTH_SAYING:
        words += f", and pays {percent(prefix_share)} of its attention to prefix tokens"
    return words


def explained_in_words(
    score: Estimate, kernel: Sequence[int], in_controls: dict[str, Estimate]
) -> str:
    """Says what the best convolution explains, with its R² in each control; empty if it was not measured.

    If it explains as much in a control, that is all that is said: it tells nothing of what training has made.
    """
    if score.value < _RESOLVED * score.error:
        return f"How much of its output a {_sizes(kernel)} convolution explains is not resolved on these images"
    if not isfinite(score.value):
        return ""
    share = f"{100 * max(score.value, 0):.0f}"
    if isfinite(score.error):
        share += f" ± {100 * score.error:.0f}"
    parts = [f"{percent(control.value)} with {name}" for name, control in in_controls.items()]
    controls = ", ".join(parts)
    for control in in_controls.values():
        errors = [one.error for one in (score, control) if isfinite(one.error)]
        if score.value - control.value <= _RESOLVED * hypot(*errors):
            return (
                f"The best {_sizes(kernel)} convolution explains {share} % of the layer's output, and as much in a"
                f" control ({controls})"
            )
    words = (
        f"Whatever its heads are, the best {_sizes(kernel)} convolution explains at least {share} %"
        " of the layer's output"
    )
    return f"{words} ({controls})" if controls else words


def _sizes(kernel: Sequence[int]) -> str:
    if len(kernel) == 1:
        return f"{kernel[0]}-tap"
    return times(kernel)


def headline(heads: Sequence[HeadVerdict], untrained: Sequence[HeadVerdict]) -> str:
    """Says how many heads are convolutions, whether the architecture does it, and what the others are."""
    convolutions = [head for head in heads if head.word == CONVOLUTION]
    others = [head for head in heads if head.word != CONVOLUTION]
    are = "is a convolution" if 1 in (len(convolutions), len(heads)) else "are convolutions"
    line = f"{len(convolutions)} of {counted(len(heads), 'head')} {are}"
    if untrained and convolutions:
        count = sum(head.word == CONVOLUTION for head in untrained)
        line += f", and {count} of {len(untrained)} with untrained weights"
    if convolutions and all(head.by_construction for head in convolutions):
        line += ": the architecture does it"
    return f"{line}; {count_words(others)}" if others else line


def taps_held(heads: Sequence[HeadVerdict], kernel: Sequence[int]) -> tuple[str, ...]:
    """Names the taps of a kernel that get most of the attention of a head on a grid of as many axes."""
    held: dict[str, None] = {}
    for head in heads:
        if head.tap is None or len(head.tap) != len(kernel):
            continue
        inside = [2 * abs(step) < taps for step, taps in zip(head.tap, kernel, strict=True)]
        if all(inside):
            held[direction(head.tap)] = None
    return tuple(held)


def percent(share: float) -> str:
    """Writes a share in per cent, at least 0 and at most 100."""
    if isnan(share):
        return "an unknown share"
    return f"{100 * min(max(share, 0), 1):.0f} %"
