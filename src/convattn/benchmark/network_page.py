"""What whole networks take, as rows of text: for the terminal and for the page alike."""

from collections.abc import Sequence

from convattn.benchmark.network_record import NetworkMeasurement, NetworkResult, NetworksRecord
from convattn.benchmark.page import environment, table
from convattn.benchmark.record import spread
from convattn.benchmark.report import describe_check, milliseconds, short_number

__all__ = ["NETWORK_COLUMNS", "network_rows", "networks_page"]

NETWORK_COLUMNS = (
    "network",
    "images",
    "form",
    "paths",
    "check",
    "ms",
    "min – max",
    "÷ original",
    "MiB",
    "÷ original's",
    "all pairs, MiB",
)
"""Heads of the columns; MiB is the memory of weights and one call."""

_NONE = "–"
_NAME = "networks-speed"

_READING = """\
## How to read the table

- **planned**: every convolution is an attention layer that computes as its plan says; heads so hard that they look at
  one pixel run as the convolution that they are (path "shift").
- **separable**: every layer takes a softmax over all keys along each axis and multiplies the pixels with these
  matrices. Heads with equal scores along an axis share the matrix; keys with less attention than rounding shows are
  left out of the products, as everywhere in this library.
- **frozen**: the same after `freeze`, with all matrices made beforehand for images of this size. Without it every call
  makes them.
- **check**: "passed" means that the output for one image is within the error budget 2 (max|lo − hi| + eps · max|hi|),
  where hi is the original in float64 and lo the original in the tested dtype, from the image and from images rounded
  otherwise.
- **ms** is the median over the rounds of one call; **÷ original** is the median of the ratios of one round, with its
  extremes. The forms take turns in one process.
- **MiB** is the memory of weights and of the largest call so far, in a process of its own: resident memory beyond what
  was held before the first call, weights added.
- **all pairs** is what the weights of all pairs of queries and keys would take in float32, heads × queries × keys × 4
  bytes: of the layer that has most, and of all layers together. It is computed, not measured.
"""


def network_rows(results: Sequence[NetworkResult]) -> list[tuple[str, ...]]:
    """Words results.

    Args:
        results: What was found.

    Returns:
        A row of `NETWORK_COLUMNS` for each form.
    """
    return [_row(result, item) for result in results for item in result.measurements]


def networks_page(record: NetworksRecord) -> str:
    """Writes the page networks-speed.md.

    Args:
        record: What was found.

    Returns:
        Markdown.
    """
    verdict = "Every check passed." if record.passed else "**A check FAILED; what is wrong has no times.**"
    tiny = "\n\nNetworks and images are tiny (`--quick`): the times say nothing about speed." if record.quick else ""
    opening = (
        "# How fast are converted networks?\n\n"
        "Networks with random weights, as they are and as `network_to_attention` makes them, at inference, measured by "
        f"`convattn bench --suite networks`. {verdict}{tiny}\n"
    )
    rows = table(NETWORK_COLUMNS, network_rows(record.results))
    times = f"All times are in [{_NAME}.json]({_NAME}.json)."
    extra = {"rounds": f"{record.rounds}, of single images {_single(record)}"}
    limits = ["## What is not measured", "", *(f"- {item}" for item in record.not_covered), ""]
    return "\n".join([opening, *rows, "", _READING, *environment(record, extra), times, "", *limits])


def _single(record: NetworksRecord) -> str:
    counts = {len(item.seconds) for result in record.results if result.images == 1 for item in result.measurements}
    return str(max(counts, default=0))


def _row(result: NetworkResult, item: NetworkMeasurement) -> tuple[str, ...]:
    paths = ", ".join(f"{path} × {count}" for path, count in result.paths.get(item.contender, {}).items())
    if item.contender == "original":
        pairs, verdict = _NONE, _NONE
    else:
        pairs = f"{_mebi(result.pairs_largest)}; {_mebi(result.pairs_total)}"
        verdict = describe_check(item.check)
    head = (result.network, str(result.images), item.contender, paths or _NONE, verdict)
    ratio, memory = result.ratio(item.contender), result.memory_ratio(item.contender)
    if not item.seconds or ratio is None:
        return (*head, *(_NONE,) * (len(NETWORK_COLUMNS) - len(head)))
    time = spread(item.seconds)
    extremes = f" ({ratio.low:.2f} – {ratio.high:.2f})" if item.contender != "original" else ""
    held = item.memory_note or _NONE
    return (
        *head,
        milliseconds(time.median),
        f"{milliseconds(time.low)} – {milliseconds(time.high)}",
        f"{ratio.median:.2f}{extremes}",
        held if item.extra_memory is None else _mebi(item.weights + item.extra_memory),
        _NONE if memory is None else f"{memory:.2f}",
        pairs,
    )


def _mebi(number: int) -> str:
    return short_number(number / 2**20)
