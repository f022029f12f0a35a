"""What was found, as rows of text: for the terminal and for the page alike."""

import statistics
from collections.abc import Sequence

from convattn.benchmark.record import CaseResult, Check, Measurement, ScalingCurve, Spread, spread

__all__ = [
    "COLUMNS",
    "case_rows",
    "describe_check",
    "first_line",
    "milliseconds",
    "scaling_columns",
    "scaling_rows",
    "short_number",
]

COLUMNS = (
    "contender",
    "path",
    "check",
    "ms",
    "min – max",
    "ms/image",
    "÷ nn.Conv2d",
    "× faster than published",
    "× faster than reference",
    "MiB",
)
"""Heads of the columns of a case; MiB is the memory of a call beyond weights and images."""

_NONE = "–"


def case_rows(result: CaseResult) -> list[tuple[str, ...]]:
    """Words a case.

    Args:
        result: What was found.

    Returns:
        A row of `COLUMNS` for each contender.
    """
    return [_row(result, item) for item in result.measurements]


def scaling_columns(curves: Sequence[ScalingCurve]) -> tuple[str, ...]:
    """Returns the heads of the columns of the scaling.

    Args:
        curves: The curves, at least one.

    Returns:
        Path, check and exponent, then one for each number of pixels N.
    """
    positions = max((curve.positions for curve in curves), key=len)
    return ("path", "check", "exponent", *(f"ms, N = {number:,}" for number in positions))


def scaling_rows(curves: Sequence[ScalingCurve]) -> list[tuple[str, ...]]:
    """Words the curves of time over size.

    Args:
        curves: The curves.

    Returns:
        A row of `scaling_columns` for each: times are the median of each size, in milliseconds.
    """
    sizes = max((len(curve.positions) for curve in curves), default=0)
    rows = []
    for curve in curves:
        if curve.skipped is not None:
            rows.append((curve.path, curve.skipped, _NONE, *(_NONE,) * sizes))
            continue
        wrong = [check for check in curve.checks if not check.passed]
        verdict = describe_check((wrong or list(curve.checks))[0])
        exponent = _NONE if curve.exponent is None else f"{curve.exponent:.2f}"
        times = [milliseconds(statistics.median(times)) if times else "wrong" for times in curve.seconds]
        rows.append((curve.path, verdict, exponent, *times))
    return rows


def describe_check(check: Check | None) -> str:
    """Words a check.

    Args:
        check: The check; None where another function is computed.

    Returns:
        "passed", "time only", or what is wrong and by how much.
    """
    if check is None:
        return "time only"
    if check.passed:
        return "passed"
    return f"FAILED: {check.worst} is off by {check.error:.2g}, allowed {check.allowed:.2g}"


def _row(result: CaseResult, item: Measurement) -> tuple[str, ...]:
    memory = (item.memory_note or _NONE) if item.extra_memory is None else short_number(item.extra_memory / 2**20)
    head = (item.contender, item.path or _NONE, item.skipped or describe_check(item.check))
    if not item.seconds:
        return (*head, *(_NONE,) * (len(COLUMNS) - len(head)))
    time = spread(item.seconds)
    return (
        *head,
        milliseconds(time.median),
        f"{milliseconds(time.low)} – {milliseconds(time.high)}",
        milliseconds(time.median / result.images),
        _ratio(result.ratio(item.contender, "conv")),
        _ratio(result.ratio("published", item.contender)),
        _ratio(result.ratio("reference", item.contender)),
        memory,
    )


def _ratio(ratio: Spread | None) -> str:
    if ratio is None:
        return _NONE
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{short_number(ratio.median)} ({short_number(ratio.low)} – {short_number(ratio.high)})"


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message; what follows in torch's is for those who work on torch."""
    return str(error).strip().partition("\n")[0]


def milliseconds(seconds: float) -> str:
    """Writes a time in milliseconds, with three digits."""
    return short_number(1000 * seconds)


def short_number(number: float) -> str:
    """Writes a number ≥ 0 with three digits, or all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
