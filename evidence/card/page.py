"""What the page shows of the records; a table whose record is not there says so."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import short
from convattn.lab.study_record import difference_in_words
from convattn.lab.tables import markdown_table
from evidence.card.timing import CONVOLUTION, FLEX, PLAIN, SDPA
from evidence.results import versions_in_words
from evidence.studies import Study, TrainedRun, spread, study

NOT_MEASURED = "not measured"
HERE = Path(__file__).parent

Record = Mapping[str, Any] | None
"""Content of a stage's file; None before there is one."""

ONE_HOT, THREE = "learned axial, one-hot channels", "quadratic, three channels"

AIMS = (
    (f"quadratic layer ÷ {CONVOLUTION}", (2.0, 2.0), "layer", "quadratic, auto", None),
    (f"learned axial layer ÷ {PLAIN}", (1.35, 1.5), "content", "learned_axial, auto", None),
    (f"quadratic layer ÷ {PLAIN}", (1.35, 1.5), "content", "quadratic, auto", None),
    (f"{ONE_HOT} ÷ {SDPA}", (1.35, 1.5), "kernel", ONE_HOT, None),
    (f"{THREE} ÷ {SDPA}", (1.35, 1.5), "kernel", THREE, None),
    (f"{ONE_HOT} ÷ {FLEX}", (0.5, 0.5), "kernel", ONE_HOT, FLEX),
    (f"{THREE} ÷ {FLEX}", (0.5, 0.5), "kernel", THREE, FLEX),
)
"""In words; the largest ratio aimed at, forward and of a step; the case, the contender, and whose ratio divides."""

LEAST_RATE = 9000
"""Images a second that are aimed at in training of the paper's network."""

_SETTING = ("side", "channels", "heads", "width", "images", "precision")


def found(stage: str, folder: Path = HERE) -> Record:
    """Reads the record of a stage."""
    file = folder / f"{stage}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def trained(part: str, folder: Path = HERE) -> Study:
    """Reads the runs of a part of the plan."""
    return study(folder / "training" / part)


def where(content: Record) -> str:
    """Words where a stage ran, with which versions, and how many of its cases failed or were left out."""
    if content is None:
        return NOT_MEASURED
    rows = content["rows"]
    failed, left = (sum(name in row for row in rows) for name in ("error", "skipped"))
    device = content["hardware"].get("accelerator", content["hardware"]["processor"])
    counts = f"n = {len(rows)} cases, {failed} failed, {left} left out"
    return f"{device}; {versions_in_words(content)}; revision {content['revision']}; {counts}"


def having(content: Record, cell: str) -> list[dict[str, Any]]:
    """Lists the rows that have a cell."""
    return [] if content is None else [row for row in content["rows"] if cell in row]


def failures(*contents: Record) -> str:
    """Lists the errors of stages."""
    lines = []
    if not any(contents):
        return NOT_MEASURED
    for content in contents:
        for row in having(content, "error"):
            names = [row.get(name) for name in ("case", "contender", "network", "impl")]
            lines.append(f"- {', '.join(filter(None, names))}: `{row['error']}`")
    return "\n".join(lines) or "None."


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a table; without rows it says that nothing was measured."""
    return markdown_table(heads, rows or [[NOT_MEASURED, *["–"] * (len(heads) - 1)]])


def listing(content: Record, *cells: str) -> str:
    """Tabulates some cells of the rows that have the last of them."""
    rows = having(content, cells[-1])
    return table(cells, [[row[cell] for cell in cells] for row in rows])


def differences(content: Record) -> str:
    """Words the largest difference of the kinds of modules from the CPU."""
    rows = having(content, "difference")
    if not rows:
        return NOT_MEASURED
    worst = max(rows, key=lambda row: row["difference"] / row["size"])
    share = short(worst["difference"] / worst["size"])
    return f"{share} of the largest number ({worst['case']}; n = {len(rows)} kinds)"


def exactness(content: Record) -> str:
    """Tabulates the largest relative errors of each precision, over all paths and encodings."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in having(content, "output"):
        groups.setdefault(row["precision"], []).append(row)
    parts = ("output", "images", "parameters")
    cells = []
    for name, rows in groups.items():
        errors = [short(max(row[part] for row in rows)) for part in parts]
        repeats = sum(row["repeats"] for row in rows)
        cells.append([name, f"{len(rows)}", *errors, f"{repeats} of {len(rows)}"])
    heads = [
        "precision",
        "n",
        "output",
        "gradient of images",
        "of parameters",
        "equal in every bit",
    ]
    return table(heads, cells)


