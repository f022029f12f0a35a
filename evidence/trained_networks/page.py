"""What the pages of converted networks say of their records."""

from collections.abc import Mapping, Sequence
from typing import Any

from convattn.lab.tables import markdown_table

_COLUMNS = (
    "run",
    "conversion",
    "certificate",
    "leak",
    "largest error",
    "predictions changed",
    "accuracy before",
    "after",
    "time before",
    "after",
    "ratio",
)


def conversion_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulates conversions."""
    return markdown_table(list(_COLUMNS), [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Words one conversion."""
    return [
        row["run"],
        row["conversion"],
        f"{row['verdict']}, {row['layers']} layers",
        f"{row['leak']:.2g}",
        f"{row['error']:.2g} of {row['largest']:.3g}",
        f"{row['top1_changed']:,}",
        f"{row['accuracy_before']:.2%}",
        f"{row['accuracy_after']:.2%}",
        f"{1e3 * row['seconds_before']:.0f} ms",
        f"{1e3 * row['seconds_after']:.0f} ms",
        f"{row['ratio']:.2f}",
    ]


def returned(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says whether weights came back."""
    each = [row for row in rows if row["weights_returned"] is not None]
    came = ", ".join(
        f"`{row['run']}`: {'yes' if row['weights_returned'] else 'NO'}" for row in each
    )
    return f"After the way there and back every tensor of the network is what it was, bit for bit: {came}."


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says over the seeds what each conversion costs."""
    lines = []
    for conversion in dict.fromkeys(row["conversion"] for row in rows):
        found = [row for row in rows if row["conversion"] == conversion]
        costs = [100 * (row["accuracy_after"] - row["accuracy_before"]) for row in found]
        shown = ", ".join(f"{cost:+.2f}" for cost in costs)
        lines.append([conversion, f"{len(costs)}", shown, f"{sum(costs) / len(costs):+.2f}"])
    header = ["conversion", "n", "accuracy after less before, points, by seed", "mean"]
    return markdown_table(header, lines)


def revisions(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lists the revisions at which rows were measured."""
    return ", ".join(dict.fromkeys(f"`{row['revision']}`" for row in rows))


def fine_tuned(runs: Sequence[Mapping[str, Any]]) -> str:
    """Words the comparison of learning on as attention and as convolutions."""
    header = [
        "seed",
        "epochs",
        "trained",
        "converted",
        "learned on as attention",
        "control, as convolutions",
        "difference",
    ]
    rows = []
    for run in runs:
        accuracies = [
            f"{run[key]:.2%}" for key in ("trained", "converted", "fine_tuned", "control")
        ]
        epochs = f"{run['epochs_before']} + {run['epochs_after']}"
        difference = f"{100 * (run['fine_tuned'] - run['control']):+.2f}"
        rows.append([f"{run['seed']}", epochs, *accuracies, difference])
    numbers = ": one run does not say which is better." if len(runs) == 1 else "."
    words = [" ".join(map(_moved, runs)), f"n = {len(runs)}{numbers}"]
    return "\n\n".join([markdown_table(header, rows), *words])


def _moved(run: Mapping[str, Any]) -> str:
    """Words how far heads and gates of one run have come."""
    return (
        f"Seed {run['seed']}: centres have moved by {run['centres_moved']:.3f} pixels on average and"
        f" {run['centres_moved_most']:.2f} at most, sharpness has gone from {run['sharpness_before']:g} to between"
        f" {run['sharpness_least']:.2f} and {run['sharpness_most']:.2f}, and content has {run['gate']:.3f} of the"
        f" attention on average and {run['gate_most']:.3f} at most, in absolute value."
    )
