"""What the page of a ViT whose heads run as convolutions says of its record."""

from collections.abc import Mapping, Sequence
from typing import Any

from convattn.lab.tables import markdown_table

NUMBERS = {"class": "class token", "patches": "patches"}


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


def costs(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulates time and memory."""
    lines = []
    for row in rows:
        low, middle, high = row["times_as_fast"]
        speed = f"{middle:.2f} ({low:.2f} to {high:.2f})" if row["replaced"] else "1"
        kind = row["kind"] if row["replaced"] else "–"
        memory = f"{row['memory'] / 2**20:.0f}"
        lines.append([str(row["replaced"]), kind, speed, memory, f"{row['parameters']:,}"])
    columns = ["heads", "in their place", "times as fast", "memory, MiB", "parameters"]
    return markdown_table(columns, lines)
