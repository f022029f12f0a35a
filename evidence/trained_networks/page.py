"""The page of results, every number from what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convattn.lab.tables import markdown_table
from evidence.trained_networks.measure import CERTIFIED

_BUSY = "Other programs ran at the same time: single times say little, ratios more.\n"

_TUNED = """\
## Learning on after conversion

`resnet18-to-attention` makes attention of the five convolutions of the last stage, with a sharpness of 5 and content
behind closed gates, and learns on; `resnet18-longer` starts from the same network, learns on as long with the same
settings, and stays as it is."""

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


def page(content: Mapping[str, Any]) -> str:
    """Words the results.

    Args:
        content: What was measured, and how.

    Returns:
        Markdown.
    """
    first, second = content["resnet18"], content["sa-quadratic"]
    return (
        (Path(__file__).parent / "page.txt")
        .read_text(encoding="utf-8")
        .format(
            tests=content["data"]["tests"],
            certified=CERTIFIED,
            convolutional=conversion_table(first),
            returned=_returned(first),
            attentional=conversion_table(second),
            over_seeds=_over_seeds(second),
            fine_tuned=_fine_tuned(content["fine_tuned"]),
            command=content["command"],
            runs="\n".join(_run(run) for run in content["runs"]),
            data=content["data"]["name"],
            hardware=f"{content['hardware']['processor']}, {content['hardware']['threads']} thread(s)",
            torch=content["versions"]["torch"],
            revision=", ".join(dict.fromkeys(f"`{row['revision']}`" for row in (*first, *second))),
            rounds=" or ".join(map(str, sorted({row["rounds"] for row in (*first, *second)}))),
            batch=content["batch"],
            busy=_BUSY if content["busy"] else "",
        )
    )


def conversion_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulates conversions."""
    return markdown_table(list(_COLUMNS), [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Words one conversion."""
    certificate = f"{_verdict(row)}, {row['layers']} layers"
    fitted = row.get("refinement") is not None
    return [
        row["run"],
        row["conversion"],
        "none" if fitted else certificate,
        "" if fitted else f"{row['leak']:.2g}",
        "" if fitted else f"{row['error']:.2g} of {row['largest']:.3g}",
        f"{row['top1_changed']:,}",
        f"{row['accuracy_before']:.2%}",
        f"{row['accuracy_after']:.2%}",
        f"{1e3 * row['seconds_before']:.0f} ms",
        f"{1e3 * row['seconds_after']:.0f} ms",
        f"{row['ratio']:.2f}",
    ]


def _verdict(row: Mapping[str, Any]) -> str:
    """Returns the verdict; rows that were measured before there were verdicts state no limit, so none is close."""
    if "verdict" in row:
        return row["verdict"]
    return "different" if not row["exact"] else "exact" if row["passed"] else "failed"


def _returned(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says whether weights came back."""
    each = [row for row in rows if row["weights_returned"] is not None]
    came = ", ".join(
        f"`{row['run']}`: {'yes' if row['weights_returned'] else 'NO'}" for row in each
    )
    return f"After the way there and back every tensor of the network is what it was, bit for bit: {came}."


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says over the seeds what each conversion costs."""
    lines = []
    for conversion in dict.fromkeys(row["conversion"] for row in rows):
        found = [row for row in rows if row["conversion"] == conversion]
        costs = [100 * (row["accuracy_after"] - row["accuracy_before"]) for row in found]
        shown = ", ".join(f"{cost:+.2f}" for cost in costs)
        lines.append([conversion, f"{len(costs)}", shown, f"{sum(costs) / len(costs):+.2f}"])
    header = ["conversion", "n", "accuracy after less before, points, by seed", "mean"]
    return markdown_table(header, lines)


def _run(run: Mapping[str, Any]) -> str:
    """Words one run."""
    told = f"{run['accuracy']:.2%} after {run['seconds']:,.0f} s, revision `{run['revision']}`"
    return f"- `{run['run']}`: `{run['command']}`: {told}"


def _fine_tuned(runs: Sequence[Mapping[str, Any]]) -> str:
    """Words the comparison of learning on as attention and as convolutions."""
    if not runs:
        return ""
    header = [
        "seed",
        "epochs",
        "trained",
        "converted",
        "learned on as attention",
        "control, as convolutions",
        "difference",
    ]
    rows = [
        [
            f"{run['seed']}",
            f"{run['epochs_before']} + {run['epochs_after']}",
            *(f"{run[key]:.2%}" for key in ("trained", "converted", "fine_tuned", "control")),
            f"{100 * (run['fine_tuned'] - run['control']):+.2f}",
        ]
        for run in runs
    ]
    numbers = f"n = {len(runs)}" + (
        ": one run does not say which is better." if len(runs) == 1 else "."
    )
    parts = [_TUNED, markdown_table(header, rows), " ".join(map(_moved, runs)), numbers]
    return "\n\n".join([*parts, ""])


def _moved(run: Mapping[str, Any]) -> str:
    """Words how far heads and gates of one run have come."""
    return (
        f"Seed {run['seed']}: centres have moved by {run['centres_moved']:.3f} pixels on average and"
        f" {run['centres_moved_most']:.2f} at most, sharpness has gone from {run['sharpness_before']:g} to between"
        f" {run['sharpness_least']:.2f} and {run['sharpness_most']:.2f}, and content has {run['gate']:.3f} of the"
        f" attention on average and {run['gate_most']:.3f} at most, in absolute value."
    )
