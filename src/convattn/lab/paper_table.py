"""Table 1 of the paper: its rows, and the same rows measured in training runs."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convattn.errors import ConvAttnError
from convattn.lab.page_templates import fill_template
from convattn.lab.runs import Run, RunGroup, RunGroups
from convattn.models import FlopCount
from convattn.models.classifier import ImageClassifier
from convattn.networks import load_network


class PublishedRow(NamedTuple):
    """A row of table 1, one of the paper's or one that the paper leaves open."""

    recipe: str  # Recipe that trains the row's network
    model: str  # What the row is called
    # The paper's test accuracy on CIFAR-10, one run, in [0, 1]; None where the paper has none
    paper_accuracy: float | None = None
    paper_parameters: str | None = None  # The paper's number of parameters, as printed
    # The paper's number of operations, as printed; of the linear maps only
    paper_flops: str | None = None
    # Test accuracy of the replication, in [0, 1]; None where it has none
    replication_accuracy: float | None = None


TABLE1 = (
    PublishedRow("resnet18", "ResNet18", 0.938, "11.2M", "1.1B", 0.9463),
    PublishedRow("sa-quadratic", "SA quadratic", 0.938, "12.1M", "6.2B", 0.9365),
    PublishedRow("sa-learned", "SA learned", 0.918, "12.3M", "6.2B", 0.9036),
    PublishedRow("sa-learned-content", "SA learned + content", 0.871, "29.5M", "15B", 0.8636),
    PublishedRow("sa-quadratic-16-heads", "SA quadratic, 16 heads", replication_accuracy=0.9311),
    PublishedRow("sa-quadratic-generalized", "SA generalised quadratic"),
    PublishedRow("sa-quadratic-generalized-pruned", "SA generalised quadratic, pruned"),
    PublishedRow("convnet", "3×3 convolutions (control)"),
    PublishedRow("sa-sinusoidal", "SA sinusoidal"),
    PublishedRow("sa-distance", "SA function of distance"),
    PublishedRow("sa-distance-table-start", "SA function of distance, start of the table"),
    PublishedRow("sa-distance-content-gated", "SA function of distance, gated content"),
    PublishedRow("sa-quadratic-grid-init", "SA quadratic, centres start on a grid"),
)
"""Rows of table 1: the paper's in its order, then those that the paper leaves open."""

COLUMNS = (
    "model",  # What the row is called
    "recipe",  # The recipe that was trained
    "changes",  # What was changed in it
    "accuracy",  # Mean test accuracy over seeds, in [0, 1]
    "accuracy_std",  # Standard deviation over seeds, with n − 1; None for one seed
    "n",  # Number of seeds
    "seeds",  # The seeds
    "paper_accuracy",  # The paper's, in [0, 1]
    "replication_accuracy",  # The replication's, in [0, 1]
    "parameters",  # Number of trainable parameters, counted
    "paper_parameters",  # The paper's, as printed
    "flops_linear",  # Operations per image of the linear maps, which the paper counts
    "flops_total",  # Those of mixing and scores as well
    "paper_flops",  # The paper's, as printed
    "data",  # Data set and copy
    "seconds",  # Mean time of a run, in seconds
    "hardware",  # What the runs ran on
    "folders",  # The runs' folders
)
"""Columns of the table; None is "not measured", "not published" or "not countable"."""


def table_rows(groups: RunGroups) -> tuple[list[dict[str, Any]], list[str]]:
    """Makes the rows in the order of `TABLE1`, and says which networks could not be read to count their operations.

    A recipe with runs of several settings has a row for each, one without runs a row that says so.
    """
    problems: list[str] = []
    rows = []
    for published in TABLE1:
        alike = groups.get(published.recipe, (None,))
        rows += [_row(published, group, problems) for group in alike]
    return rows, problems


def _row(published: PublishedRow, group: RunGroup | None, problems: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | published._asdict() | {"n": 0}
    if group is None:
        return row
    records = [run.record for run in group.runs]
    accuracies = [record.results["test_accuracy"] for record in records]
    flops = _flops(group.first, problems)
    pruned = group.first.pruned if flops else ""
    return row | {
        "model": f"{published.model}{pruned}",
        "changes": "; ".join(group.first.changes) or "none",
        "accuracy": statistics.fmean(accuracies),
        "accuracy_std": statistics.stdev(accuracies) if len(records) > 1 else None,
        "n": len(records),
        "seeds": " ".join(str(record.seed) for record in records),
        "parameters": records[0].parameters,
        "flops_linear": flops and flops.linear,
        "flops_total": flops and flops.total,
        "data": records[0].data.name,
        "seconds": statistics.fmean(record.seconds for record in records),
        "hardware": "; ".join(sorted({_hardware(record.hardware) for record in records})),
        "folders": "; ".join(str(run.folder) for run in group.runs),
    }


def table_page(rows: Sequence[Mapping[str, Any]], scale: str) -> str:
    """Writes the rows as Markdown: accuracies and sizes, then what was run on what.

    The published numbers, of the full networks on CIFAR-10, stand beside those of scale "paper" alone.
    """
    return fill_template("table1.txt", rows=rows, scale=scale)


def _flops(run: Run, problems: list[str]) -> FlopCount | None:
    """Counts the operations of a run's network, or says why that cannot be."""
    try:
        network = load_network(run.folder)
    except ConvAttnError as error:
        problems.append(f"operations of {run.folder} are not counted: {error}")
        return None
    if run.image_size is None or not isinstance(network, ImageClassifier):
        return None
    return network.flops(run.image_size)


def _hardware(hardware: Mapping[str, str]) -> str:
    threads = f", threads: {hardware['threads']}" if "threads" in hardware else ""
    return f"{hardware.get('accelerator') or hardware.get('processor', 'unknown')}{threads}"
