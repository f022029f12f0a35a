"""The page of results, every number from what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convattn.lab.tables import markdown_table
from evidence.results import BUSY
from evidence.trained_networks.measure import CERTIFIED

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
    """Words the results as Markdown."""
    first, second = content["resnet18"], content["sa-quadratic"]
    rows = [*first, *second]
    hardware = content["hardware"]
    text = Path(__file__).with_name("page.txt").read_text(encoding="utf-8")
    return text.format(
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
        hardware=f"{hardware['processor']}, {hardware['threads']} thread(s)",
        torch=content["versions"]["torch"],
        revision=", ".join(dict.fromkeys(f"`{row['revision']}`" for row in rows)),
        rounds=" or ".join(map(str, sorted({row["rounds"] for row in rows}))),
        batch=content["batch"],
        busy=f"{BUSY}\n" if content["busy"] else "",
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
    rows = []
    for run in runs:
        accuracies = [
            f"{run[key]:.2%}" for key in ("trained", "converted", "fine_tuned", "control")
        ]
        epochs = f"{run['epochs_before']} + {run['epochs_after']}"
        difference = f"{100 * (run['fine_tuned'] - run['control']):+.2f}"
        rows.append([f"{run['seed']}", epochs, *accuracies, difference])
    numbers = ": one run does not say which is better." if len(runs) == 1 else "."
    words = [" ".join(map(_moved, runs)), f"n = {len(runs)}{numbers}", ""]
    return "\n\n".join([_TUNED, markdown_table(header, rows), *words])


def _moved(run: Mapping[str, Any]) -> str:
    """Words how far heads and gates of one run have come."""
    return (
        f"Seed {run['seed']}: centres have moved by {run['centres_moved']:.3f} pixels on average and"
        f" {run['centres_moved_most']:.2f} at most, sharpness has gone from {run['sharpness_before']:g} to between"
        f" {run['sharpness_least']:.2f} and {run['sharpness_most']:.2f}, and content has {run['gate']:.3f} of the"
        f" attention on average and {run['gate_most']:.3f} at most, in absolute value."
    )
