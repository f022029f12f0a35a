"""Table 1 of the paper, its rows and ours, from training runs."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from convattn.analysis.reproduction.material import Material
from convattn.analysis.reproduction.published import PAPER, REPLICATION, TABLE1, PublishedRow
from convattn.analysis.runs import Run, RunGroup
from convattn.errors import ConvAttnError
from convattn.files import write_atomically
from convattn.models import FlopCount
from convattn.networks import load_network
from convattn.records.sheets import csv_text
from convattn.training.markdown import markdown_table


@runtime_checkable
class _CountsFlops(Protocol):
    def flops(self, image_size: int = 32) -> FlopCount: ...


@dataclass(frozen=True)
class TableRow:
    """A row of the table; None is "not measured", "not published" or "not countable"."""

    model: str  # What the row is called
    recipe: str  # The recipe that was trained
    changes: str | None = None  # What was changed in it
    accuracy: float | None = None  # Mean test accuracy over seeds, in [0, 1]
    accuracy_std: float | None = None  # Standard deviation over seeds, with n − 1; None for one seed
    n: int = 0  # Number of seeds
    seeds: str | None = None  # The seeds
    paper_accuracy: float | None = None  # The paper's, in [0, 1]
    replication_accuracy: float | None = None  # The replication's, in [0, 1]
    parameters: int | None = None  # Number of trainable parameters, counted
    paper_parameters: str | None = None  # The paper's, as printed
    flops_linear: int | None = None  # Operations per image of the linear maps, which the paper counts
    flops_total: int | None = None  # Those of mixing and scores as well
    paper_flops: str | None = None  # The paper's, as printed
    data: str | None = None  # Data set and copy
    seconds: float | None = None  # Mean time of a run, in seconds
    hardware: str | None = None  # What the runs ran on
    folders: str | None = None  # The runs' folders


def make_table1(material: Material, name: str, folder: Path) -> list[str]:
    """Writes the table as Markdown and as CSV; returns which operations could not be counted."""
    rows, problems = _table_rows(material.groups)
    write_atomically(folder / f"{name}.md", _to_markdown(rows, material.scale))
    write_atomically(folder / f"{name}.csv", _to_csv(rows))
    return problems


def _table_rows(groups: Mapping[str, Sequence[RunGroup]]) -> tuple[list[TableRow], list[str]]:
    """Makes the rows in the order of `TABLE1`, and says which networks could not be read to count their operations.

    A recipe with runs of several settings has a row for each, one without runs a row that says so.
    """
    problems: list[str] = []
    rows = [row for published in TABLE1 for row in _rows_of(published, groups.get(published.recipe, ()), problems)]
    return rows, problems


def _rows_of(published: PublishedRow, groups: Sequence[RunGroup], problems: list[str]) -> Iterator[TableRow]:
    known: dict[str, Any] = {
        "model": published.model,
        "recipe": published.recipe,
        "paper_accuracy": published.accuracy,
        "replication_accuracy": published.replication,
        "paper_parameters": published.parameters,
        "paper_flops": published.flops,
    }
    if not groups:
        yield TableRow(**known)
    for group in groups:
        runs = group.runs
        accuracies = [run.record.results["test_accuracy"] for run in runs]
        flops = _flops(group.first, problems)
        yield TableRow(
            **known,
            changes="; ".join(group.first.changes) or "none",
            accuracy=statistics.fmean(accuracies),
            accuracy_std=statistics.stdev(accuracies) if len(runs) > 1 else None,
            n=len(runs),
            seeds=" ".join(str(run.record.seed) for run in runs),
            parameters=group.first.record.parameters,
            flops_linear=flops.linear if flops else None,
            flops_total=flops.total if flops else None,
            data=group.first.record.data.name,
            seconds=statistics.fmean(run.record.seconds for run in runs),
            hardware="; ".join(sorted({_hardware(run) for run in runs})),
            folders="; ".join(str(run.folder) for run in runs),
        )


def _to_csv(rows: Sequence[TableRow]) -> str:
    """Writes the rows as CSV; what is None stays empty."""
    return csv_text([[field.name for field in fields(TableRow)], *(asdict(row).values() for row in rows)])


def _to_markdown(rows: Sequence[TableRow], scale: str) -> str:
    """Writes the rows as a page: accuracies and sizes, then what was run on what."""
    numbers = [
        [
            row.model,
            _accuracy(row),
            str(row.n),
            _percent(row.paper_accuracy),
            _percent(row.replication_accuracy),
            "–" if row.parameters is None else f"{row.parameters:,}",
            row.paper_parameters or "–",
            _operations(row.flops_linear),
            row.paper_flops or "–",
            _operations(row.flops_total),
        ]
        for row in rows
    ]
    heads = ["model", "test accuracy (%)", "n", "paper (%)", "replication (%)", "parameters", "paper's parameters"]
    heads += ["operations, linear maps", "paper's operations", "operations, all"]
    runs = [
        [
            row.model,
            f"`{row.recipe}`",
            row.changes or "–",
            row.seeds or "–",
            row.data or "–",
            _time(row.seconds),
            row.hardware or "–",
        ]
        for row in rows
        if row.n
    ]
    parts = [
        f"# Table 1, scale {scale}",
        markdown_table(heads, numbers),
        _WHAT_IS_COUNTED,
        *([_FULL_SIZE] if scale != "paper" else []),
        f"Paper: {PAPER}; one run each. Replication: {REPLICATION}.",
        "Accuracies on different copies of the data are not comparable.",
    ]
    if runs:
        columns = ["model", "recipe", "changed in the recipe", "seeds", "data", "time per run", "hardware"]
        parts += ["## Runs", markdown_table(columns, runs)]
    return "\n\n".join(parts) + "\n"


_WHAT_IS_COUNTED = (
    "Mean ± standard deviation (with n − 1) over n seeds. Operations are of one forward pass on one image, a "
    "multiplication and its addition counted as two; the paper counts the linear maps only."
)
_FULL_SIZE = (
    "**The paper's and the replication's numbers are of the full networks on CIFAR-10; the networks here are smaller "
    "and trained for a shorter time, so that only the rows measured here compare with each other.**"
)


def _flops(run: Run, problems: list[str]) -> FlopCount | None:
    """Counts the operations of a run's network, or says why that cannot be."""
    try:
        network = load_network(run.folder)
    except ConvAttnError as error:
        problems.append(f"operations of {run.folder} are not counted: {error}")
        return None
    return network.flops(run.image_size) if run.image_size and isinstance(network, _CountsFlops) else None


def _hardware(run: Run) -> str:
    hardware = run.record.hardware
    threads = f", threads: {hardware['threads']}" if "threads" in hardware else ""
    return f"{hardware.get('accelerator') or hardware.get('processor', 'unknown')}{threads}"


def _accuracy(row: TableRow) -> str:
    if row.accuracy is None:
        return "not yet measured"
    spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
    return f"{100 * row.accuracy:.2f}{spread}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.4g}"


def _operations(count: int | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 36000
        else f"{seconds / 3600:.1f} h"
    )
