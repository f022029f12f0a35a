"""A layer in plain words."""

import math
from collections.abc import Sequence

from convattn.records.head_report import Control, Estimate, HeadStatistics, LayerStatistics, mean_of


def layer_sentence(
    grid: tuple[int, ...], measured: LayerStatistics, controls: Sequence[Control], kernel_size: int
) -> str:
    """Says of a layer what its heads do, how far they look, and what a convolution explains; with the controls."""
    heads = measured.heads
    hard = [head for head in heads if head.hard]
    kernel = " × ".join([str(kernel_size)] * len(grid)) if len(grid) > 1 else f"{kernel_size}-tap"
    parts = []
    if hard:
        taps = round(measured.hard_tap_coverage.value * kernel_size ** len(grid))
        look, cover = ("looks", "covers") if len(hard) == 1 else ("look", "together they cover")
        parts.append(
            f"{len(hard)} of {_heads(len(heads))} {look} mostly at one fixed displacement, and {cover} {taps} of the"
            f" {kernel_size ** len(grid)} taps of a {kernel} kernel"
        )
    else:
        most = max(head.hard_share.value for head in heads)
        none = f"None of {_heads(len(heads))} looks" if len(heads) > 1 else "The only head does not look"
        parts.append(f"{none} mostly at one fixed displacement (at most {_percent(most)} of its attention)")
    content = _percent(mean_of([head.content_share for head in heads]))
    parts.append(f"{_by_position(heads)}, and {content} of the variance of the weights comes from the content")
    parts.append(f"A query looks {mean_of([head.distance for head in heads]):.1f} cells away on average")
    prefix = mean_of([head.prefix_share for head in heads])
    if prefix > 0.005:
        parts[-1] += f", and pays {_percent(prefix)} of its attention to prefix tokens"
    score = measured.convolution_score
    if math.isfinite(score.value):
        lone = [f"{_percent(item.measured.convolution_score.value)} with {item.name}" for item in controls]
        beside = f" ({', '.join(lone)})" if lone else ""
        parts.append(f"The best {kernel} convolution explains at least {_share(score)} of its output{beside}")
    return ". ".join(parts) + "."


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _by_position(heads: Sequence[HeadStatistics]) -> str:
    if all(math.isnan(head.position_score.value) for head in heads):
        return "It is not known which heads attend by position alone"
    count = _count(sum(head.convolutional for head in heads), len(heads))
    return f"{count} by position alone (position score of at least 0.9)"


def _count(number: int, of: int) -> str:
    if number == of:
        return "All heads attend" if of > 1 else "It attends"
    return "No head attends" if number == 0 else f"{number} attend{'s' if number == 1 else ''}"


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * min(max(share, 0), 1):.0f} %"


def _share(score: Estimate) -> str:
    spread = f" ± {100 * score.error:.0f}" if math.isfinite(score.error) else ""
    return f"{100 * max(score.value, 0):.0f}{spread} %"
