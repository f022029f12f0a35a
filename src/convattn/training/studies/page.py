"""Writes the record of a study as a page and as a table."""

from convattn.records.sheets import csv_text
from convattn.training.markdown import markdown_table
from convattn.training.studies.record import StudyDifference, StudyRecord, Summary

_QUANTITIES = ("accuracy", "seconds", "parameters")
_MEASURES = ("mean", "deviation", "minimum", "maximum")


def study_page(record: StudyRecord) -> str:
    """Writes a study as Markdown: recipes, differences, what is wrong, and every run."""
    parts = ["# Study", f"`{record.command}`", *_search(record), *_groups(record), *_differences(record)]
    if record.failures:
        rows = ([item.label, str(item.seed), item.log, _code(item.reason)] for item in record.failures)
        parts += ["## Failed", markdown_table(("recipe", "seed", "log", "last line"), rows)]
    if record.warnings:
        parts += ["## Warnings", "\n".join(f"- {item}" for item in record.warnings)]
    parts += [*_runs(record), "## Not covered", "\n".join(f"- {item}" for item in record.not_covered)]
    return "\n\n".join(parts) + "\n"


def study_csv(record: StudyRecord) -> str:
    """Writes a study as comma-separated values, a row for each recipe: accuracies as fractions, times in seconds.

    A number that does not exist, such as the deviation of one run, is empty.
    """
    ends = ("n", "mean", "deviation", "low", "high")
    columns = [f"{quantity}_{measure}" for quantity in _QUANTITIES for measure in _MEASURES]
    rows: list[list[object]] = [["recipe", "n", *columns, "baseline", *(f"difference_{end}" for end in ends)]]
    differences = {item.label: item for item in record.differences}
    for group in record.groups:
        summaries = [getattr(group, quantity) for quantity in _QUANTITIES]
        numbers = [getattr(summary, measure) for summary in summaries for measure in _MEASURES]
        found = differences.get(group.label)
        rest = (found.baseline, len(found.seeds), found.mean, found.deviation, found.low, found.high) if found else ()
        rows.append([group.label, group.accuracy.n, *numbers, *(rest or [None] * 6)])
    return csv_text(rows)


def _search(record: StudyRecord) -> list[str]:
    """Returns the table of what a search tried and chose for the recipes of this study."""
    if record.search is None:
        return []
    here = {run.label.partition("[")[0] for run in record.runs}
    rows = [
        [
            choice.label,
            ", ".join(f"{key}={value}" for key, value in item.values.items()),
            "none" if item.accuracy is None else _spread(item.accuracy),
            "; ".join(map(_code, item.failed)) or ("**chosen**" if item.values == choice.values else ""),
        ]
        for choice in record.search.choices
        if choice.label in here
        for item in choice.candidates
    ]
    seeds, digest = ", ".join(map(str, record.search.seeds)), _code(record.search.study_sha256)
    note = (
        f"Chosen by the highest mean accuracy on held-out training images, seeds {seeds}, by "
        f"{_code(record.search.command)} (SHA-256 of its study.json: {digest})."
    )
    return ["## Choice", markdown_table(("recipe", "values", "validation accuracy", ""), rows), note]


def _groups(record: StudyRecord) -> list[str]:
    rows = (
        [
            f"{group.label} (baseline)" if group.label == record.baseline else group.label,
            str(group.accuracy.n),
            _spread(group.accuracy),
            f"{group.accuracy.minimum:.2%} to {group.accuracy.maximum:.2%}",
            f"{group.seconds.mean:,.1f}" + (f" ± {group.seconds.deviation:,.1f}" if group.seconds.deviation else ""),
            f"{group.parameters.mean:,.0f}",
        ]
        for group in record.groups
    )
    heads = ("recipe", "n", f"{record.measured} accuracy", "range", "seconds", "parameters")
    note = "Mean ± standard deviation (n − 1) over seeds."
    return ["## Recipes", markdown_table(heads, rows), note] if record.groups else []


def _differences(record: StudyRecord) -> list[str]:
    """Returns the table of differences, and how far its intervals can be trusted."""
    if not record.differences:
        return []
    rows = (
        [
            item.label,
            ", ".join(map(str, item.seeds)),
            ", ".join(f"{100 * value:+.2f}" for value in item.values),
            f"{100 * item.mean:+.2f}" + ("" if item.deviation is None else f" ± {100 * item.deviation:.2f}"),
            _interval(item),
        ]
        for item in record.differences
    )
    heads = ("recipe", "seeds", "differences", "mean", "95 % interval")
    worth = "\n".join(f"- {text}" for text in sorted({item.worth for item in record.differences}))
    title = f"## Differences to {record.baseline}"
    note = (
        f"{record.measured.capitalize()} accuracy less the baseline's with the same seed, in percentage points. The "
        "interval of the mean is the percentile bootstrap's (9,999 resamples, seed 0); with n seeds it cannot be wider "
        "than the range of the differences."
    )
    return [title, markdown_table(heads, rows), note, worth]


def _runs(record: StudyRecord) -> list[str]:
    """Returns the table of runs, and the data that all of them saw."""
    rows = (
        [
            run.folder,
            f"{run.results[f'{record.measured}_accuracy']:.2%}",
            f"{run.seconds:,.1f}",
            run.hardware.get("accelerator", run.hardware.get("processor", "unknown")),
            run.hardware.get("threads", "unknown"),
            _code(run.revision or "none"),
            _code(run.record_sha256),
        ]
        for run in record.runs
    )
    heads = (
        "folder",
        f"{record.measured} accuracy",
        "seconds",
        "hardware",
        "threads",
        "revision",
        "SHA-256 of record.json",
    )
    if record.data is None:
        return ["No run has finished."]
    hashes = "\n".join(f"- {_code(value)} {name}" for name, value in record.data.hashes.items())
    return ["## Runs", markdown_table(heads, rows), f"Data of every run: {record.data.name}, SHA-256:", hashes]


def _spread(summary: Summary) -> str:
    """Formats a mean with its deviation, in percent."""
    deviation = "" if summary.deviation is None else f" ± {100 * summary.deviation:.2f}"
    return f"{100 * summary.mean:.2f}{deviation} %"


def _interval(item: StudyDifference) -> str:
    return "none" if item.low is None or item.high is None else f"{100 * item.low:+.2f} to {100 * item.high:+.2f}"


def _code(text: str) -> str:
    """Returns text that Markdown shows as it is."""
    return f"`{text.replace('`', chr(39))}`"
