"""The page of a suite: tables, how to read them, environment, how to repeat, and what is not measured."""

from collections.abc import Iterable, Sequence

from benchmarks.record import BenchmarkRecord, CaseResult
from benchmarks.report import exponents, table
from benchmarks.suites import find_suite
from convattn.lab.tables import markdown_table


def suite_page(record: BenchmarkRecord) -> str:
    """Writes the page of a record, in Markdown; every number comes from the record."""
    suite = find_suite(record.suite)
    verdict = (
        "Every check passed."
        if record.passed
        else "**A check FAILED; what is wrong has no times.**"
    )
    tiny = (
        "\n\nThese sizes are tiny (`--quick`): the times say nothing about speed."
        if record.quick
        else ""
    )
    opening = (
        f"# {suite.title}\n\n"
        "What computes the same function is first held against float64; then all take turns in one process. "
        f"{verdict}{tiny}\n"
    )
    groups = [_group(name, results, record) for name, results in record.groups().items()]
    limits = ["## What is not measured", "", *_items(record.not_covered), ""]
    return "\n".join(
        [
            opening,
            "## How to read the tables",
            "",
            suite.reading,
            *groups,
            *_environment(record),
            *limits,
        ]
    )


def figure_of(results: Sequence[CaseResult]) -> str | None:
    """Names the figure of a group, without ending; None where all its cases have the same number of pixels."""
    timed = {
        result.pixels for result in results if any(item.seconds for item in result.measurements)
    }
    return results[0].group if len(timed) > 1 else None


def _group(name: str, results: Sequence[CaseResult], record: BenchmarkRecord) -> str:
    title, figure = results[0].title, figure_of(results)
    notes: dict[str, str] = {}
    for result in results:
        for item in result.measurements:
            if item.note:
                notes[item.contender] = item.note
    parts = [f"## {name}", f"{title[:1].upper()}{title[1:]}."]
    if figure:
        parts.append(f"![Time against the number of pixels]({figure}.png)")
    parts.append(markdown_table(*table(results, find_suite(record.suite).baselines)))
    parts.append("\n".join(f"- {contender}: {note}" for contender, note in notes.items()))
    fits = exponents(results) if figure and not record.quick else []
    if fits:
        parts += ["Least-squares fits over these sizes:", "\n".join(f"- {fit}" for fit in fits)]
    return "\n\n".join(parts) + "\n"


def _environment(record: BenchmarkRecord) -> list[str]:
    times = sorted(
        {len(item.seconds) for case in record.cases for item in case.measurements}
        - {0, record.rounds}
    )
    more = f", of some cases {', '.join(map(str, times))}" if times else ""
    lines = {
        **{name.replace("_", " "): value for name, value in record.hardware.items()},
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "dtype": record.dtype + (", TensorFloat-32 off" if record.dtype == "float32" else ""),
        "rounds": f"{record.rounds}{more}",
        "started": record.started,
        "time of everything": f"{record.seconds:.0f} s",
        "revision": record.revision or "unknown",
    }
    file = f"{find_suite(record.suite).file}.json"
    listed = _items(f"{name}: {value}" for name, value in lines.items())
    link = f"All times are in `{file}`."
    return ["## How it was measured", "", f"    {record.command}", "", *listed, "", link, ""]


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts]