def times(content: Record, case: str) -> str:
    """Tabulates the times of a case."""
    rows = [row for row in having(content, "forward_ms") if row["case"] == case]
    setting = [name for name in _SETTING if any(name in row for row in rows)]
    heads = [*setting, "what", "path"]
    for word in ("forward", "step"):
        heads += [f"{word}, ms", "÷ first", "kernels", "MiB"]
    return table(heads, [list(_time_row(row, setting)) for row in rows])


def _time_row(row: Mapping[str, Any], setting: Sequence[str]) -> Iterator[str]:
    """Yields the cells of a row of times."""
    for name in (*setting, "contender", "path"):
        yield str(row.get(name, "–"))
    for word in ("forward", "step"):
        for name in ("ms", "ratio", "kernels", "MiB"):
            value = row.get(f"{word}_{name}")
            yield "–" if value is None else short(value)


def aims(content: Record, rate: str) -> str:
    """Tabulates what was aimed at beside what was measured.

    Args:
        content: The record of times.
        rate: Images a second in training of the paper's network, in words.
    """
    cells = []
    for words, most, case, contender, other in AIMS:
        ratios = [NOT_MEASURED] * 2
        for number, word in enumerate(("forward", "step")):
            own, base = _largest(content, case, contender, word), 1.0
            if other is not None:
                base = _largest(content, case, other, word)
            if own and base:
                ratios[number] = f"{own / base:.2f}"
        cells.append([words, f"≤ {most[0]}, {most[1]}", *ratios])
    cells.append(["images a second, the paper's network", f"≥ {LEAST_RATE:,}", "–", rate])
    return table(["what", "aim: forward, step", "forward", "step"], cells)


def layer_ratios(content: Record) -> str:
    """Words the times of a quadratic layer by those of a convolution, forward and of a step."""
    both = [_largest(content, *AIMS[0][2:4], word) for word in ("forward", "step")]
    return " and ".join(f"{ratio:.2f} times" for ratio in both) if all(both) else NOT_MEASURED


def _largest(content: Record, case: str, contender: str, word: str) -> float:
    """Returns the largest ratio of a contender in bfloat16, with 400 channels or with the most tokens; 0 without."""
    name, size = ("channels", 400) if case == "layer" else ("side", 64)
    ratios = [0.0]
    for row in having(content, f"{word}_ratio"):
        asked = row["case"] == case and row["contender"] == contender and row[name] == size
        if asked and "bfloat16" in row["precision"]:
            ratios.append(row[f"{word}_ratio"])
    return max(ratios)


def rate(runs: Study) -> str:
    """Words the images a second of the paper's network."""
    for run in runs.runs.get("sa-quadratic", {}).values():
        return f"{run.results['images_per_second']:,.0f}"
    return NOT_MEASURED


def runs_in_words(runs: Study) -> str:
    """Words where runs were trained."""
    places = set()
    for rounds in runs.runs.values():
        for run in rounds.values():
            hardware, versions = run.record["hardware"], run.record["versions"]
            device = hardware.get("accelerator", hardware["processor"])
            precision = run.record["recipe"]["training"]["precision"]
            revision = run.record["revision"]
            places.add(f"{device}, {precision}, torch {versions['torch']}, revision {revision}")
    return "; ".join(sorted(places)) or NOT_MEASURED


def accuracies(runs: Study) -> str:
    """Tabulates the networks of a part, and differences from the first between runs of one seed."""
    cells = []
    first: dict[int, TrainedRun] = {}
    for label, rounds in runs.runs.items():
        first = first or rounds
        own = list(rounds.values())
        cells.append(
            [
                f"`{label}`",
                f"{len(own)}",
                f"{len(own[0].epochs)}",
                *(_spread(own, name) for name in ("test_accuracy", "views_accuracy")),
                _less(rounds, first),
                f"{fmean(run.record['seconds'] for run in own):.0f}",
                f"{fmean(run.results['images_per_second'] for run in own):,.0f}",
                f"{max(run.record['peak_memory'] for run in own) / 2**20:,.0f}",
            ]
        )
    heads = ["network", "n", "epochs", "accuracy, one view", "two views", "less the first"]
    return table([*heads, "seconds", "images a second", "MiB"], cells)


def _spread(runs: Sequence[TrainedRun], name: str) -> str:
    """Words the mean and the standard deviation of an accuracy."""
    values = [run.results[name] for run in runs if name in run.results]
    return spread(values) if values else "–"


def _less(rounds: Mapping[int, TrainedRun], first: Mapping[int, TrainedRun]) -> str:
    """Words the differences of accuracy of equal seeds."""
    if rounds is first:
        return "–"
    seeds = sorted(rounds.keys() & first.keys())
    gaps = []
    for seed in seeds:
        one, other = (runs[seed].results["test_accuracy"] for runs in (rounds, first))
        gaps.append(one - other)
    return difference_in_words(gaps) if gaps else "–"
