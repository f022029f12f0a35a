"""The page of a ViT whose heads run as convolutions, every number from the record."""

from collections.abc import Mapping, Sequence
from typing import Any

from convattn.lab.tables import markdown_table
from evidence.replacing import curve_table
from evidence.results import versions_in_words

NUMBERS = {"class": "class token", "patches": "patches"}

_PAGE = """\
# A trained ViT with heads as convolutions

![What features keep over the heads replaced](vit-replaced.png)

**{answer}**

Heads of [the ViT](vit-heads.md) are replaced without training, those with the highest position score first: by a
convolution with the head's mean kernel, by one tap at its largest displacement, or by its mean map over photographs.
As a control, as many heads drawn at random become convolutions ({draws} draws, least to most). The numbers are the
mean cosine to the features before, of the class token and of the patches, on {tests} photographs that no kernel was
measured on; ± is the standard error over photographs.

{table}

The mean map keeps what depends on the place in the picture as well, and no displacement has to hold at every place.

## Time and memory

{costs}

"Times as fast" is the median of the ratios to the network as it is, by turns in one process (least to most of {rounds}
rounds, {batch} photographs each): other programs came and went, so the rounds are far apart. Memory is the peak of one
call beyond the weights, once for each network in a process of its own; it follows no order. A kernel that is small
beside the picture runs as a depthwise convolution; a mean kernel that reaches over the whole picture runs as a product
with the weights of all pairs of patches. Heads that are left attend in torch's fused kernel, as all do before.

## How it was measured

    {command}

Kernels are means over {measured} photographs, mean maps over {averaged}, at {size} × {size} pixels.
{hardware[processor]}, {hardware[threads]} thread(s), beside other programs. {versions}. Revision {revision}. Record:
[vit-replaced.json](../../evidence/vit_replaced/vit-replaced.json).

Not covered: a task (the package has no classes), training on afterwards, other networks.
"""


def page(content: Mapping[str, Any]) -> str:
    """Words the results."""
    rows = content["curve"]
    return _PAGE.format(
        answer=answer(rows),
        draws=len({row["kind"] for row in rows if row["kind"].startswith("random")}),
        table=curve_table(rows, NUMBERS),
        costs=_costs(content["costs"]),
        versions=versions_in_words(content),
        **{
            name: content[name]
            for name in ("tests", "command", "averaged", "size", "rounds", "batch")
        },
        measured=content["measured_on"],
        hardware=content["hardware"],
        revision=content["revision"],
    )


def answer(rows: list[Mapping[str, Any]], count: int = 8) -> str:
    """Says what is kept with the first heads replaced, and with as many at random."""
    here = [row for row in rows if row["replaced"] == count]
    first = next(row for row in here if row["kind"] == "convolution")
    random = [row for row in here if row["kind"].startswith("random")]
    kept = [f"{first[number]['mean']:.3f}" for number in NUMBERS]
    lost = []
    for number in NUMBERS:
        means = [row[number]["mean"] for row in random]
        lost.append(f"{sum(means) / len(means):.3f}")
    return (
        f"The {count} heads with the highest position score as convolutions, without training: cosine {kept[0]} of the"
        f" class token and {kept[1]} of the patches. As many random heads: {lost[0]} and {lost[1]}."
    )


def _costs(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        low, middle, high = row["times_as_fast"]
        speed = f"{middle:.2f} ({low:.2f} to {high:.2f})" if row["replaced"] else "1"
        kind = row["kind"] if row["replaced"] else "–"
        memory = f"{row['memory'] / 2**20:.0f}"
        lines.append([str(row["replaced"]), kind, speed, memory, f"{row['parameters']:,}"])
    columns = ["heads", "in their place", "times as fast", "memory, MiB", "parameters"]
    return markdown_table(columns, lines)
