"""What the page of a speech encoder's heads says of its record."""

from collections.abc import Mapping
from typing import Any

NUMBERS = {"states": "states", "tokens": "tokens", "right": "digits right"}


def answer(content: Mapping[str, Any], count: int = 12) -> str:
    """Says what is kept with the first heads replaced, and with as many at random."""
    here = [row for row in content["curve"] if row["replaced"] == count]
    first = next(row for row in here if row["kind"] == "convolution")
    random = [row["right"]["mean"] for row in here if row["kind"].startswith("random")]
    right, before = share(first["right"]), share(content["before"]["right"])
    return (
        f"The {count} heads with the highest position score as convolutions, without training: {right} of digits right,"
        f" {before} as it is. As many random heads: {100 * min(random):.0f} to {100 * max(random):.0f} %."
    )


def share(number: Mapping[str, float]) -> str:
    """Words a share with its error, in percent."""
    return f"{100 * number['mean']:.0f} ± {100 * number['error']:.0f} %"
