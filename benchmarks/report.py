"""What was found as rows of text, for the terminal and for the page alike."""

import statistics
from collections.abc import Sequence

from benchmarks.record import CaseResult, Check, Measurement, fit_exponent, spread

_NONE = "–"
_MEBI = 2**20


def table(
    results: Sequence[CaseResult], baselines: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Words cases of one group: heads, and a row for each contender; columns that say nothing are left out."""
    rows = [_row(result, item, baselines) for result in results for item in result.measurements]
    sizes = {
        "images": {result.images for result in results},
        "N": {result.pixels for result in results},
    }
    silent = {name for name, found in sizes.items() if len(found) == 1}
    heads = [
        name for name in rows[0] if name not in silent and any(row[name] != _NONE for row in rows)
    ]
    return heads, [[row[name] for name in heads] for row in rows]


def medians(results: Sequence[CaseResult]) -> dict[str, list[tuple[int, float]]]:
    """Returns N and the median time, in seconds, of every contender at every size at which it has times."""
    points: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        for item in result.measurements:
            if item.seconds:
                points.setdefault(item.contender, []).append(
                    (result.pixels, statistics.median(item.seconds))
                )
    return points


def exponents(results: Sequence[CaseResult]) -> list[str]:
    """Words the exponents of time and memory over the number of pixels, a line for each contender."""
    lines = []
    for name, points in medians(results).items():
        held = [
            (result.pixels, float(item.extra_memory))
            for result in results
            for item in result.measurements
            if item.contender == name and item.extra_memory
        ]
        time, memory = fit_exponent(points), fit_exponent(held)
        if time is not None:
            two = points[-2:]
            last = f" (the last step N^{fit_exponent(two):.2f})" if len(points) > len(two) else ""
            held_too = "" if memory is None else f", memory ∝ N^{memory:.2f}"
            lines.append(f"{name}: time ∝ N^{time:.2f}{last}{held_too}")
    return lines


def describe_check(check: Check | None) -> str:
    """Words a check: "passed", "time only" for another function, or what is wrong and by how much."""
    if check is None:
        return "time only"
    if check.passed:
        return "passed"
    return f"FAILED: {check.worst} is off by {check.error:.2g}, allowed {check.allowed:.2g}"


def _row(result: CaseResult, item: Measurement, baselines: Sequence[str]) -> dict[str, str]:
    """Words a contender, by the heads of the columns."""
    time = spread(item.seconds) if item.seconds else None
    present = {other.contender for other in result.measurements}
    against = [name for name in baselines if name in present]
    memory = result.memory_ratio(item.contender, against[0]) if against else None
    return {
        "contender": item.contender,
        "images": f"{result.images:,}",
        "N": f"{result.pixels:,}",
        "path": item.path or _NONE,
        "check": item.skipped or describe_check(item.check),
        "ms": _NONE if time is None else _milliseconds(time.median),
        "min – max": _NONE
        if time is None
        else f"{_milliseconds(time.low)} – {_milliseconds(time.high)}",
        "ms/image": _NONE if time is None else _milliseconds(time.median / result.images),
        **{f"÷ {name}": _ratio(result.ratios(item.contender, name)) for name in against},
        "weights, MiB": _NONE if item.weights is None else short(item.weights / _MEBI),
        "call, MiB": item.memory_note
        or (_NONE if item.extra_memory is None else short(item.extra_memory / _MEBI)),
        **{
            f"memory ÷ {name}": _NONE if memory is None else f"{memory:.2f}" for name in against[:1]
        },
    }


def _ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return _NONE
    ratio = spread(ratios)
    if ratio.low == ratio.high == 1:
        return "1"
    return f"{short(ratio.median)} ({short(ratio.low)} – {short(ratio.high)})"


def _milliseconds(seconds: float) -> str:
    return short(1000 * seconds)


def short(number: float) -> str:
    """Writes a number ≥ 0 with three digits, or all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
